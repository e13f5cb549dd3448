//! Taking messages apart: any bytes as every message there is. A whole message is put together
//! again from its parts and must be the same bytes. Must never read past the input, whatever its
//! counts say.

use fdbroker_protocol::admin::{
    AccountRecord, Act, ActRecord, AllocationRecord, ClientRecord, EventRecord, LeaseRecord,
    LimitChange, LimitsReply, Metrics, NodeStatus, OwnedObject, Page, Query, SetLimit,
    TakeoverOffer, TakeoverStep, TombstoneRecord,
};
use fdbroker_protocol::message::*;
use fdbroker_protocol::object::*;
use fdbroker_protocol::{
    DecodeError, HandleItem, HandlePrefixItem, Kind, MAX_BATCH, Message, Named, NamedItems,
    StatusItem, Writer,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub fn run(data: &[u8]) {
    let message = match Message::parse(data) {
        Ok(message) => message,
        Err(error) => return check_text(&error),
    };
    let is_admin = message.kind as u16 >= Kind::AdminStatus as u16;
    assert!(message.count <= MAX_BATCH || is_admin);
    assert_eq!(message.check_fds(usize::from(message.fd_count)), Ok(()));
    assert!(message.check_fds(usize::from(message.fd_count) + 1).is_err());
    let mut parts = Parts(&message);
    visit(message.kind, &mut parts);
    // A peer may take the message for one of another kind.
    parts.body::<Hello>();
    parts.body::<StatusItem>();
    parts.items::<HandleItem>();
    parts.head_and_items::<RegisterHead, RegisterItem>();
    parts.grants();
    parts.head_and_named::<ObjectCreateHead, ObjectItem>();
    parts.got();
}

/// A structure of the protocol.
pub trait Layout: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned {}
impl<T: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned> Layout for T {}

/// What to do with each shape that the body of a message can have.
pub trait Bodies {
    /// An empty body.
    fn empty(&mut self);
    /// One structure.
    fn body<T: Layout>(&mut self);
    /// As many structures as the header counts.
    fn items<T: Layout>(&mut self);
    /// One structure, then as many others as the header counts.
    fn head_and_items<H: Layout, T: Layout>(&mut self);
    /// Grants, then the driver data of some of them.
    fn grants(&mut self);
    /// As many items as the header counts, each with a name and more behind it.
    fn named<T: Layout + Named>(&mut self);
    /// One structure, then such items.
    fn head_and_named<H: Layout, T: Layout + Named>(&mut self);
    /// A prefix and a name.
    fn prefix(&mut self);
    /// The answer to a get of objects.
    fn got(&mut self);
}

/// Calls the method of `bodies` for the shape that messages of this kind have.
pub fn visit(kind: Kind, bodies: &mut impl Bodies) {
    match kind {
        Kind::Cancel | Kind::Complete | Kind::Settle | Kind::Settled | Kind::Joined => {
            bodies.empty()
        }
        Kind::Fetch => bodies.items::<HandlePrefixItem>(),
        Kind::Hello => bodies.body::<Hello>(),
        Kind::HelloReply => bodies.body::<HelloReply>(),
        Kind::Join => bodies.body::<Join>(),
        Kind::Failed => bodies.body::<StatusItem>(),
        Kind::GoingAway => bodies.body::<GoingAway>(),
        Kind::AdminStatus
        | Kind::AdminAllocations
        | Kind::AdminLeases
        | Kind::AdminClients
        | Kind::AdminJobs
        | Kind::AdminDomains
        | Kind::AdminLimits
        | Kind::AdminMetrics
        | Kind::AdminObjects
        | Kind::AdminTombstones
        | Kind::AdminTakeover => bodies.body::<Query>(),
        Kind::AdminStatusReply | Kind::AdminDrainReply => bodies.body::<NodeStatus>(),
        Kind::AdminTakeoverOffer => bodies.body::<TakeoverOffer>(),
        Kind::AdminTakeoverStep => bodies.body::<TakeoverStep>(),
        Kind::AdminLimitsReply => bodies.body::<LimitsReply>(),
        Kind::AdminSetLimit => bodies.body::<SetLimit>(),
        Kind::AdminSetLimitReply => bodies.body::<LimitChange>(),
        Kind::AdminMetricsReply => bodies.body::<Metrics>(),
        Kind::AdminEvict | Kind::AdminRevoke | Kind::AdminDrain | Kind::AdminWatch => {
            bodies.body::<Act>();
        }
        Kind::Unregister => bodies.items::<AllocationItem>(),
        Kind::UnregisterReply | Kind::LeaseReply => bodies.items::<StatusItem>(),
        Kind::Mapped | Kind::Release | Kind::Reclaim => bodies.items::<LeaseItem>(),
        Kind::Declare => bodies.items::<DeclareItem>(),
        Kind::Resolve => bodies.body::<Resolve>(),
        Kind::Resolved => bodies.items::<HandleItem>(),
        Kind::Recall => bodies.items::<RecallItem>(),
        Kind::Supply => bodies.items::<SupplyItem>(),
        Kind::Revoked => bodies.items::<RevokedItem>(),
        Kind::SupplyRefused => bodies.items::<RefusedItem>(),
        Kind::Drained => bodies.items::<DrainedItem>(),
        Kind::AdminEvents => bodies.items::<EventRecord>(),
        Kind::Register => bodies.head_and_items::<RegisterHead, RegisterItem>(),
        Kind::RegisterReply => bodies.head_and_items::<RegisterReplyHead, Registered>(),
        Kind::Redeposit => bodies.head_and_items::<RegisterHead, RedepositItem>(),
        Kind::Acquire => bodies.head_and_items::<AcquireHead, HandlePrefixItem>(),
        Kind::AdminAllocationsReply => bodies.head_and_items::<Page, AllocationRecord>(),
        Kind::AdminLeasesReply => bodies.head_and_items::<Page, LeaseRecord>(),
        Kind::AdminClientsReply => bodies.head_and_items::<Page, ClientRecord>(),
        Kind::AdminObjectsReply => bodies.head_and_items::<Page, OwnedObject>(),
        Kind::AdminTombstonesReply => bodies.head_and_items::<Page, TombstoneRecord>(),
        Kind::AdminJobsReply | Kind::AdminDomainsReply => {
            bodies.head_and_items::<Page, AccountRecord>();
        }
        Kind::AdminEvictReply | Kind::AdminRevokeReply => {
            bodies.head_and_items::<Page, ActRecord>()
        }
        Kind::Granted => bodies.grants(),
        Kind::ObjectCreate => bodies.head_and_named::<ObjectCreateHead, ObjectItem>(),
        Kind::ObjectCreated => bodies.body::<ObjectCreated>(),
        Kind::ObjectAdd => bodies.head_and_named::<ObjectGroup, ObjectItem>(),
        Kind::ObjectReply => bodies.items::<StatusItem>(),
        Kind::ObjectSeal | Kind::ObjectAbort => bodies.body::<ObjectGroup>(),
        Kind::ObjectSealed => bodies.body::<ObjectSealed>(),
        Kind::ObjectGet => bodies.head_and_named::<ObjectGetHead, ObjectName>(),
        Kind::ObjectGot => bodies.got(),
        Kind::ObjectDelete => bodies.head_and_named::<ObjectScope, ObjectDeleteItem>(),
        Kind::ObjectStat => bodies.head_and_named::<ObjectScope, ObjectName>(),
        Kind::ObjectTouch => bodies.head_and_named::<ObjectTouchHead, ObjectName>(),
        Kind::ObjectRecords => bodies.head_and_named::<ObjectPage, ObjectRecord>(),
        Kind::ObjectEvents => bodies.named::<ObjectEventItem>(),
        Kind::ObjectList | Kind::ObjectWatch => bodies.prefix(),
    }
}

/// Takes a message apart as a body of each shape.
struct Parts<'a>(&'a Message<'a>);

impl Parts<'_> {
    fn check<T>(&self, parts: Result<T, DecodeError>, push: impl FnOnce(&mut Writer, T)) {
        match parts {
            Ok(parts) => same(self.0, |writer| push(writer, parts)),
            Err(error) => check_text(&error),
        }
    }
}

