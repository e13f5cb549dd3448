//! Fetching fds ahead: what a program that fetches one after the other will ask for next. Must
//! never bring an fd into the program's table that it has not asked for, nor fail: what is not
//! there ahead is acquired.

use super::acquire::{Arrived, Outcome, outcome};
use super::resolve::resolve;
use crate::books::grant::Grant;
use crate::books::one_way::OneWay;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::limits::AHEAD_RETRY;
use crate::wire::ahead::{AheadEnd, AheadSocket};
use crate::wire::connection::Connection;
use crate::wire::joining::Joining;
use fdbroker_protocol::limits::{AHEAD_BYTES, AHEAD_FDS};
use fdbroker_protocol::message::{Role, resolve_flags};
use fdbroker_protocol::{ErrorCode, Handle, Message, VirtualFd};
use std::time::Instant;

/// Has the broker send the fds behind these ahead, as far as it has room that nobody misses. How
/// many are asked for.
pub(crate) fn fetch(connection: &Connection, handles: &[Handle], deadline: Deadline) -> usize {
    let now = Instant::now();
    connection.look_ahead(now);
    if connection.may_ask_for_ahead(now) {
        connection.set_ahead(ask(connection, now, deadline));
    }
    let count = fitting(handles);
    if connection.send_fetch(&handles[..count]) { count } else { 0 }
}

/// How many of these, the first of them, may be sent ahead at a time.
fn fitting(handles: &[Handle]) -> usize {
    let mut bytes = AHEAD_BYTES;
    let fits = |handle: &&Handle| {
        let left = bytes.checked_sub(handle.size_bytes);
        bytes = left.unwrap_or(0);
        left.is_some()
    };
    handles.iter().take(AHEAD_FDS).take_while(fits).count()
}

/// What is behind a virtual fd, and how many of the fds behind these handles are asked for ahead
/// with it: none before [`fetch`] has asked for a socket.
pub(crate) fn resolve_ahead(
    connection: &Connection,
    fd: VirtualFd,
    neighbours: u32,
    deadline: Deadline,
) -> Result<(Vec<Handle>, usize), Error> {
    let is_ahead = connection.has_ahead();
    let flags = if is_ahead { resolve_flags::AHEAD } else { 0 };
    let handles = resolve(connection, fd, (neighbours, flags), deadline)?;
    let count = if is_ahead { fitting(&handles) } else { 0 };
    connection.note_fetched(&handles[..count]);
    Ok((handles, count))
}

fn ask(connection: &Connection, now: Instant, deadline: Deadline) -> AheadEnd {
    match Joining::new(connection.membership.clone(), Role::Ahead).finish(deadline) {
        Ok(socket) => AheadEnd::Open(AheadSocket::new(socket)),
        Err(Error { code: ErrorCode::NotSupported, .. }) => AheadEnd::Without(None),
        Err(_) => AheadEnd::Without(Some(now + AHEAD_RETRY)),
    }
}

/// The grant for a handle, if it was sent ahead, its allocation lives and it still lies there.
pub(crate) fn take(connection: &Connection, handle: &Handle) -> Option<Result<Grant, Error>> {
    let taken = connection.take_ahead(handle.id());
    connection.post_all(taken.others.into_iter().map(OneWay::Released));
    let message = Message::parse(&taken.bytes).ok()?;
    let (items, blocks) = message.grants().ok()?;
    let item = items.first()?;
    let mut arrived = Arrived::new(&mut taken.fd.into_iter(), message.fd_count.into());
    match outcome(connection, item, Some(handle.prefix), &mut blocks.iter(), &mut arrived) {
        Outcome::Granted(grant) => Some(Ok(grant)),
        no_room @ Outcome::NoRoom => Some(Err(no_room.into_error(handle))),
        Outcome::Again | Outcome::Refused(_) => None,
    }
}
