//! Requests about names: delete, touch, stat, list, watch. Must never take an answer for more names
//! than were asked for.

use super::super::info::ObjectInfo;
use super::super::options::Touch;
use super::getting::Names;
use super::making::{name_len, one_status, to_ms, to_result};
use super::message::{check_name, chunk};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::limits::{AGAIN_FIRST, AGAIN_LAST};
use crate::wire::call::{Call, Reply, check_count};
use crate::wire::connection::Connection;
use fdbroker_protocol::object::{
    ObjectDeleteItem, ObjectName, ObjectPage, ObjectPrefix, ObjectRecord, ObjectScope,
    ObjectTouchHead, object_flags,
};
use fdbroker_protocol::{DecodeError, ErrorCode, Kind, Status, Writer};
use std::ops::Range;

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
    /// Asks for all of them, in as many messages as it takes; those that are to be asked for again,
    /// until the deadline.
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
                            outcomes[*at] =
                                Some(to_result(status, context).map_err(Error::not_again));
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
        let call = Call::new(self.what, self.kind, Kind::ObjectReply, deadline);
        connection.call(call, &[], write, |reply| {
            let statuses = reply.message.statuses()?;
            check_count(Kind::ObjectReply, statuses.len(), asked.len())?;
            Ok(statuses.collect())
        })
    }
}

/// Deletes; one outcome each.
pub fn delete(
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
pub fn touch<N: AsRef<str>>(
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
pub fn stat<N: AsRef<str>>(
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
    Call::new("stat", Kind::ObjectStat, Kind::ObjectRecords, deadline)
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
    if (1..=asked).contains(&infos.len()) {
        Ok(infos)
    } else {
        let (got, expected) = (infos.len(), asked);
        Err(DecodeError::Length { kind: Kind::ObjectRecords, got, expected })
    }
}

/// Starts a stat of the first names that fit; `None`: it does not fit now.
pub fn start_stat(
    connection: &Connection,
    flags: u32,
    names: &Names,
    deadline: Deadline,
) -> Result<Option<u64>, Error> {
    let range = names.chunk(0, size_of::<ObjectScope>());
    connection.start(&stat_call(deadline), &[], write_stat(flags, names, range))
}

/// The answer to a stat that was started, if it has come: of the first names.
pub fn look_for_stat(
    connection: &Connection,
    id: u64,
    names: &Names,
    deadline: Deadline,
) -> Option<Result<Infos, Error>> {
    connection.look(id, &stat_call(deadline), |reply| read_infos(reply, names.len()))
}

/// One page of the names with a prefix.
pub struct Page {
    pub infos: Vec<ObjectInfo>,
    /// The next one is behind this name; empty: nothing was looked at.
    pub last: String,
    pub is_last: bool,
}

/// One page of the names with a prefix that are behind `after`.
pub fn list(
    connection: &Connection,
    flags: u32,
    prefix: &str,
    after: &str,
    deadline: Deadline,
) -> Result<Page, Error> {
    let head = prefix_head("list", flags, prefix, after)?;
    let call = Call::new("list", Kind::ObjectList, Kind::ObjectRecords, deadline);
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
pub fn watch(
    connection: &Connection,
    flags: u32,
    prefix: &str,
    deadline: Deadline,
) -> Result<(), Error> {
    let head = prefix_head("watch", flags, prefix, "")?;
    let call = Call::new("watch", Kind::ObjectWatch, Kind::ObjectReply, deadline);
    let write = |writer: &mut Writer| {
        writer.push(&head).push(prefix.as_bytes());
        0
    };
    let status = connection.call(call, &[], write, one_status)?;
    to_result(status, format!("watch {prefix}"))
}

/// No more; waits for no answer.
pub fn unwatch(connection: &Connection, flags: u32, prefix: &str) {
    let flags = flags | object_flags::UNWATCH;
    let Ok(head) = prefix_head("watch", flags, prefix, "") else { return };
    let call = Call::new("watch", Kind::ObjectWatch, Kind::ObjectReply, Deadline::from_ms(0));
    let write = |writer: &mut Writer| {
        writer.push(&head).push(prefix.as_bytes());
        0
    };
    // Where it does not fit, events go on to come, for nobody.
    if let Ok(Some(id)) = connection.start(&call, &[], write) {
        connection.forget(id);
    }
}