impl Bodies for Parts<'_> {
    fn empty(&mut self) {}

    fn body<T: Layout>(&mut self) {
        self.check(self.0.body_as::<T>(), |writer, body| {
            writer.push(body);
        });
    }

    fn items<T: Layout>(&mut self) {
        self.check(self.0.items::<T>(), |writer, items| {
            assert_eq!(items.len(), self.0.count);
            writer.push(items);
        });
        check_statuses(self.0);
    }

    fn head_and_items<H: Layout, T: Layout>(&mut self) {
        self.check(self.0.head_and_items::<H, T>(), |writer, (head, items)| {
            assert_eq!(items.len(), self.0.count);
            writer.push(head).push(items);
        });
    }

    fn grants(&mut self) {
        self.check(self.0.grants(), |writer, (items, blocks)| {
            let with_data = items.iter().filter(|item| item.driver_data_len != 0).count();
            assert_eq!((items.len(), blocks.len()), (self.0.count, with_data));
            items.iter().for_each(|item| drop(item.status.get().to_string()));
            writer.push(items).push(blocks);
        });
    }

    fn named<T: Layout + Named>(&mut self) {
        self.check(self.0.named::<T>(), |writer, items| push_named(writer, items, self.0.count));
    }

    fn head_and_named<H: Layout, T: Layout + Named>(&mut self) {
        self.check(self.0.head_and_named::<H, T>(), |writer, (head, items)| {
            writer.push(head);
            push_named(writer, items, self.0.count);
        });
    }

    fn prefix(&mut self) {
        self.check(self.0.prefix(), |writer, (head, prefix, after)| {
            writer.push(head).push(prefix).push(after);
        });
    }

    fn got(&mut self) {
        self.check(self.0.got(), |writer, got| {
            let head = ObjectGotHead::ref_from_prefix(self.0.body).expect("it was whole").0;
            assert_eq!(
                (got.items.len(), got.grants.len()),
                (self.0.count, head.grants.get().into())
            );
            writer.push(head).push(got.items).push(got.grants);
            writer.push(got.driver_data).push(got.metadata);
        });
    }
}

