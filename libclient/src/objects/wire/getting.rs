//! Gets: names in one message, and its answer. Must never send a name that cannot be one.

use super::making::name_len;
use super::message::{check_name, chunk};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::requests::got::read_got;
use crate::wire::call::{Call, Reply};
use crate::wire::connection::Connection;
use fdbroker_protocol::object::{ObjectGetHead, ObjectName};
use fdbroker_protocol::{ErrorCode, Kind, Writer};
use std::ops::Range;
use std::sync::Arc;

pub use crate::requests::got::{Answer, AnswerItem};

/// The names of one get or stat, checked.
#[derive(Clone, Debug)]
pub struct Names(Box<[Arc<str>]>);

impl Names {
    /// Those of a get, which go in one message.
    pub fn for_get<N: AsRef<str>>(names: &[N]) -> Result<Self, Error> {
        let names = Self::checked("get", names)?;
        let count = names.chunk(0, size_of::<ObjectGetHead>()).len();
        if names.0.is_empty() {
            let why = "name 1 to 253 objects";
            return Err(Error::new(ErrorCode::BadHandle, "get: no names").because(why));
        }
        if count == names.len() {
            Ok(names)
        } else {
            let context = format!("get: {} names", names.len());
            Err(Error::new(ErrorCode::TooLong, context)
                .because("one get has at most 253 names, and 32 KiB of them; get less at a time"))
        }
    }

    pub(super) fn checked<N: AsRef<str>>(what: &str, names: &[N]) -> Result<Self, Error> {
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

    pub(super) fn chunk(&self, begin: usize, head: usize) -> Range<usize> {
        let sizes = self.0[begin..].iter().map(|name| size_of::<ObjectName>() + name.len());
        chunk(begin, sizes, head)
    }

    pub(super) fn write(&self, writer: &mut Writer, range: Range<usize>) -> usize {
        for name in &self.0[range.clone()] {
            writer.push(&ObjectName { name_len: name_len(name) });
            writer.push(name.as_bytes());
        }
        range.len()
    }

    /// Names the object whose index the broker has said, and says of one that a get has waited for
    /// how it stands.
    pub(super) fn named(&self, error: Error) -> Error {
        use ErrorCode::{NotFound, NotSealed, TimedOut};
        let Some(status) = error.status else { return error };
        if error.code == ErrorCode::Again && status.value > 0 {
            let most = status.value;
            return error.because(format!(
                "the names are in more than {most} groups, as many as one answer may have fds now; get fewer at a time"
            ));
        }
        let index = usize::try_from(status.value).ok();
        let name = index.and_then(|index| self.0.get(index));
        let Some(name) = name.filter(|_| matches!(error.code, NotFound | NotSealed | TimedOut))
        else {
            return error;
        };
        let error = Error { context: format!("get {name}"), ..error };
        match (error.code, status.pid) {
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

fn get_call(deadline: Deadline) -> Call<'static> {
    Call::new("get", Kind::ObjectGet, Kind::ObjectGot, deadline)
}

fn write_get(flags: u32, names: &Names, deadline: Deadline) -> impl Fn(&mut Writer) -> usize {
    move |writer| {
        let deadline_ms = deadline.answer_ms().into();
        writer.push(&ObjectGetHead { deadline_ms, flags: flags.into() });
        names.write(writer, 0..names.len())
    }
}

/// Gets, and waits for the answer.
pub fn get(
    connection: &Connection,
    flags: u32,
    names: &Names,
    deadline: Deadline,
) -> Result<Answer, Error> {
    let read = |reply: Reply<'_>| read_got(connection, reply, names.len());
    // The broker was replaced while this waited, or this client had not read what came before.
    connection.until_ready(deadline, || {
        let write = write_get(flags, names, deadline);
        let answer = connection.call(get_call(deadline), &[], write, read);
        answer.flatten().map_err(|error| names.named(error))
    })
}

/// Starts to get; `None`: it does not fit now.
pub fn start_get(
    connection: &Connection,
    flags: u32,
    names: &Names,
    deadline: Deadline,
) -> Result<Option<u64>, Error> {
    connection.start(&get_call(deadline), &[], write_get(flags, names, deadline))
}

/// The answer to a get that was started, if it has come.
pub fn look_for_got(
    connection: &Connection,
    id: u64,
    names: &Names,
    deadline: Deadline,
) -> Option<Result<Answer, Error>> {
    let read = |reply: Reply<'_>| read_got(connection, reply, names.len());
    let answer = connection.look(id, &get_call(deadline), read)?;
    Some(answer.flatten().map_err(|error| names.named(error)))
}
