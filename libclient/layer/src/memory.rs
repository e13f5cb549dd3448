//! Device memory that the broker still has an fd of: waited for, a moment, where a program would
//! miss it. Must never wait longer than the memory is worth, nor where no broker is.

use crate::connection::State;
use crate::limits::{CLOSE_TIMEOUT, MEMORY_PAUSE, MEMORY_TRIES};
use fdbroker_client::{Client, Deadline, Error};

/// Waits until the broker has closed its fds of what this process has ended: the memory is the
/// device's again. 50 ms at most.
///
/// # Errors
/// Those of [`Client::settle`]: the memory may still be taken.
pub fn settle(client: &Client) -> Result<(), Error> {
    client.settle(Deadline::after(CLOSE_TIMEOUT))
}

/// Has the driver allocate memory, and again where it finds none (`is_full` of its answer): the
/// broker may still have fds of what was freed a moment ago, or of a process that has just died,
/// and other processes of what they have not given back yet.
/// Gives the last answer.
pub fn allocate<S: State, A: Copy>(is_full: impl Fn(A) -> bool, below: impl Fn() -> A) -> A {
    let mut answer = below();
    if !is_full(answer) {
        return answer;
    }
    let Some(connected) = S::connection().connected() else { return answer };
    // What comes of it, the next tries show.
    let _ = settle(&connected.client);
    for _ in 0..=MEMORY_TRIES {
        let drained = connected.drains.count();
        answer = below();
        if !is_full(answer) {
            break;
        }
        connected.drains.wait(drained, MEMORY_PAUSE);
    }
    answer
}
