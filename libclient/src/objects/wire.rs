//! Requests about objects: what is said to the broker, and what its answers mean. Must never lose a grant or a group of an answer
//! that cannot be used.

use super::info::ObjectInfo;
use super::options::{NewObject, ObjectOptions, Touch};
use crate::books::grant::Grant;
use crate::books::one_way::OneWay;
use crate::deadline::Deadline;
use crate::deposit::{Deposit, DriverData};
use crate::error::Error;
use crate::limits::{AGAIN_FIRST, AGAIN_LAST};
use crate::requests::acquire::{Arrived, Outcome, outcome};
use crate::requests::register::claim;
use crate::wire::call::{Call, Reply, check_count};
use crate::wire::connection::Connection;
use fdbroker_protocol::limits::{
    MAX_GROUP, MAX_OBJECT_MESSAGE_BYTES, METADATA_BYTES, NAME_OF_OBJECT_BYTES,
};
use fdbroker_protocol::message::Header;
use fdbroker_protocol::object::{
    ObjectCreateHead, ObjectCreated, ObjectDeleteItem, ObjectGetHead, ObjectGroup, ObjectItem,
    ObjectName, ObjectPage, ObjectPrefix, ObjectRecord, ObjectScope, ObjectSealed, ObjectTouchHead,
    object_flags,
};
use fdbroker_protocol::{
    DecodeError, ErrorCode, Kind, MAX_BATCH, MemoryKind, Status, Writer, is_object_name,
};
use std::collections::HashSet;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

fn call(what: &'static str, kind: Kind, answer: Kind, deadline: Deadline) -> Call<'static> {
    Call { what, kind, answer, until: deadline.given_up_at(), deposits: 0, ends: &[] }
}

/// BAD_HANDLE or TOO_LONG for what cannot be a name.
fn check_name(what: &str, name: &str) -> Result<(), Error> {
    if is_object_name(name.as_bytes()) {
        return Ok(());
    }
    if name.len() > NAME_OF_OBJECT_BYTES {
        return Err(Error::new(
            ErrorCode::TooLong,
            format!("{what}: a name of {} bytes", name.len()),
        ));
    }
    let why = "the name of an object has 1 to 255 bytes of UTF-8 without NUL";
    Err(Error::new(ErrorCode::BadHandle, format!("{what} {name:?}")).because(why))
}

/// As many of the parts from `begin` on as one message has room for, behind a head of so many bytes; one at least.
fn chunk(begin: usize, sizes: impl Iterator<Item = usize>, head: usize) -> Range<usize> {
    let mut left = MAX_OBJECT_MESSAGE_BYTES - size_of::<Header>() - head;
    let fits = |size: &usize| {
        let fits = *size <= left;
        left = left.saturating_sub(*size);
        fits
    };
    let count = sizes.take(MAX_BATCH).take_while(fits).count();
    begin..begin + count
}

// --- making ---------------------------------------------------------------------------------------

/// Objects that are to be made, checked.
pub(super) struct Items<'a> {
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

    fn chunk(&self, begin: usize, head: usize) -> Range<usize> {
        let size = |object: &NewObject<'_>| {
            size_of::<ObjectItem>() + object.name.len() + object.metadata.len()
        };
        chunk(begin, self.objects[begin..].iter().map(size), head)
    }

    fn write(&self, writer: &mut Writer, range: Range<usize>) -> usize {
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
    fn named(&self, error: Error, begin: usize) -> Error {
        let index = error.status.map_or(0, |status| status.value.get());
        let at = usize::try_from(index).ok().and_then(|index| self.objects.get(begin + index));
        match (error.code, at) {
            (ErrorCode::Exists | ErrorCode::Again, Some(object)) => {
                Error { context: format!("create {}", object.name), ..error }
            }
            _ => error,
        }
    }
}

fn name_len(name: &str) -> u8 {
    u8::try_from(name.len()).expect("a checked name has at most 255 bytes")
}

