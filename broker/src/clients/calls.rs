//! Times the socket calls of the loop and charges each to its peer: the user that a message comes
//! from or goes to. Must never cost a usual call more than two readings of the clock.

use crate::clients::debts::{Call, Debts};
use crate::clock;
use crate::kernel::{message_us, thread_cpu_us};
use crate::limits::{CPU_LOOK_US, LONG_CALL_US, MOST_MESSAGE_US};
use fdbroker_core::{DomainKey, Now};

pub struct Calls {
    pub debts: Debts,
    /// The processor's time of the loop, and when that was read.
    look: (Now, u64),
    /// When the last call ended, or the wake began.
    last: Now,
}

impl Calls {
    /// None yet. `is_shared`: by several users.
    pub fn new(is_shared: bool) -> Self {
        // Where a message takes long by itself, what its peer did to it cannot be told: on an
        // emulated machine, whose processor is taken away unseen.
        let is_told = is_shared && message_us().is_ok_and(|took_us| took_us <= MOST_MESSAGE_US);
        if is_shared && !is_told {
            log::info!("this machine is too slow to tell what users do to their sockets");
        }
        Calls { debts: Debts::new(is_told), look: (Now(0), 0), last: Now(0) }
    }

    pub fn begin_wake(&mut self, now: Now) {
        self.last = now;
        if now.0 >= self.look.0.0 + CPU_LOOK_US || self.debts.has_suspects(now) {
            self.look = (now, thread_cpu_us());
        }
    }

    /// Makes a call that carries so many fds to or from `user`.
    pub fn time<T>(&mut self, user: DomainKey, fds: usize, call: impl FnOnce() -> T) -> T {
        let began = self.begin();
        let done = call();
        self.end(user, began, fds);
        done
    }

    /// The time at which a call begins.
    pub fn begin(&mut self) -> Now {
        let began = clock::now();
        if began.0 >= self.last.0 + LONG_CALL_US {
            self.excuse(began);
        }
        began
    }

    /// A call that began then has ended.
    pub fn end(&mut self, user: DomainKey, began: Now, fds: usize) {
        let ended = clock::now();
        self.last = ended;
        let call = Call { ended, took_us: ended.0 - began.0, cpu_us: 0, fds };
        match call.is_usual() {
            true if self.debts.is_empty() => {}
            true => self.debts.note(user, &call),
            false => self.note_unusual(user, began, call),
        }
    }

    /// The loop's own work between two calls has taken long. It never does by itself.
    #[cold]
    fn excuse(&mut self, now: Now) {
        let worked_us = self.worked_us(now, self.last).saturating_sub(LONG_CALL_US);
        self.debts.excuse(worked_us, now);
    }

    /// When the call before ended.
    pub fn last(&self) -> Now {
        self.last
    }

    #[cold]
    fn note_unusual(&mut self, user: DomainKey, began: Now, call: Call) {
        let cpu_us = self.worked_us(call.ended, began);
        self.debts.note(user, &Call { cpu_us, ..call });
    }

    /// What the processor has worked from `began` to now: all since it was looked at, but for as
    /// long as it may have worked before.
    fn worked_us(&mut self, now: Now, began: Now) -> u64 {
        let cpu_us = thread_cpu_us();
        let before_us = began.0.saturating_sub(self.look.0.0);
        let worked_us = cpu_us.saturating_sub(self.look.1).saturating_sub(before_us);
        self.look = (now, cpu_us);
        worked_us
    }
}
