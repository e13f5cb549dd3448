//! Puts effects into bytes. Must never send: it fills a reused writer, and says which slots' fds go
//! with it.

use crate::node::side::{Identity, NodeSide};
use fdbroker_core::{
    Config, Deposit, DrainedEvent, Events, Granted, Now, ObjectNews, RecallEvent, Registered,
    RequestId, RevokedEvent, StatusReply,
};
use fdbroker_protocol::limits::{DRIVER_DATA_BYTES, MAX_BATCH};
use fdbroker_protocol::message::{
    self, DrainedItem, GrantItem, LeaseItem, NO_FD, PROTOCOL_VERSION, RecallItem, RefusedItem,
    RegisterReplyHead, RevokedItem,
};
use fdbroker_protocol::object::ObjectEventItem;
use fdbroker_protocol::{AllocationId, Facts, Handle, Kind, Status, Writer};
use zerocopy::{Immutable, IntoBytes};

/// A granted message in the writer; `slots` gets the slot of each fd, in order.
/// `driver_data` gives the bytes of an allocation that has some.
pub fn write_granted<'w>(
    writer: &'w mut Writer,
    request: RequestId,
    grants: &[Granted],
    slots: &mut Vec<u32>,
    driver_data: impl Fn(AllocationId) -> Option<(u8, [u8; DRIVER_DATA_BYTES])>,
) -> &'w [u8] {
    slots.clear();
    writer.start(Kind::Granted, request.0);
    let mut with_data = 0;
    for grant in grants {
        let Some(id) = granted_id(grant) else {
            writer.push(&refused_item(grant.status));
            continue;
        };
        let data = if grant.has_driver_data { driver_data(id) } else { None };
        with_data += usize::from(data.is_some());
        let fd_index = u16::try_from(slots.len()).expect("at most 253 grants");
        slots.push(id.slot);
        writer.push(&granted_item(grant, id, fd_index, data.map_or(0, |(length, _)| length)));
    }
    if with_data > 0 {
        for id in grants.iter().filter(|grant| grant.has_driver_data).filter_map(granted_id) {
            if let Some((_, bytes)) = driver_data(id) {
                writer.push(&bytes);
            }
        }
    }
    writer.finish(grants.len(), slots.len())
}

/// The reply to declare: a granted message without fds or driver data, both of which the holder
/// has.
pub fn write_declared<'w>(
    writer: &'w mut Writer,
    request: RequestId,
    declared: &[Granted],
) -> &'w [u8] {
    writer.start(Kind::Granted, request.0);
    for grant in declared {
        match granted_id(grant) {
            Some(id) => writer.push(&granted_item(grant, id, NO_FD, 0)),
            None => writer.push(&refused_item(grant.status)),
        };
    }
    writer.finish(declared.len(), 0)
}

fn granted_id(grant: &Granted) -> Option<AllocationId> {
    grant.wanted.ok().filter(|_| grant.status.is_ok())
}

fn refused_item(status: Status) -> GrantItem {
    GrantItem { status: status.into(), fd_index: NO_FD.into(), ..zerocopy::FromZeros::new_zeroed() }
}

pub(super) fn granted_item(
    grant: &Granted,
    id: AllocationId,
    fd_index: u16,
    driver_data_len: u8,
) -> GrantItem {
    GrantItem {
        status: grant.status.into(),
        lease: grant.lease.0.into(),
        slot: id.slot.into(),
        generation: id.generation.into(),
        facts: grant.facts.into(),
        driver_data_len,
        fd_index: fd_index.into(),
    }
}

/// A register reply; `deposit`: what the request that is answered says at an index.
pub fn write_registered<'w, 'd>(
    writer: &'w mut Writer,
    identity: &Identity,
    request: RequestId,
    registered: &[Registered],
    deposit: impl Fn(u16) -> Option<&'d Deposit>,
    deposit_credits: u32,
) -> &'w [u8] {
    let head =
        RegisterReplyHead { deposit_credits: deposit_credits.into(), reserved: [0.into(); 3] };
    writer.start(Kind::RegisterReply, request.0).push(&head);
    for outcome in registered {
        let item = match deposit(outcome.index).filter(|_| outcome.status.is_ok()) {
            Some(deposit) => registered_item(identity, outcome, deposit),
            None => message::Registered {
                status: outcome.status.into(),
                handle: Handle::from_bytes([0; 64]).into(),
                token: [0; 16],
            },
        };
        writer.push(&item);
    }
    writer.finish(registered.len(), 0)
}

fn registered_item(
    identity: &Identity,
    outcome: &Registered,
    deposit: &Deposit,
) -> message::Registered {
    message::Registered {
        status: outcome.status.into(),
        handle: handle_of(identity, outcome.id, &deposit.facts, deposit.virtual_fd).into(),
        token: identity.key.owner_token(outcome.id),
    }
}

/// A handle, with its virtual fd if it was registered with one.
pub(super) fn handle_of(
    identity: &Identity,
    id: AllocationId,
    facts: &Facts,
    has_virtual_fd: bool,
) -> Handle {
    let handle = identity.key.seal(identity.node, id, facts);
    let virtual_fd = identity.key.virtual_fd(id).filter(|_| has_virtual_fd);
    let virtual_fd = virtual_fd.map_or(0, |fd| fd.number().cast_unsigned());
    Handle { virtual_fd, ..handle }
}

