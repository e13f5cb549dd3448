//! Waiting for what nobody waits for: that releases and frees have reached the broker and are
//! carried out. Must never wait beyond the deadline and its grace.

use crate::deadline::Deadline;
use crate::error::Error;
use crate::wire::call::{Call, check_count};
use crate::wire::connection::Connection;
use fdbroker_protocol::Kind;

/// Returns when the broker has carried out all that was posted before. It serves one client's
/// messages in their order, so the answer to an unregister of nothing speaks for what was sent
/// before it.
pub(crate) fn flush(connection: &Connection, deadline: Deadline) -> Result<(), Error> {
    let kind = Kind::UnregisterReply;
    let call = Call::new("flush", Kind::Unregister, kind, deadline);
    until_sent(connection, deadline, || {
        connection.call(
            call,
            &[],
            |_| 0,
            |reply| check_count(kind, reply.message.statuses()?.len(), 0),
        )
    })
}

/// Waits until the broker has closed its fds of what this client has ended.
pub(crate) fn settle(connection: &Connection, deadline: Deadline) -> Result<(), Error> {
    let call = Call::new("settle", Kind::Settle, Kind::Settled, deadline);
    // Many threads of this client settle.
    let call =
        || connection.until_ready(deadline, || connection.call(call, &[], |_| 0, |_| Ok(())));
    until_sent(connection, deadline, call)
}

/// Calls until a call was made behind all that was posted before. Unregisters may gather while
/// others are answered, so those of the caller may need some rounds to be sent.
fn until_sent(
    connection: &Connection,
    deadline: Deadline,
    call: impl Fn() -> Result<(), Error>,
) -> Result<(), Error> {
    let (posted, _) = connection.unregisters();
    loop {
        let (_, sent) = connection.unregisters();
        call()?;
        if sent >= posted {
            return Ok(());
        }
        if deadline.has_passed() {
            return Err(Error::timed_out("what was freed before still waits for its turn"));
        }
    }
}
