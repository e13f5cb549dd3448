//! Taking messages apart: any bytes as every message there is. What is whole is put together again and must be the same
//! bytes. Must never read past the input, whatever its counts say.

use fdbroker_protocol::admin::{
    AccountRecord, AllocationRecord, ClientRecord, LeaseRecord, LimitChange, Limits, Metrics,
    NodeStatus, Page, Query, SetLimit,
};
use fdbroker_protocol::message::*;
use fdbroker_protocol::{
    DecodeError, Handle, HandlePrefix, Kind, MAX_BATCH, Message, Status, Writer,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub fn run(data: &[u8]) {
    let message = match Message::parse(data) {
        Ok(message) => message,
        Err(error) => return say(&error),
    };
    let is_admin = message.kind as u16 >= Kind::AdminStatus as u16;
    assert!(message.count <= MAX_BATCH || is_admin);
    assert_eq!(message.check_fds(usize::from(message.fd_count)), Ok(()));
    assert!(message.check_fds(usize::from(message.fd_count) + 1).is_err());
    by_kind(&message);
    // And as what it is not: a peer may take it for that.
    body::<Hello>(&message);
    body::<Status>(&message);
    items::<Handle>(&message);
    head_and_items::<RegisterHead, RegisterItem>(&message);
    grants(&message);
}

fn by_kind(message: &Message<'_>) {
    match message.kind {
        Kind::Hello => body::<Hello>(message),
        Kind::HelloReply => body::<HelloReply>(message),
        Kind::Failed => body::<Status>(message),
        Kind::Register => head_and_items::<RegisterHead, RegisterItem>(message),
        Kind::RegisterReply => head_and_items::<RegisterReplyHead, Registered>(message),
        Kind::Unregister => items::<AllocationItem>(message),
        Kind::UnregisterReply | Kind::LeaseReply => statuses(message),
        Kind::Redeposit => head_and_items::<RegisterHead, RedepositItem>(message),
        Kind::Acquire => head_and_items::<AcquireHead, HandlePrefix>(message),
        Kind::Granted => grants(message),
        Kind::Cancel => {}
        Kind::Mapped | Kind::Release | Kind::Reclaim => items::<LeaseItem>(message),
        Kind::Declare => items::<DeclareItem>(message),
        Kind::Recall => items::<RecallItem>(message),
        Kind::Supply => items::<SupplyItem>(message),
        Kind::Revoked => items::<RevokedItem>(message),
        Kind::Drained => items::<DrainedItem>(message),
        Kind::GoingAway => body::<GoingAway>(message),
        Kind::AdminStatus
        | Kind::AdminAllocations
        | Kind::AdminLeases
        | Kind::AdminClients
        | Kind::AdminJobs
        | Kind::AdminDomains
        | Kind::AdminLimits
        | Kind::AdminMetrics => body::<Query>(message),
        Kind::AdminStatusReply => body::<NodeStatus>(message),
        Kind::AdminAllocationsReply => head_and_items::<Page, AllocationRecord>(message),
        Kind::AdminLeasesReply => head_and_items::<Page, LeaseRecord>(message),
        Kind::AdminClientsReply => head_and_items::<Page, ClientRecord>(message),
        Kind::AdminLimitsReply => body::<Limits>(message),
        Kind::AdminSetLimit => body::<SetLimit>(message),
        Kind::AdminSetLimitReply => body::<LimitChange>(message),
        Kind::AdminMetricsReply => body::<Metrics>(message),
        Kind::AdminJobsReply | Kind::AdminDomainsReply => {
            head_and_items::<Page, AccountRecord>(message);
        }
        // Kinds that come later are read as all the others are, in `run`.
        #[allow(unreachable_patterns)]
        _ => {}
    }
}

fn body<T: Layout>(message: &Message<'_>) {
    match message.body_as::<T>() {
        Ok(body) => same(message, |writer| {
            writer.push(body);
        }),
        Err(error) => say(&error),
    }
}

fn items<T: Layout>(message: &Message<'_>) {
    match message.items::<T>() {
        Ok(items) => {
            assert_eq!(items.len(), message.count);
            same(message, |writer| {
                writer.push(items);
            });
        }
        Err(error) => say(&error),
    }
}

fn head_and_items<H: Layout, T: Layout>(message: &Message<'_>) {
    match message.head_and_items::<H, T>() {
        Ok((head, items)) => {
            assert_eq!(items.len(), message.count);
            same(message, |writer| {
                writer.push(head).push(items);
            });
        }
        Err(error) => say(&error),
    }
}

fn grants(message: &Message<'_>) {
    match message.grants() {
        Ok((items, blocks)) => {
            let with_data = items.iter().filter(|item| item.driver_data_len != 0).count();
            assert_eq!((items.len(), blocks.len()), (message.count, with_data));
            items.iter().for_each(|item| drop(item.status.to_string()));
            same(message, |writer| {
                writer.push(items).push(blocks);
            });
        }
        Err(error) => say(&error),
    }
}

fn statuses(message: &Message<'_>) {
    items::<Status>(message);
    for status in message.items::<Status>().unwrap_or_default() {
        assert_eq!(status.is_ok(), status.result().is_ok());
        drop(status.to_string());
    }
}

/// The message put together again from its parts is what came in.
fn same(message: &Message<'_>, push: impl FnOnce(&mut Writer)) {
    let mut writer = Writer::new();
    writer.start(message.kind, message.id);
    push(&mut writer);
    let bytes = writer.finish(message.count, message.fd_count.into());
    let again = Message::parse(bytes).expect("it was whole");
    assert_eq!(again.body, message.body);
    assert_eq!((again.kind, again.id, again.count), (message.kind, message.id, message.count));
}

fn say(error: &DecodeError) {
    assert!(!error.to_string().is_empty());
}

trait Layout: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned {}
impl<T: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned> Layout for T {}
