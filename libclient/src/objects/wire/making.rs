//! Requests that make groups: create, add, seal, abort. Must never send a message that is longer
//! than the protocol allows.

use super::super::options::{NewObject, ObjectOptions};
use super::message::{check_name, chunk};
use crate::deadline::Deadline;
use crate::deposit::Deposit;
use crate::error::Error;
use crate::requests::register::claim;
use crate::wire::call::{Call, Reply, check_count};
use crate::wire::connection::Connection;
use fdbroker_protocol::limits::{MAX_GROUP, METADATA_BYTES};
use fdbroker_protocol::object::{
    ObjectCreateHead, ObjectCreated, ObjectGroup, ObjectItem, ObjectSealed, object_flags,
};
use fdbroker_protocol::{DecodeError, ErrorCode, Kind, MemoryKind, Status, Writer};
use std::collections::HashSet;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Objects that are to be made, checked.
pub struct Items<'a> {
    objects: &'a [NewObject<'a>],
    places: &'a [Range<u64>],
}

impl<'a> Items<'a> {
    pub fn of(objects: &'a [NewObject<'a>], places: &'a [Range<u64>]) -> Result<Self, Error> {
        debug_assert_eq!(objects.len(), places.len());
        if objects.len() > MAX_GROUP {
            let context = format!("create: {} objects in a group", objects.len());
            return Err(Error::new(ErrorCode::TooLong, context));
        }
        let mut names = HashSet::with_capacity(objects.len());
        for object in objects {
            check_name("create", object.name)?;
            if object.metadata.len() > METADATA_BYTES {
                let bytes = object.metadata.len();
                let context = format!("create {}: {bytes} bytes of metadata", object.name);
                return Err(Error::new(ErrorCode::TooLong, context));
            }
            if !names.insert(object.name) {
                let context = format!("create {}: two objects of this name", object.name);
                let why = "the objects of a group have names of their own";
                return Err(Error::new(ErrorCode::BadHandle, context).because(why));
            }
        }
        Ok(Items { objects, places })
    }

    /// Those that go with the head of a create.
    pub fn first_chunk(&self, head: usize) -> Range<usize> {
        self.chunk(0, head)
    }

    pub(super) fn chunk(&self, begin: usize, head: usize) -> Range<usize> {
        let size = |object: &NewObject<'_>| {
            size_of::<ObjectItem>() + object.name.len() + object.metadata.len()
        };
        chunk(begin, self.objects[begin..].iter().map(size), head)
    }

    pub(super) fn write(&self, writer: &mut Writer, range: Range<usize>) -> usize {
        for at in range.clone() {
            let (object, place) = (&self.objects[at], &self.places[at]);
            let flags = if object.expect.is_some() { ObjectItem::EXPECT } else { 0 };
            writer.push(&ObjectItem {
                offset: place.start.into(),
                size_bytes: (place.end - place.start).into(),
                expect: object.expect.unwrap_or(0).into(),
                metadata_len: u16::try_from(object.metadata.len()).expect("checked").into(),
                name_len: name_len(object.name),
                flags,
                reserved: 0.into(),
            });
            writer.push(object.name.as_bytes());
            writer.push(object.metadata);
        }
        range.len()
    }

    /// Names the object whose index the broker has said.
    pub(super) fn named(&self, error: Error, begin: usize) -> Error {
        let index = error.status.map_or(0, |status| status.value);
        let at = usize::try_from(index).ok().and_then(|index| self.objects.get(begin + index));
        match (error.code, at) {
            (ErrorCode::Exists, Some(object)) => {
                Error { context: format!("create {}", object.name), ..error }
            }
            _ => error,
        }
    }
}

pub(super) fn name_len(name: &str) -> u8 {
    u8::try_from(name.len()).expect("a checked name has at most 255 bytes")
}

/// The head of a group of this memory.
pub fn head(flags: u32, options: ObjectOptions, deposit: &Deposit) -> ObjectCreateHead {
    let with = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
    let flags = flags
        | with(options.replace, object_flags::REPLACE)
        | with(options.keep.is_some(), object_flags::KEEP)
        | with(options.pin == Some(true), object_flags::PIN)
        | with(options.pin == Some(false), object_flags::NO_PIN)
        | with(options.no_keep && options.keep.is_none(), object_flags::NO_KEEP)
        | with(options.outlive, object_flags::OUTLIVE)
        | with(options.evictable, object_flags::EVICTABLE);
    let (driver_data, driver_data_len) = deposit.driver_data.to_block();
    ObjectCreateHead {
        facts: deposit.facts.into(),
        driver_data_len,
        credits_wanted: 0.into(),
        flags: flags.into(),
        reserved: 0.into(),
        ttl_ms: options.keep.map_or(0, to_ms).into(),
        driver_data,
    }
}

