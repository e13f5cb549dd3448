//! Waiting for what nobody waits for: that releases and frees have reached the broker and are
//! carried out. Must never wait beyond the deadline and its grace.

use crate::deadline::Deadline;
use crate::error::Error;
use crate::wire::call::{Call, check_count};
use crate::wire::connection::Connection;
use fdbroker_protocol::{Kind, Status};

/// Returns when the broker has carried out all that was posted before. It serves one client's
/// messages in their order, so the answer to an unregister of nothing speaks for what was sent
/// before it. Unregisters may gather while others are answered, so those of the caller may need
/// some rounds to be sent.
pub(crate) fn flush(connection: &Connection, deadline: Deadline) -> Result<(), Error> {
    let call = Call::new("flush", Kind::Unregister, Kind::UnregisterReply, deadline);
    let (posted, _) = connection.unregisters();
    loop {
        let (_, sent) = connection.unregisters();
        connection.call(
            call,
            &[],
            |_| 0,
            |reply| check_count(Kind::UnregisterReply, reply.message.items::<Status>()?.len(), 0),
        )?;
        if sent >= posted {
            return Ok(());
        }
        if deadline.has_passed() {
            return Err(Error::timed_out("flush: freed buffers still wait for their turn"));
        }
    }
}

/// Waits until the broker has closed its fds of what this client has ended.
pub(crate) fn settle(connection: &Connection, deadline: Deadline) -> Result<(), Error> {
    let call = Call::new("settle", Kind::Settle, Kind::Settled, deadline);
    // Many threads of this client settle.
    connection.until_ready(deadline, || connection.call(call, &[], |_| 0, |_| Ok(())))
}
