//! Fds that are fetched ahead, over a connection: the socket for them, asked for once, and the
//! message that asks for more. Must never wait, nor keep the socket of a connection that has ended,
//! nor what nobody takes.

use super::ahead::{AheadEnd, Taken};
use super::connection::Connection;
use crate::books::one_way::OneWay;
use crate::limits::AHEAD_RETRY;
use crate::sync::lock;
use fdbroker_protocol::{AllocationId, Handle, Kind};
use std::time::Instant;

impl Connection {
    /// Whether the broker is to be asked for a socket now. The next caller hears no, until the
    /// answer is there.
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

    /// Asks for these ahead. Never waits; `false`: there is no socket for them, or the message does
    /// not fit now.
    pub fn send_fetch(&self, handles: &[Handle]) -> bool {
        if handles.is_empty() || !self.has_ahead() {
            return false;
        }
        let mut outbox = lock(&self.outbox);
        let Ok(socket) = self.proved_socket() else { return false };
        if self.flush(&mut outbox, socket).is_err() {
            return false;
        }
        outbox.writer.start(Kind::Fetch, 0);
        handles.iter().for_each(|handle| {
            outbox.writer.push(&handle.prefix.to_bytes());
        });
        let message = outbox.writer.finish(handles.len(), 0);
        let is_sent = fdbroker_scm::send(socket, message, &[]).is_ok();
        drop(outbox);
        if is_sent {
            self.note_fetched(handles);
        }
        is_sent
    }

    /// Whether there is a socket for what is sent ahead.
    pub fn has_ahead(&self) -> bool {
        matches!(*lock(&self.ahead), AheadEnd::Open(..))
    }

    /// These were asked for ahead.
    pub fn note_fetched(&self, handles: &[Handle]) {
        let ids = handles.iter().map(Handle::id);
        if !handles.is_empty() && lock(&self.ahead).note_asked(ids, Instant::now()) {
            self.common.wake.kick();
        }
    }

    /// The fd of an allocation, if it was sent ahead.
    pub fn take_ahead(&self, id: AllocationId) -> Taken {
        lock(&self.ahead).take(id, || self.common.page.is_current(id))
    }

    /// Gives back what was sent ahead and not taken in time. When to look again.
    pub fn look_ahead(&self, now: Instant) -> Option<Instant> {
        let (leases, due) = lock(&self.ahead).look(now);
        self.post_all(leases.into_iter().map(OneWay::Released));
        due
    }

    /// Gives back all that was sent ahead and not taken; which leases.
    pub fn give_ahead_back(&self) -> Vec<u64> {
        let leases = lock(&self.ahead).drop_all();
        self.post_all(leases.iter().copied().map(OneWay::Released));
        leases
    }
}