fn push_named<T: Layout + Named>(writer: &mut Writer, items: NamedItems<'_, T>, count: usize) {
    assert_eq!(items.len(), count);
    let mut seen = 0;
    for (item, name, more) in items {
        assert!(std::str::from_utf8(name).is_ok() && !name.contains(&0));
        writer.push(item).push(name).push(more);
        seen += 1;
    }
    assert_eq!(seen, count);
}

/// Any items of 16 bytes can be read as statuses: each says something, whatever is in it.
fn check_statuses(message: &Message<'_>) {
    for status in message.statuses().into_iter().flatten() {
        assert_eq!(status.is_ok(), status.result().is_ok());
        drop(status.to_string());
    }
}

/// Puts the message together again from its parts: the bytes must be those that came in.
fn same(message: &Message<'_>, push: impl FnOnce(&mut Writer)) {
    let mut writer = Writer::new();
    writer.start(message.kind, message.id);
    push(&mut writer);
    let bytes = writer.finish(message.count, message.fd_count.into());
    let again = Message::parse(bytes).expect("it was whole");
    assert_eq!(again.body, message.body);
    assert_eq!((again.kind, again.id, again.count), (message.kind, message.id, message.count));
}

fn check_text(error: &DecodeError) {
    assert!(!error.to_string().is_empty());
}
