//! Answers to administrators in pages: how many records one has, and where the next begins. Must
//! never be longer than a message of administrators may be.

use crate::limits::ADMIN_RECORDS_PER_PAGE;
use fdbroker_protocol::admin::{
    AccountRecord, AllocationRecord, ClientRecord, LeaseRecord, OwnedObject, Page, TombstoneRecord,
};
use fdbroker_protocol::limits::MAX_ADMIN_MESSAGE_BYTES;
use fdbroker_protocol::message::Header;
use fdbroker_protocol::{Kind, Writer};
use zerocopy::{Immutable, IntoBytes};

/// Records of a kind that one answer may have.
const fn records_per_page<R>() -> usize {
    let fit = (MAX_ADMIN_MESSAGE_BYTES - size_of::<Header>() - size_of::<Page>()) / size_of::<R>();
    if fit < ADMIN_RECORDS_PER_PAGE { fit } else { ADMIN_RECORDS_PER_PAGE }
}

/// As many as fit: each page costs the administrator a round trip.
const _: () = assert!(records_per_page::<AllocationRecord>() >= 64);
const _: () = assert!(records_per_page::<OwnedObject>() >= 64);
const _: () = assert!(records_per_page::<ClientRecord>() >= 104);
const _: () = assert!(records_per_page::<LeaseRecord>() >= 128);
const _: () = assert!(records_per_page::<TombstoneRecord>() >= 128);
/// Jobs and domains are fewer than clients, and their records longer.
const _: () = assert!(records_per_page::<AccountRecord>() >= 48);

/// One page of records: of each entry its slot, and a `record` of those that are in sight, if it is
/// wanted. `next`: where the next page begins when this one takes all; `None` = nowhere.
pub(crate) fn write_page<V, R: IntoBytes + Immutable>(
    writer: &mut Writer,
    kind: Kind,
    id: u64,
    all: impl Iterator<Item = (u32, Option<V>)>,
    mut next: Option<u32>,
    record: impl Fn(V) -> Option<R>,
) -> &[u8] {
    let most = records_per_page::<R>();
    let mut records = Vec::with_capacity(most);
    for (slot, view) in all {
        if records.len() == most {
            next = Some(slot);
            break;
        }
        records.extend(view.and_then(&record));
    }
    let page =
        Page { next_cursor: next.unwrap_or(0).into(), done: u32::from(next.is_none()).into() };
    writer.start(kind, id).push(&page).push(&records[..]);
    writer.finish(records.len(), 0)
}
