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
use fdbroker_protocol::{DecodeError, ErrorCode, Kind, Status, Writer};
use std::collections::HashSet;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Objects that are to be made, checked, and as they are sent.
#[derive(Debug)]
pub struct Items(Vec<Item>);

#[derive(Debug)]
struct Item {
    head: ObjectItem,
    /// Its name, and its metadata.
    text: Box<[u8]>,
}

impl Items {
    pub fn of(objects: &[NewObject<'_>], places: &[Range<u64>]) -> Result<Self, Error> {
        debug_assert_eq!(objects.len(), places.len());
        if objects.len() > MAX_GROUP {
            let context = format!("create: {} objects in a group", objects.len());
            return Err(Error::new(ErrorCode::TooLong, context));
        }
        let mut items = Vec::with_capacity(objects.len());
        let mut names = HashSet::with_capacity(objects.len());
        for (object, place) in objects.iter().zip(places) {
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
            let head = ObjectItem {
                offset: place.start.into(),
                size_bytes: (place.end - place.start).into(),
                expect: object.expect.unwrap_or(0).into(),
                metadata_len: u16::try_from(object.metadata.len()).expect("checked").into(),
                name_len: name_len(object.name),
                flags: if object.expect.is_some() { ObjectItem::EXPECT } else { 0 },
                reserved: 0.into(),
            };
            let text = [object.name.as_bytes(), object.metadata].concat().into();
            items.push(Item { head, text });
        }
        Ok(Items(items))
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Those from this one on that one message has room for, behind a head of so many bytes.
    pub fn chunk(&self, begin: usize, head: usize) -> Range<usize> {
        chunk(begin, self.0[begin..].iter().map(|it| size_of::<ObjectItem>() + it.text.len()), head)
    }

    pub(super) fn write(&self, writer: &mut Writer, range: Range<usize>) -> usize {
        for item in &self.0[range.clone()] {
            writer.push(&item.head).push(&*item.text);
        }
        range.len()
    }

    /// Names the object whose index the broker has said.
    fn named(&self, error: Error, begin: usize) -> Error {
        let index = error.status.map_or(0, |status| status.value);
        let item = usize::try_from(index).ok().and_then(|index| self.0.get(begin + index));
        match (error.code, item) {
            (ErrorCode::Exists, Some(item)) => {
                let name = String::from_utf8_lossy(&item.text[..item.head.name_len.into()]);
                Error { context: format!("create {name}"), ..error }
            }
            _ => error,
        }
    }
}

/// Names that are to have a version when the group is sealed: one of them has another one where the
/// broker says VERSION.
#[derive(Debug, Default)]
pub struct Expecting {
    first: Option<Box<str>>,
    others: usize,
}

impl Expecting {
    pub fn add(&mut self, objects: &[NewObject<'_>]) {
        for object in objects.iter().filter(|object| object.expect.is_some()) {
            match self.first {
                None => self.first = Some(object.name.into()),
                Some(_) => self.others += 1,
            }
        }
    }

    pub fn named(&self, error: Error) -> Error {
        match (&self.first, error.code) {
            (Some(first), ErrorCode::Version) => {
                let context = match self.others {
                    0 => format!("seal {first}"),
                    others => format!("seal {first} or one of {others} others"),
                };
                Error { context, ..error }
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

/// A time to live; more than nothing is not 0, which means as long as may be.
pub(super) fn to_ms(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// One of the messages that make a group.
#[derive(Clone, Debug)]
pub enum Making<'a> {
    /// Begins a group with the first of the items, as many as go with the head.
    Create(&'a ObjectCreateHead, &'a Items),
    /// Adds items to a group.
    Add(u64, &'a Items, Range<usize>),
    /// Seals a group.
    Seal(u64),
}

/// What such a message is answered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Made {
    /// Of a create the group's number, by which it is added to, sealed and aborted; of this
    /// connection alone. Of a seal the version.
    pub number: u64,
    /// Kept groups end with this broker: known after a create.
    pub kept_ends_with_broker: bool,
}

impl<'a> Making<'a> {
    /// Adds the objects from this one on, as many as one message has.
    pub fn add(group: u64, items: &'a Items, begin: usize) -> Self {
        Making::Add(group, items, items.chunk(begin, size_of::<ObjectGroup>()))
    }

    /// The first object that is not in this message.
    pub fn end(&self) -> usize {
        match self {
            Making::Create(head, items) => items.chunk(0, size_of_val(*head)).end,
            Making::Add(_, _, range) => range.end,
            Making::Seal(_) => 0,
        }
    }

    fn call(&self, deadline: Deadline) -> Call<'static> {
        let call = |what, kind, answer| Call::new(what, kind, answer, deadline);
        match self {
            Making::Create(..) => {
                Call { deposits: 1, ..call("create", Kind::ObjectCreate, Kind::ObjectCreated) }
            }
            Making::Add(..) => call("add", Kind::ObjectAdd, Kind::ObjectReply),
            Making::Seal(_) => call("seal", Kind::ObjectSeal, Kind::ObjectSealed),
        }
    }

    fn write(&self, writer: &mut Writer) -> usize {
        let of_group = |group: u64| ObjectGroup { group: group.into() };
        match self {
            Making::Create(head, items) => items.write(writer.push(*head), 0..self.end()),
            Making::Add(group, items, range) => {
                items.write(writer.push(&of_group(*group)), range.clone())
            }
            Making::Seal(group) => {
                writer.push(&of_group(*group));
                0
            }
        }
    }

    fn read(&self, reply: Reply<'_>) -> Result<Result<Made, Error>, DecodeError> {
        Ok(Ok(match self {
            Making::Create(..) => {
                let created = reply.message.body_as::<ObjectCreated>()?;
                let ends = created.flags.get() & ObjectCreated::KEPT_ENDS_WITH_BROKER != 0;
                Made { number: created.group.get(), kept_ends_with_broker: ends }
            }
            Making::Add(..) => {
                return Ok(to_result(one_status(reply)?, "add").map(|()| Made::default()));
            }
            Making::Seal(_) => {
                let number = reply.message.body_as::<ObjectSealed>()?.version.get();
                Made { number, ..Made::default() }
            }
        }))
    }

    fn named(&self, error: Error) -> Error {
        match self {
            Making::Create(_, items) => items.named(error, 0),
            Making::Add(_, items, range) => items.named(error, range.start),
            Making::Seal(_) => error,
        }
    }

    /// Sends it, and waits for the answer. `fd`: that of a create.
    pub fn ask(
        &self,
        connection: &Connection,
        fd: Option<BorrowedFd<'_>>,
        deadline: Deadline,
    ) -> Result<Made, Error> {
        // The credit was taken back, another broker takes over, or what others have ended under the
        // name is still to be swept.
        let made = connection.until_ready(deadline, || {
            let call = self.call(deadline);
            if call.deposits > 0 {
                claim(connection, 1, deadline)?;
            }
            let read = |reply: Reply<'_>| self.read(reply);
            connection.call(call, fd.as_slice(), |writer| self.write(writer), read).flatten()
        });
        made.map_err(|error| self.named(error))
    }

    /// Sends it, with the credit that was claimed for a create; `None`: it does not fit now.
    pub fn start(
        &self,
        connection: &Connection,
        fd: Option<BorrowedFd<'_>>,
        deadline: Deadline,
    ) -> Result<Option<u64>, Error> {
        connection.start(&self.call(deadline), fd.as_slice(), |writer| self.write(writer))
    }

    /// The answer to one that was started, if it has come.
    pub fn look(
        &self,
        connection: &Connection,
        id: u64,
        deadline: Deadline,
    ) -> Option<Result<Made, Error>> {
        let answer = connection.look(id, &self.call(deadline), |reply| self.read(reply))?;
        Some(answer.flatten().map_err(|error| self.named(error)))
    }
}

/// Adds the objects from this one on, in as many messages as it takes.
pub fn add(
    connection: &Connection,
    group: u64,
    items: &Items,
    mut begin: usize,
    deadline: Deadline,
) -> Result<(), Error> {
    while begin < items.len() {
        let message = Making::add(group, items, begin);
        begin = message.end();
        message.ask(connection, None, deadline)?;
    }
    Ok(())
}

/// Adds all objects or none: so many as one message has.
pub fn add_all(
    connection: &Connection,
    group: u64,
    items: &Items,
    deadline: Deadline,
) -> Result<(), Error> {
    let message = Making::add(group, items, 0);
    if message.end() == items.len() {
        message.ask(connection, None, deadline).map(drop)
    } else {
        let context = format!("add: {} objects", items.len());
        let why = "their names and metadata exceed one message of 32 KiB; add less at a time";
        Err(Error::new(ErrorCode::TooLong, context).because(why))
    }
}

pub(super) fn one_status(reply: Reply<'_>) -> Result<Status, DecodeError> {
    let mut statuses = reply.message.statuses()?;
    check_count(Kind::ObjectReply, statuses.len(), 1)?;
    statuses.next().ok_or(DecodeError::Unexpected(Kind::ObjectReply))
}

pub(super) fn to_result(status: Status, context: impl Into<String>) -> Result<(), Error> {
    if status.is_ok() { Ok(()) } else { Err(Error::from_status(status, context)) }
}