/// The head of a group of this memory.
pub(super) fn head(flags: u32, options: ObjectOptions, deposit: &Deposit) -> ObjectCreateHead {
    let with = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
    let flags = flags
        | with(options.replace, object_flags::REPLACE)
        | with(options.keep.is_some(), object_flags::KEEP)
        | with(options.pin, object_flags::PIN)
        | with(options.evictable, object_flags::EVICTABLE);
    let (driver_data, driver_data_len) = deposit.driver_data.to_block();
    ObjectCreateHead {
        flags: flags.into(),
        device: deposit.device.into(),
        size_bytes: deposit.size_bytes.into(),
        fd_offset: deposit.fd_offset.into(),
        ttl_ms: options.keep.map_or(0, to_ms).into(),
        credits_wanted: 0.into(),
        kind: deposit.kind as u8,
        driver_data_len,
        reserved: 0.into(),
        driver_data,
    }
}

/// The head of a group in a memfd.
pub(super) fn host_head(flags: u32, options: ObjectOptions, size_bytes: u64) -> ObjectCreateHead {
    head(flags, options, &Deposit::new(MemoryKind::Memfd, size_bytes))
}

/// A time to live; more than nothing is not 0, which means as long as may be.
fn to_ms(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Begins a group; its number.
pub(super) fn create(
    connection: &Connection,
    head: &ObjectCreateHead,
    items: &Items<'_>,
    first: Range<usize>,
    fd: BorrowedFd<'_>,
    deadline: Deadline,
) -> Result<u64, Error> {
    let call =
        Call { deposits: 1, ..call("create", Kind::ObjectCreate, Kind::ObjectCreated, deadline) };
    let mut pause = AGAIN_FIRST;
    loop {
        claim(connection, 1, deadline)?;
        let write = |writer: &mut Writer| {
            writer.push(head);
            items.write(writer, first.clone())
        };
        let read = |reply: Reply<'_>| Ok(reply.message.body_as::<ObjectCreated>()?.group.get());
        match connection.call(call, &[fd], write, read) {
            // The credit was taken back, or what others have ended under the name is still to be swept.
            Err(error) if error.code == ErrorCode::Again && !deadline.is_answered() => {
                connection.pause(pause.min(deadline.remaining()));
                pause = (pause * 2).min(AGAIN_LAST);
            }
            outcome => return outcome.map_err(|error| items.named(error, first.start)),
        }
    }
}

/// Adds the objects from this one on, in as many messages as it takes.
pub(super) fn add(
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
pub(super) fn add_all(
    connection: &Connection,
    group: u64,
    items: &Items<'_>,
    deadline: Deadline,
) -> Result<(), Error> {
    let range = items.chunk(0, size_of::<ObjectGroup>());
    match range.len() == items.objects.len() {
        true => add_some(connection, group, items, range, deadline),
        false => {
            let context = format!("add: {} objects", items.objects.len());
            let why = "their names and metadata exceed one message of 32 KiB; add less at a time";
            Err(Error::new(ErrorCode::TooLong, context).because(why))
        }
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
    let call = call("add", Kind::ObjectAdd, Kind::ObjectReply, deadline);
    let status = connection.call(call, &[], write, one_status);
    let done = status.and_then(|status| to_result(status, "add"));
    done.map_err(|error| items.named(error, begin))
}

fn one_status(reply: Reply<'_>) -> Result<Status, DecodeError> {
    let statuses = reply.message.items::<Status>()?;
    check_count(Kind::ObjectReply, statuses.len(), 1)?;
    Ok(statuses[0])
}

fn to_result(status: Status, context: impl Into<String>) -> Result<(), Error> {
    match status.is_ok() {
        true => Ok(()),
        false => Err(Error::from_status(status, context)),
    }
}

/// Seals a group; its version.
pub(super) fn seal(connection: &Connection, group: u64, deadline: Deadline) -> Result<u64, Error> {
    let call = call("seal", Kind::ObjectSeal, Kind::ObjectSealed, deadline);
    let write = |writer: &mut Writer| {
        writer.push(&ObjectGroup { group: group.into() });
        0
    };
    let mut pause = AGAIN_FIRST;
    loop {
        let read = |reply: Reply<'_>| Ok(reply.message.body_as::<ObjectSealed>()?.version.get());
        match connection.call(call, &[], write, read) {
            // Another broker takes over.
            Err(error) if error.code == ErrorCode::Again && !deadline.is_answered() => {
                connection.pause(pause.min(deadline.remaining()));
                pause = (pause * 2).min(AGAIN_LAST);
            }
            sealed => return sealed,
        }
    }
}

/// Gives up a group, and waits for no answer.
pub(super) fn abort(connection: &Connection, group: u64) {
    connection.post(OneWay::Abort(group));
}

// --- getting --------------------------------------------------------------------------------------

/// The names of one get or stat, checked.
#[derive(Clone, Debug)]
pub(super) struct Names(Box<[Arc<str>]>);

impl Names {
    /// Those of a get, which go in one message.
    pub fn for_get<N: AsRef<str>>(names: &[N]) -> Result<Self, Error> {
        let names = Self::checked("get", names)?;
        let count = names.chunk(0, size_of::<ObjectGetHead>()).len();
        if names.0.is_empty() {
            let why = "name 1 to 253 objects";
            return Err(Error::new(ErrorCode::BadHandle, "get: no names").because(why));
        }
        match count == names.len() {
            true => Ok(names),
            false => {
                let context = format!("get: {} names", names.len());
                Err(Error::new(ErrorCode::TooLong, context).because(
                    "one get has at most 253 names, and 32 KiB of them; get less at a time",
                ))
            }
        }
    }

    fn checked<N: AsRef<str>>(what: &str, names: &[N]) -> Result<Self, Error> {
        let checked = |name: &N| {
            check_name(what, name.as_ref())?;
            Ok(Arc::from(name.as_ref()))
        };
        names.iter().map(checked).collect::<Result<_, _>>().map(Names)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn get(&self, at: usize) -> &str {
        &self.0[at]
    }

    pub fn shared(&self, at: usize) -> &Arc<str> {
        &self.0[at]
    }

    /// Those at these places.
    pub fn some(&self, places: &[usize]) -> Names {
        Names(places.iter().map(|at| Arc::clone(&self.0[*at])).collect())
    }

    fn chunk(&self, begin: usize, head: usize) -> Range<usize> {
        let sizes = self.0[begin..].iter().map(|name| size_of::<ObjectName>() + name.len());
        chunk(begin, sizes, head)
    }

    fn write(&self, writer: &mut Writer, range: Range<usize>) -> usize {
        for name in &self.0[range.clone()] {
            writer.push(&ObjectName { name_len: name_len(name) });
            writer.push(name.as_bytes());
        }
        range.len()
    }

    /// Names the object whose index the broker has said, and says of one that a get has waited for how it stands.
    fn named(&self, error: Error) -> Error {
        use ErrorCode::{NotFound, NotSealed, TimedOut};
        let Some(status) = error.status else { return error };
        let index = usize::try_from(status.value.get()).ok();
        let name = index.and_then(|index| self.0.get(index));
        let Some(name) = name.filter(|_| matches!(error.code, NotFound | NotSealed | TimedOut))
        else {
            return error;
        };
        let error = Error { context: format!("get {name}"), ..error };
        match (error.code, status.pid.get()) {
            (NotSealed, pid) => error.because(format!(
                "pid {pid} is making it; wait for it with a deadline"
            )),
            (TimedOut, 0) => error.because(
                "the deadline passed, and no object has this name yet; see that its maker runs, for the same user",
            ),
            (TimedOut, pid) => error.because(format!(
                "the deadline passed, and pid {pid} is still making it; allow more time"
            )),
            _ => error,
        }
    }
}

/// The answer to a get.
#[derive(Debug)]
pub(super) struct Answer {
    /// One for each group.
    pub grants: Vec<Grant>,
    /// One for each name.
    pub items: Vec<AnswerItem>,
}

/// What a name leads to.
#[derive(Debug)]
pub(super) struct AnswerItem {
    pub version: u64,
    pub offset: u64,
    pub size_bytes: u64,
    /// Index among the grants.
    pub grant: usize,
    pub metadata_bytes: usize,
    /// All of it, or none.
    pub metadata: Box<[u8]>,
}

fn get_call(deadline: Deadline) -> Call<'static> {
    call("get", Kind::ObjectGet, Kind::ObjectGot, deadline)
}

fn write_get(flags: u32, names: &Names, deadline: Deadline) -> impl Fn(&mut Writer) -> usize {
    move |writer| {
        let deadline_ms = deadline.answer_ms().into();
        writer.push(&ObjectGetHead { deadline_ms, flags: flags.into() });
        names.write(writer, 0..names.len())
    }
}

/// Gets, and waits for the answer.
pub(super) fn get(
    connection: &Connection,
    flags: u32,
    names: &Names,
    deadline: Deadline,
) -> Result<Answer, Error> {
    let read = |reply: Reply<'_>| read_got(connection, reply, names);
    let answer = connection.call(get_call(deadline), &[], write_get(flags, names, deadline), read);
    answer.flatten().map_err(|error| names.named(error))
}

/// Starts to get; `None`: it does not fit now.
pub(super) fn start_get(
    connection: &Connection,
    flags: u32,
    names: &Names,
    deadline: Deadline,
) -> Result<Option<u64>, Error> {
    connection.start(&get_call(deadline), &[], write_get(flags, names, deadline))
}

/// The answer to a get that was started, if it has come.
pub(super) fn look_for_got(
    connection: &Connection,
    id: u64,
    names: &Names,
    deadline: Deadline,
) -> Option<Result<Answer, Error>> {
    let read = |reply: Reply<'_>| read_got(connection, reply, names);
    let answer = connection.look(id, &get_call(deadline), read)?;
    Some(answer.flatten().map_err(|error| names.named(error)))
}

/// What cannot be used of it is given back.
fn read_got(
    connection: &Connection,
    reply: Reply<'_>,
    names: &Names,
) -> Result<Result<Answer, Error>, DecodeError> {
    let got = reply.message.got()?;
    check_count(Kind::ObjectGot, got.items.len(), names.len())?;
    let mut arrived = Arrived::new(reply.fds, usize::from(reply.message.fd_count));
    let mut blocks = got.driver_data.iter();
    let mut grants = Vec::with_capacity(got.grants.len());
    for item in got.grants {
        let driver_data = match item.driver_data_len {
            0 => DriverData::EMPTY,
            len => blocks.next().map_or(DriverData::EMPTY, |b| DriverData::from_block(b, len)),
        };
        grants.push(outcome(connection, item, None, driver_data, &mut arrived));
    }
    let mut metadata = got.metadata;
    let mut items = Vec::with_capacity(got.items.len());
    for item in got.items {
        let (here, rest) = metadata.split_at(item.metadata_here.into());
        metadata = rest;
        items.push(AnswerItem {
            version: item.version.get(),
            offset: item.offset.get(),
            size_bytes: item.size_bytes.get(),
            grant: item.grant.get().into(),
            metadata_bytes: item.metadata_len.get().into(),
            metadata: here.into(),
        });
    }
    let granted = |outcome: Outcome| match outcome {
        Outcome::Granted(grant) => Ok(grant),
        Outcome::NoRoom => Err(Error::new(ErrorCode::LocalFdLimit, "get")),
        Outcome::Again => Err(Error::new(ErrorCode::Again, "get")),
        Outcome::Refused(status) => Err(Error::from_status(status, "get")),
    };
    Ok(grants
        .into_iter()
        .map(granted)
        .collect::<Result<_, _>>()
        .map(|grants| Answer { grants, items }))
}

// --- names ----------------------------------------------------------------------------------------

/// What is to be done with each of some names, one status each.
struct Each<'a, H, W> {
    what: &'static str,
    kind: Kind,
    /// Writes the head, of so many bytes.
    head: (usize, H),
    names: Vec<&'a str>,
    /// Bytes of the fixed part of an item.
    item: usize,
    write: W,
}

impl<H: Fn(&mut Writer), W: Fn(&mut Writer, usize)> Each<'_, H, W> {
    /// Asks for all of them, in as many messages as it takes; those that are to be asked for again, until the deadline.
    fn ask(&self, connection: &Connection, deadline: Deadline) -> Vec<Result<(), Error>> {
        let mut outcomes: Vec<Option<Result<(), Error>>> =
            self.names.iter().map(|_| None).collect();
        let mut open: Vec<usize> = (0..self.names.len()).collect();
        let mut pause = AGAIN_FIRST;
        loop {
            let mut again = Vec::new();
            let mut begin = 0;
            while begin < open.len() {
                let sizes = open[begin..].iter().map(|at| self.item + self.names[*at].len());
                let range = chunk(begin, sizes, self.head.0);
                begin = range.end;
                let asked = &open[range];
                match self.ask_some(connection, asked, deadline) {
                    Err(error) => {
                        asked.iter().for_each(|at| outcomes[*at] = Some(Err(error.clone())))
                    }
                    Ok(statuses) => {
                        for (at, status) in asked.iter().zip(statuses) {
                            let is_again = status.result() == Err(ErrorCode::Again);
                            if is_again && !deadline.is_answered() {
                                again.push(*at);
                                continue;
                            }
                            let context = format!("{} {}", self.what, self.names[*at]);
                            outcomes[*at] = Some(to_result(status, context));
                        }
                    }
                }
            }
            if again.is_empty() {
                break;
            }
            open = again;
            connection.pause(pause.min(deadline.remaining()));
            pause = (pause * 2).min(AGAIN_LAST);
        }
        let outcome = |one: Option<_>| one.expect("each is asked for until it has an outcome");
        outcomes.into_iter().map(outcome).collect()
    }

    fn ask_some(
        &self,
        connection: &Connection,
        asked: &[usize],
        deadline: Deadline,
    ) -> Result<Vec<Status>, Error> {
        let write = |writer: &mut Writer| {
            (self.head.1)(writer);
            for at in asked {
                (self.write)(writer, *at);
                writer.push(self.names[*at].as_bytes());
            }
            asked.len()
        };
        let call = call(self.what, self.kind, Kind::ObjectReply, deadline);
        connection.call(call, &[], write, |reply| {
            let statuses = reply.message.items::<Status>()?;
            check_count(Kind::ObjectReply, statuses.len(), asked.len())?;
            Ok(statuses.to_vec())
        })
    }
}

/// Deletes; one outcome each.
pub(super) fn delete(
    connection: &Connection,
    flags: u32,
    objects: &[(&str, Option<u64>)],
    deadline: Deadline,
) -> Result<Vec<Result<(), Error>>, Error> {
    let names: Vec<&str> = objects.iter().map(|(name, _)| *name).collect();
    names.iter().try_for_each(|name| check_name("delete", name))?;
    let write = |writer: &mut Writer, at: usize| {
        let (name, version) = objects[at];
        let version = version.unwrap_or(0).into();
        writer.push(&ObjectDeleteItem { version, name_len: name_len(name), reserved: [0; 7] });
    };
    let scope = ObjectScope { flags: flags.into(), reserved: 0.into() };
    let head = (size_of_val(&scope), |writer: &mut Writer| {
        writer.push(&scope);
    });
    let (what, kind, item) = ("delete", Kind::ObjectDelete, size_of::<ObjectDeleteItem>());
    Ok(Each { what, kind, head, names, item, write }.ask(connection, deadline))
}

/// Touches; one outcome each.
pub(super) fn touch<N: AsRef<str>>(
    connection: &Connection,
    flags: u32,
    names: &[N],
    touch: Touch,
    deadline: Deadline,
) -> Result<Vec<Result<(), Error>>, Error> {
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    names.iter().try_for_each(|name| check_name("touch", name))?;
    let keep = if touch.keep.is_some() { object_flags::KEEP } else { 0 };
    let pin = match touch.pin {
        None => 0,
        Some(true) => object_flags::PIN,
        Some(false) => object_flags::UNPIN,
    };
    let touch = ObjectTouchHead {
        ttl_ms: touch.keep.map_or(0, to_ms).into(),
        flags: (flags | keep | pin).into(),
        reserved: 0.into(),
    };
    let head = (size_of_val(&touch), |writer: &mut Writer| {
        writer.push(&touch);
    });
    let all = names.clone();
    let write = |writer: &mut Writer, at: usize| {
        writer.push(&ObjectName { name_len: name_len(all[at]) });
    };
    let (what, kind, item) = ("touch", Kind::ObjectTouch, size_of::<ObjectName>());
    Ok(Each { what, kind, head, names, item, write }.ask(connection, deadline))
}

type Infos = Vec<Option<ObjectInfo>>;

/// What is known of each name.
pub(super) fn stat<N: AsRef<str>>(
    connection: &Connection,
    flags: u32,
    names: &[N],
    deadline: Deadline,
) -> Result<Infos, Error> {
    let names = Names::checked("stat", names)?;
    let mut infos = Vec::with_capacity(names.len());
    while infos.len() < names.len() {
        let range = names.chunk(infos.len(), size_of::<ObjectScope>());
        let asked = range.len();
        let write = write_stat(flags, &names, range);
        infos.extend(connection.call(stat_call(deadline), &[], write, |it| read_infos(it, asked))?);
    }
    Ok(infos)
}

fn stat_call(deadline: Deadline) -> Call<'static> {
    call("stat", Kind::ObjectStat, Kind::ObjectRecords, deadline)
}

