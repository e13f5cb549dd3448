//! The loop's chores beside the turns of clients, at most one in a wake. Must never let a chore
//! wait for ever, however many clients are ready.

use crate::limits::{MOST_WAKES_WITHOUT_CHORE, WORK_PER_TURN, WORK_PER_WAKE};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chore {
    /// Noting what the closers have closed.
    Reports,
    /// What is due in the core, or was left for later.
    Core,
    /// Looking for clients that have read.
    InFlight,
    /// Looking at what memfds pin.
    Files,
    /// Sending events.
    Events,
    /// Answering administrators.
    Admins,
    /// Closing sockets of ended connections.
    Sockets,
    /// Keeping what outlives this broker small.
    Kept,
    /// Accepting connections.
    Accept,
}

impl Chore {
    pub const ALL: [Chore; 9] = [
        Chore::Reports,
        Chore::Core,
        Chore::InFlight,
        Chore::Files,
        Chore::Events,
        Chore::Admins,
        Chore::Sockets,
        Chore::Kept,
        Chore::Accept,
    ];
}

/// How a wake is divided between clients and chores.
#[derive(Default)]
pub(crate) struct Schedule {
    /// Work done for clients in this wake.
    work: usize,
    /// The amount of it at which the turn of the client at hand is over.
    turn_ends_at: usize,
    /// Wakes since the last that had time for a chore.
    wakes_without_chore: u32,
    /// Which of [`Chore::ALL`] is next.
    next_chore: usize,
}

impl Schedule {
    /// A wake begins. Whether it has time for clients.
    pub fn begin_wake(&mut self) -> bool {
        self.work = 0;
        let has_time = self.wakes_without_chore < MOST_WAKES_WITHOUT_CHORE;
        if has_time {
            self.wakes_without_chore += 1;
        }
        has_time
    }

    /// Work done for a client.
    pub fn spend(&mut self, work: usize) {
        self.work += work;
    }

    /// A client's turn begins.
    pub fn begin_turn(&mut self) {
        self.work += 1;
        self.turn_ends_at = self.work + WORK_PER_TURN;
    }

    /// Whether the turn goes on.
    pub fn is_turn_left(&self) -> bool {
        self.work < self.turn_ends_at
    }

    /// Whether further clients may have a turn in this wake.
    pub fn is_work_left(&self) -> bool {
        self.work < WORK_PER_WAKE
    }

    /// Whether this wake has time for a chore, which takes as long as a turn: not after a long
    /// turn, and every other time while clients wait for theirs.
    pub fn begin_chore(&mut self, is_nobody_ready: bool) -> bool {
        let has_time = self.is_work_left() && (is_nobody_ready || self.wakes_without_chore > 1);
        if has_time {
            self.wakes_without_chore = 0;
        }
        has_time
    }

    /// The next chore of which `is_waiting` says that there is something to do.
    pub fn next_chore(&self, is_waiting: impl Fn(Chore) -> bool) -> Option<Chore> {
        let (first, second) = Chore::ALL.split_at(self.next_chore);
        second.iter().chain(first).copied().find(|chore| is_waiting(*chore))
    }

    /// It has its turn: the one after it is next.
    pub fn begin(&mut self, chore: Chore) {
        let at = Chore::ALL.iter().position(|other| *other == chore);
        self.next_chore = at.map_or(0, |at| (at + 1) % Chore::ALL.len());
    }
}