/// The head of a group in a memfd.
pub fn host_head(flags: u32, options: ObjectOptions, size_bytes: u64) -> ObjectCreateHead {
    head(flags, options, &Deposit::new(MemoryKind::Memfd, size_bytes))
}

/// A time to live; more than nothing is not 0, which means as long as may be.
pub(super) fn to_ms(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// A group that was begun.
#[derive(Clone, Copy, Debug)]
pub struct Created {
    /// The group's number, by which it is added to, sealed and aborted; of this connection alone.
    pub group: u64,
    /// Kept groups end with this broker.
    pub kept_ends_with_broker: bool,
}

pub fn create(
    connection: &Connection,
    head: &ObjectCreateHead,
    items: &Items<'_>,
    first: Range<usize>,
    fd: BorrowedFd<'_>,
    deadline: Deadline,
) -> Result<Created, Error> {
    let call = Call::new("create", Kind::ObjectCreate, Kind::ObjectCreated, deadline);
    let call = Call { deposits: 1, ..call };
    // The credit was taken back, or what others have ended under the name is still to be swept.
    let created = connection.until_ready(deadline, || {
        claim(connection, 1, deadline)?;
        let write = |writer: &mut Writer| {
            writer.push(head);
            items.write(writer, first.clone())
        };
        let read = |reply: Reply<'_>| {
            let created = reply.message.body_as::<ObjectCreated>()?;
            let ends = created.flags.get() & ObjectCreated::KEPT_ENDS_WITH_BROKER != 0;
            Ok(Created { group: created.group.get(), kept_ends_with_broker: ends })
        };
        connection.call(call, &[fd], write, read)
    });
    created.map_err(|error| items.named(error, first.start))
}

/// Adds the objects from this one on, in as many messages as it takes.
pub fn add(
    connection: &Connection,
    group: u64,
    items: &Items<'_>,
    mut begin: usize,
    deadline: Deadline,
) -> Result<(), Error> {
    while begin < items.objects.len() {
        let range = items.chunk(begin, size_of::<ObjectGroup>());
        begin = range.end;
        add_some(connection, group, items, range, deadline)?;
    }
    Ok(())
}

/// Adds all objects or none: so many as one message has.
pub fn add_all(
    connection: &Connection,
    group: u64,
    items: &Items<'_>,
    deadline: Deadline,
) -> Result<(), Error> {
    let range = items.chunk(0, size_of::<ObjectGroup>());
    if range.len() == items.objects.len() {
        add_some(connection, group, items, range, deadline)
    } else {
        let context = format!("add: {} objects", items.objects.len());
        let why = "their names and metadata exceed one message of 32 KiB; add less at a time";
        Err(Error::new(ErrorCode::TooLong, context).because(why))
    }
}

fn add_some(
    connection: &Connection,
    group: u64,
    items: &Items<'_>,
    range: Range<usize>,
    deadline: Deadline,
) -> Result<(), Error> {
    let begin = range.start;
    let write = |writer: &mut Writer| {
        writer.push(&ObjectGroup { group: group.into() });
        items.write(writer, range.clone())
    };
    let call = Call::new("add", Kind::ObjectAdd, Kind::ObjectReply, deadline);
    // What others have ended under the name is still to be swept.
    let added = connection
        .until_ready(deadline, || to_result(connection.call(call, &[], write, one_status)?, "add"));
    added.map_err(|error| items.named(error, begin))
}

pub(super) fn one_status(reply: Reply<'_>) -> Result<Status, DecodeError> {
    let mut statuses = reply.message.statuses()?;
    check_count(Kind::ObjectReply, statuses.len(), 1)?;
    statuses.next().ok_or(DecodeError::Unexpected(Kind::ObjectReply))
}

pub(super) fn to_result(status: Status, context: impl Into<String>) -> Result<(), Error> {
    if status.is_ok() { Ok(()) } else { Err(Error::from_status(status, context)) }
}

/// Seals a group; its version.
pub fn seal(connection: &Connection, group: u64, deadline: Deadline) -> Result<u64, Error> {
    let call = Call::new("seal", Kind::ObjectSeal, Kind::ObjectSealed, deadline);
    let write = |writer: &mut Writer| {
        writer.push(&ObjectGroup { group: group.into() });
        0
    };
    let read = |reply: Reply<'_>| Ok(reply.message.body_as::<ObjectSealed>()?.version.get());
    // Another broker takes over.
    connection.until_ready(deadline, || connection.call(call, &[], write, read))
}
