//! Leases of what a child has inherited: had when it connects, so that the broker counts the memory
//! here, too. Must never fail or hold up a connect for what cannot be leased: that is mapped and
//! read all the same.

use super::acquire::{Handed, acquire_each, is_final};
use super::got::{Answer, read_got};
use crate::books::grant::Grant;
use crate::books::lease::Lease;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::inherited::{Record, Way, file_of, inherited, new_client};
use crate::limits::INHERITED_WAIT;
use crate::wire::call::{Call, Reply};
use crate::wire::connection::Connection;
use fdbroker_protocol::object::{ObjectGetHead, ObjectName};
use fdbroker_protocol::{ErrorCode, Handle, Kind, Writer};
use std::os::fd::AsFd;

/// A client's leases of what its process has inherited. When it is dropped another client may have
/// them.
#[derive(Debug, Default)]
pub(crate) struct Heritage {
    client: u64,
    records: Vec<&'static Record>,
    leases: Vec<Lease>,
}

impl Drop for Heritage {
    fn drop(&mut self) {
        Lease::release_many(self.leases.drain(..));
        self.records.iter().for_each(|record| record.let_go(self.client));
    }
}

/// One allocation, and its lease once that is had.
struct Wanted<'a> {
    records: &'a [&'static Record],
    lease: Option<Lease>,
}

/// Leases what this process has inherited and no other client of it holds.
pub(crate) fn lease(connection: &Connection, deadline: Deadline) -> Heritage {
    let client = new_client();
    let mut all: Vec<_> = inherited().filter(|record| record.claim(client)).collect();
    if all.is_empty() {
        return Heritage::default();
    }
    all.sort_unstable_by_key(|record| record.key());
    let wanted = all.chunk_by(|one, next| one.key() == next.key());
    let mut wanted: Vec<_> = wanted.map(|records| Wanted { records, lease: None }).collect();
    let of_handles = lease_by_handle(connection, &mut wanted, deadline);
    let of_names = lease_by_name(connection, &mut wanted, deadline);
    let mut heritage = Heritage { client, records: Vec::new(), leases: Vec::new() };
    let mut left = 0;
    for Wanted { records, lease } in wanted {
        match lease {
            Some(lease) => {
                heritage.records.extend(records);
                heritage.leases.push(lease);
            }
            None => {
                left += 1;
                records.iter().for_each(|record| record.let_go(client));
            }
        }
    }
    if let Some(why) = of_names.or(of_handles) {
        log::info!(
            "{left} allocations that this process has inherited are not counted for it: {why}"
        );
    }
    heritage
}

/// Why some could not be had.
fn lease_by_handle(
    connection: &Connection,
    wanted: &mut [Wanted<'_>],
    deadline: Deadline,
) -> Option<Error> {
    let handle = |(at, one): (usize, &Wanted<'_>)| match &one.records[0].way {
        Way::Handle(prefix) => Some((at, Handle::from(*prefix))),
        Way::Names { .. } => None,
    };
    let (places, handles): (Vec<_>, Vec<_>) = wanted.iter().enumerate().filter_map(handle).unzip();
    let mut why = None;
    let deadline = deadline.answered_within(INHERITED_WAIT);
    acquire_each(connection, &handles, deadline, |handed| match handed {
        Handed::One(index, Ok(grant)) => wanted[places[index]].take(grant),
        Handed::One(_, Err(error)) => why = Some(error),
        Handed::End => {}
    });
    why
}

/// Why some could not be had. One after the other: each has its fd for a moment, in a process that
/// may have few.
fn lease_by_name(
    connection: &Connection,
    wanted: &mut [Wanted<'_>],
    deadline: Deadline,
) -> Option<Error> {
    let mut why = None;
    for one in wanted {
        for (name, version, flags) in one.records.iter().flat_map(|record| record.names()) {
            match get(connection, flags, name, deadline) {
                Ok(Answer { mut grants, items }) if items[0].version == version => {
                    one.take(grants.swap_remove(items[0].grant));
                    // The broker has the place of its fd back at once.
                    connection.send_queued();
                    break;
                }
                Ok(_) => why = Some(Error::new(ErrorCode::Version, format!("get {name}"))),
                Err(error) if is_final(error.code) => return Some(error),
                Err(error) => why = Some(error),
            }
        }
    }
    why
}

/// Gets what has this name now, without waiting for it.
fn get(
    connection: &Connection,
    flags: u32,
    name: &str,
    deadline: Deadline,
) -> Result<Answer, Error> {
    let call = Call::new("get", Kind::ObjectGet, Kind::ObjectGot, deadline);
    let write = |writer: &mut Writer| {
        writer.push(&ObjectGetHead { deadline_ms: 0.into(), flags: flags.into() });
        let name_len = u8::try_from(name.len()).expect("it was checked when it was got");
        writer.push(&ObjectName { name_len });
        writer.push(name.as_bytes());
        1
    };
    let read = |reply: Reply<'_>| read_got(connection, reply, 1);
    connection.call(call, &[], write, read).flatten()
}

impl Wanted<'_> {
    /// Holds what was granted, if it is the memory that is mapped; its fd is closed.
    fn take(&mut self, grant: Grant) {
        let Grant { fd, mut lease, .. } = grant;
        let is_it = file_of(fd.as_fd()) == Some(self.records[0].file);
        drop(fd);
        if is_it {
            lease.mapped();
            self.lease = Some(lease);
        }
    }
}