fn write_stat(flags: u32, names: &Names, range: Range<usize>) -> impl Fn(&mut Writer) -> usize {
    move |writer| {
        writer.push(&ObjectScope { flags: flags.into(), reserved: 0.into() });
        names.write(writer, range.clone())
    }
}

/// The infos of the first names that were asked for, one at least.
fn read_infos(reply: Reply<'_>, asked: usize) -> Result<Infos, DecodeError> {
    let (_, records) = reply.message.head_and_named::<ObjectPage, ObjectRecord>()?;
    let infos: Infos =
        records.map(|(record, name, metadata)| ObjectInfo::of(record, name, metadata)).collect();
    match (1..=asked).contains(&infos.len()) {
        true => Ok(infos),
        false => {
            let (got, expected) = (infos.len(), asked);
            Err(DecodeError::Length { kind: Kind::ObjectRecords, got, expected })
        }
    }
}

/// Starts a stat of the first names that fit; `None`: it does not fit now.
pub(super) fn start_stat(
    connection: &Connection,
    flags: u32,
    names: &Names,
    deadline: Deadline,
) -> Result<Option<u64>, Error> {
    let range = names.chunk(0, size_of::<ObjectScope>());
    connection.start(&stat_call(deadline), &[], write_stat(flags, names, range))
}

