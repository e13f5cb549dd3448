//! Fds that are fetched ahead, over a connection: the socket for them, asked for once, and the message that asks for more.
//! Must never wait, nor keep the socket of a connection that has ended.

use super::ahead::{AheadEnd, Taken};
use super::connection::Connection;
use crate::limits::AHEAD_RETRY;
use crate::sync::lock;
use fdbroker_protocol::{AllocationId, Handle, Kind};
use std::time::Instant;

impl Connection {
    /// Whether the broker is to be asked for a socket now. The next caller hears no, until the answer is there.
    pub fn may_ask_for_ahead(&self, now: Instant) -> bool {
        let mut end = lock(&self.ahead);
        let may_ask = match *end {
            AheadEnd::Unasked => true,
            AheadEnd::Without(again) => again.is_some_and(|again| again <= now),
            AheadEnd::Open(..) => false,
        };
        if may_ask {
            *end = AheadEnd::Without(Some(now + AHEAD_RETRY));
        }
        may_ask
    }

    /// The broker's answer.
    pub fn set_ahead(&self, end: AheadEnd) {
        *lock(&self.ahead) = end;
        if !self.is_usable() {
            // Killed meanwhile, and closed before it was set.
            self.close_ahead();
        }
    }

    /// Asks for these ahead. Never waits; `false`: there is no socket for them, or the message does not fit now.
    pub fn send_fetch(&self, handles: &[Handle]) -> bool {
        if handles.is_empty() || !matches!(*lock(&self.ahead), AheadEnd::Open(..)) {
            return false;
        }
        let mut outbox = lock(&self.outbox);
        let Ok(socket) = self.proved_socket() else { return false };
        if self.flush(&mut outbox, socket).is_err() {
            return false;
        }
        outbox.writer.start(Kind::Fetch, 0);
        handles.iter().for_each(|handle| {
            outbox.writer.push(&handle.prefix);
        });
        let message = outbox.writer.finish(handles.len(), 0);
        fdbroker_scm::send(socket, message, &[]).is_ok()
    }

    /// The fd of an allocation, if it was sent ahead.
    pub fn take_ahead(&self, id: AllocationId) -> Taken {
        lock(&self.ahead).take(id, || self.common.page.is_current(id))
    }
}
