//! Resolving: from a virtual fd to the handle behind it, and to those of its neighbours.
//! Must never take a lease: the handles are acquired like any others.

use crate::deadline::Deadline;
use crate::error::Error;
use crate::limits::{AGAIN_FIRST, AGAIN_LAST};
use crate::wire::call::{Call, Reply};
use crate::wire::connection::Connection;
use fdbroker_protocol::limits::MAX_NEIGHBOURS;
use fdbroker_protocol::message::Resolve;
use fdbroker_protocol::{DecodeError, ErrorCode, Handle, HandleItem, Kind, VirtualFd, Writer};

/// The handle behind a virtual fd first, then at most `neighbours` more; `flags`: what else the
/// broker is to do. While the owner has not come back after a crash of the broker the answer is
/// AGAIN: it asks again until the deadline.
pub(crate) fn resolve(
    connection: &Connection,
    fd: VirtualFd,
    (neighbours, flags): (u32, u16),
    deadline: Deadline,
) -> Result<Vec<Handle>, Error> {
    let neighbours = neighbours.min(MAX_NEIGHBOURS);
    let wanted = Resolve {
        virtual_fd: fd.number().cast_unsigned().into(),
        neighbours: u16::try_from(neighbours).unwrap_or(u16::MAX).into(),
        flags: flags.into(),
    };
    let mut pause = AGAIN_FIRST;
    loop {
        match resolve_now(connection, fd, &wanted, deadline) {
            Err(error) if error.code == ErrorCode::Again && !deadline.is_answered() => {
                connection.pause(pause.min(deadline.remaining()));
                pause = (pause * 2).min(AGAIN_LAST);
            }
            outcome => return outcome.map_err(|error| named(error, fd)),
        }
    }
}

/// The words of BAD_HANDLE are about 64 bytes, which nobody has passed here; those of AGAIN do not
/// say for what to wait.
fn named(error: Error, fd: VirtualFd) -> Error {
    match error.code {
        ErrorCode::BadHandle => error.because(format!(
            "virtual fd {fd} names no live allocation of this user at this broker: it has ended, or the number is another \
             broker's; get a new one from the memory's owner"
        )),
        ErrorCode::Again => error.because(format!(
            "the owner of virtual fd {fd} has not come back to the broker since that was started anew; ask again later"
        )),
        _ => error,
    }
}

fn resolve_now(
    connection: &Connection,
    fd: VirtualFd,
    wanted: &Resolve,
    deadline: Deadline,
) -> Result<Vec<Handle>, Error> {
    let call = Call::new("resolve", Kind::Resolve, Kind::Resolved, deadline);
    let write = |writer: &mut Writer| {
        writer.push(wanted);
        0
    };
    let most = 1 + usize::from(wanted.neighbours.get());
    connection.call(call, &[], write, |reply: Reply<'_>| {
        let items = reply.message.items::<HandleItem>()?;
        let handles: Vec<Handle> = items.iter().map(|item| item.get()).collect();
        let is_asked_for = handles.first().is_some_and(|it| it.virtual_fd() == Some(fd));
        if is_asked_for && handles.len() <= most {
            Ok(handles)
        } else {
            Err(DecodeError::Unexpected(Kind::Resolved))
        }
    })
}