/// The answer to a stat that was started, if it has come: of the first names.
pub(super) fn look_for_stat(
    connection: &Connection,
    id: u64,
    names: &Names,
    deadline: Deadline,
) -> Option<Result<Infos, Error>> {
    connection.look(id, &stat_call(deadline), |reply| read_infos(reply, names.len()))
}

/// One page of the names with a prefix.
pub(super) struct Page {
    pub infos: Vec<ObjectInfo>,
    /// The next one is behind this name; empty: nothing was looked at.
    pub last: String,
    pub is_last: bool,
}

/// One page of the names with a prefix that are behind `after`.
pub(super) fn list(
    connection: &Connection,
    flags: u32,
    prefix: &str,
    after: &str,
    deadline: Deadline,
) -> Result<Page, Error> {
    let head = prefix_head("list", flags, prefix, after)?;
    let call = call("list", Kind::ObjectList, Kind::ObjectRecords, deadline);
    let write = |writer: &mut Writer| {
        writer.push(&head).push(prefix.as_bytes()).push(after.as_bytes());
        0
    };
    connection.call(call, &[], write, |reply| {
        let (page, records) = reply.message.head_and_named::<ObjectPage, ObjectRecord>()?;
        let (mut infos, mut last) = (Vec::new(), &[][..]);
        for (record, name, metadata) in records {
            // The last may only be a place to go on behind.
            infos.extend(ObjectInfo::of(record, name, metadata));
            last = name;
        }
        let last = String::from_utf8_lossy(last).into_owned();
        Ok(Page { infos, last, is_last: page.done.get() != 0 })
    })
}