/// The reply to unregister, mapped or release.
pub fn write_statuses<'w>(
    writer: &'w mut Writer,
    request: RequestId,
    reply: StatusReply,
    statuses: &[Status],
) -> &'w [u8] {
    let kind = match reply {
        StatusReply::Unregister => Kind::UnregisterReply,
        StatusReply::Lease => Kind::LeaseReply,
        StatusReply::Objects => Kind::ObjectReply,
    };
    writer.start(kind, request.0);
    for status in statuses {
        writer.push(&status.to_bytes());
    }
    writer.finish(statuses.len(), 0)
}

/// A client that is let in.
#[derive(Clone, Copy, Debug)]
pub struct Welcome {
    /// The time of its hello's answer.
    pub now: Now,
    /// Its number, below the most clients.
    pub client: u32,
    /// The client's number for its hello.
    pub request: RequestId,
    /// How many fds it may deposit.
    pub deposit_credits: u32,
    /// With it its further sockets join.
    pub secret: u64,
}

/// The reply to hello; its fd is the page.
pub fn write_hello_reply<'w>(
    writer: &'w mut Writer,
    side: &NodeSide,
    config: &Config,
    welcome: &Welcome,
) -> &'w [u8] {
    let Welcome { now, client, request, deposit_credits, secret } = *welcome;
    let recall_timeout_ms = u32::try_from(config.recall_timeout_us / 1000).unwrap_or(u32::MAX);
    let served_us = now.0.saturating_sub(side.identity().began.0);
    let grace_left_us = config.grace_us.saturating_sub(served_us);
    let reply = message::HelloReply {
        version: u16::from(PROTOCOL_VERSION).into(),
        max_batch: u16::try_from(MAX_BATCH).expect("253").into(),
        deposit_credits: deposit_credits.into(),
        node: side.identity().node.into(),
        incarnation: side.page().incarnation().into(),
        client: client.into(),
        page_slots: side.page().slots().into(),
        recall_timeout_ms: recall_timeout_ms.into(),
        max_parked: config.max_parked_per_client.into(),
        grace_left_ms: grace_left_us.div_ceil(1000).into(),
        secret: secret.into(),
        reserved: 0.into(),
    };
    writer.start(Kind::HelloReply, request.0).push(&reply);
    writer.finish(0, 1)
}

/// A message for the event socket.
pub fn write_events<'w>(writer: &'w mut Writer, events: &Events) -> &'w [u8] {
    let count = match events {
        Events::Recall(all) => list(writer, Kind::Recall, all.iter().map(recall_item)),
        Events::Reclaim(leases) => {
            let items = leases.iter().map(|lease| LeaseItem { lease: lease.0.into() });
            list(writer, Kind::Reclaim, items)
        }
        Events::Revoked(all) => list(writer, Kind::Revoked, all.iter().map(revoked_item)),
        Events::Drained(all) => list(writer, Kind::Drained, all.iter().map(drained_item)),
        Events::Objects(news) => {
            writer.start(Kind::ObjectEvents, 0);
            for event in news {
                writer.push(&news_item(event)).push(&*event.name);
            }
            news.len()
        }
    };
    writer.finish(count, 0)
}

/// A message for the event socket: fds of supplies that were refused, and why.
pub fn write_refused(
    writer: &mut Writer,
    refused: impl Iterator<Item = (AllocationId, Status)>,
) -> &[u8] {
    let item = |(id, status): (AllocationId, Status)| RefusedItem {
        slot: id.slot.into(),
        generation: id.generation.into(),
        status: status.into(),
    };
    let count = list(writer, Kind::SupplyRefused, refused.map(item));
    writer.finish(count, 0)
}

/// Begins a message of this kind with these items; how many.
fn list(
    writer: &mut Writer,
    kind: Kind,
    items: impl Iterator<Item = impl IntoBytes + Immutable>,
) -> usize {
    writer.start(kind, 0);
    items.fold(0, |count, item| {
        writer.push(&item);
        count + 1
    })
}

fn recall_item(event: &RecallEvent) -> RecallItem {
    RecallItem {
        slot: event.id.slot.into(),
        generation: event.id.generation.into(),
        facts: event.facts.into(),
        reserved: [0; 3],
        base: event.base.into(),
    }
}

fn revoked_item(event: &RevokedEvent) -> RevokedItem {
    RevokedItem {
        slot: event.id.slot.into(),
        generation: event.id.generation.into(),
        lease: event.lease.0.into(),
        code: (event.code as u16).into(),
        reserved: [0; 6],
    }
}

fn news_item(news: &ObjectNews) -> ObjectEventItem {
    ObjectEventItem {
        version: news.version.into(),
        event: news.event as u8,
        name_len: u8::try_from(news.name.len()).expect("the core bounds it"),
        reserved: [0.into(); 3],
    }
}

fn drained_item(event: &DrainedEvent) -> DrainedItem {
    DrainedItem {
        slot: event.id.slot.into(),
        generation: event.id.generation.into(),
        owner_allocation_id: event.owner_allocation_id.into(),
        base: event.base.into(),
    }
}
