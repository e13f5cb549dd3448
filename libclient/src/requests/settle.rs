//! Waiting for memory to come back: the broker has closed its fds of what this client has ended.
//! Must never wait beyond the deadline and its grace.

use crate::deadline::Deadline;
use crate::error::Error;
use crate::wire::again::Again;
use crate::wire::call::Call;
use crate::wire::connection::Connection;
use fdbroker_protocol::Kind;

pub(crate) fn settle(connection: &Connection, deadline: Deadline) -> Result<(), Error> {
    let call = Call {
        what: "settle",
        kind: Kind::Settle,
        answer: Kind::Settled,
        until: deadline.given_up_at(),
        deposits: 0,
        ends: &[],
    };
    let mut again = Again::new();
    loop {
        match connection.call(call, &[], |_| 0, |_| Ok(())) {
            // Many threads of this client settle.
            Err(error) => again.pause_after(error, connection, deadline)?,
            settled => return settled,
        }
    }
}