fn prefix_head(what: &str, flags: u32, prefix: &str, after: &str) -> Result<ObjectPrefix, Error> {
    let prefix_len = u8::try_from(prefix.len()).map_err(|_| {
        Error::new(ErrorCode::TooLong, format!("{what}: a prefix of {} bytes", prefix.len()))
    })?;
    let (flags, after_len) = (flags.into(), name_len(after));
    Ok(ObjectPrefix { flags, prefix_len, after_len, reserved: 0.into() })
}

/// From now on the client is told of names with this prefix.
pub(super) fn watch(
    connection: &Connection,
    flags: u32,
    prefix: &str,
    deadline: Deadline,
) -> Result<(), Error> {
    let head = prefix_head("watch", flags, prefix, "")?;
    let call = call("watch", Kind::ObjectWatch, Kind::ObjectReply, deadline);
    let write = |writer: &mut Writer| {
        writer.push(&head).push(prefix.as_bytes());
        0
    };
    let status = connection.call(call, &[], write, one_status)?;
    to_result(status, format!("watch {prefix}"))
}

/// No more; waits for no answer.
pub(super) fn unwatch(connection: &Connection, flags: u32, prefix: &str) {
    let flags = flags | object_flags::UNWATCH;
    let Ok(head) = prefix_head("watch", flags, prefix, "") else { return };
    let call = call("watch", Kind::ObjectWatch, Kind::ObjectReply, Deadline::from_ms(0));
    let write = |writer: &mut Writer| {
        writer.push(&head).push(prefix.as_bytes());
        0
    };
    // Where it does not fit, events go on to come, for nobody.
    if let Ok(Some(id)) = connection.start(&call, &[], write) {
        connection.forget(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_when_items_are_large_then_no_message_exceeds_its_bound_and_none_is_empty() {
        let metadata = [1; METADATA_BYTES];
        let names: Vec<String> = (0..MAX_GROUP).map(|at| format!("{at:0255}")).collect();
        let object = |name| NewObject { metadata: &metadata, ..NewObject::new(name, 0) };
        let objects: Vec<NewObject<'_>> = names.iter().map(|name| object(name.as_str())).collect();
        let places = vec![0..0; objects.len()];
        let items = Items::of(&objects, &places).unwrap();
        let (mut begin, mut messages) = (0, 0);
        while begin < objects.len() {
            let range = items.chunk(begin, size_of::<ObjectGroup>());
            assert!(range.start == begin && !range.is_empty());
            let mut writer = Writer::new();
            writer.start(Kind::ObjectAdd, 1).push(&ObjectGroup { group: 1.into() });
            items.write(&mut writer, range.clone());
            assert!(writer.len() <= MAX_OBJECT_MESSAGE_BYTES, "{}", writer.len());
            (begin, messages) = (range.end, messages + 1);
        }
        assert!(messages > 1);
    }

    #[test]
    fn items_when_a_name_cannot_be_or_is_there_twice_then_refused_by_name() {
        let of = |names: &[&str]| {
            let objects: Vec<NewObject<'_>> =
                names.iter().map(|it| NewObject::new(it, 1)).collect();
            let places = vec![0..1; objects.len()];
            Items::of(&objects, &places).map(drop)
        };
        of(&["a", "b"]).unwrap();
        for (names, code) in [
            (vec!["a", ""], ErrorCode::BadHandle),
            (vec!["nul\0"], ErrorCode::BadHandle),
            (vec!["a", "a"], ErrorCode::BadHandle),
            (vec!["x".repeat(256).as_str()], ErrorCode::TooLong),
        ] {
            assert_eq!(of(&names).unwrap_err().code, code, "{names:?}");
        }
        let many: Vec<String> = (0..=MAX_GROUP).map(|at| at.to_string()).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(of(&many).unwrap_err().code, ErrorCode::TooLong);
    }

    #[test]
    fn names_when_more_than_a_message_then_too_long() {
        let names = |count: usize, bytes: usize| {
            let names: Vec<String> = (0..count).map(|at| format!("{at:0bytes$}")).collect();
            Names::for_get(&names).map(|names| names.len())
        };
        assert_eq!(names(MAX_BATCH, 100).unwrap(), MAX_BATCH);
        for too_many in [names(MAX_BATCH + 1, 4), names(MAX_BATCH, 255)] {
            assert_eq!(too_many.unwrap_err().code, ErrorCode::TooLong);
        }
        assert_eq!(names(0, 1).unwrap_err().code, ErrorCode::BadHandle);
    }

    #[test]
    fn named_when_a_get_has_waited_then_it_says_for_what() {
        let names = Names::for_get(&["a", "b"]).unwrap();
        let said = |code, pid: u32| {
            let status = Status { pid: pid.into(), ..Status::with_value(code, 1) };
            names.named(Error::from_status(status, "get")).to_string()
        };
        let unknown = said(ErrorCode::TimedOut, 0);
        assert!(unknown.starts_with("get b: TIMED_OUT: ") && unknown.contains("no object"));
        assert!(said(ErrorCode::TimedOut, 77).contains("pid 77 is still making it"));
        assert!(said(ErrorCode::NotSealed, 77).contains("pid 77 is making it"));
        assert!(said(ErrorCode::NotFound, 0).starts_with("get b: NOT_FOUND: "));
    }

    #[test]
    fn to_ms_when_less_than_one_then_one_and_when_more_than_all_then_all() {
        assert_eq!(to_ms(Duration::ZERO), 0);
        assert_eq!(to_ms(Duration::from_micros(1)), 1);
        assert_eq!(to_ms(Duration::from_millis(5)), 5);
        assert_eq!(to_ms(Duration::MAX), u64::MAX);
    }
}
