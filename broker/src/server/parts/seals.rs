//! Seals that wait until a lane has opened their memory for readers: a few at a time, the users in
//! turn, one of each user. Must never answer a seal, nor start more than there are places for.

use crate::limits::SEALS_AT_ONCE;
use fdbroker_core::{ClientId, GroupId, RequestId};
use std::collections::{BTreeMap, VecDeque};

/// A seal. Its client is not read from meanwhile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seal {
    pub client: ClientId,
    /// Tells the client from a later one of the same number.
    pub serial: u64,
    pub request: RequestId,
    pub group: GroupId,
}

#[derive(Default)]
pub(crate) struct Seals {
    /// By uid; no entry is empty.
    waiting: BTreeMap<u32, VecDeque<Seal>>,
    /// The user that had the last turn.
    turn: u32,
    /// With a lane, by number, and whose.
    under_way: BTreeMap<u64, (u32, Seal)>,
    /// The number given last.
    last: u64,
    /// Fds that were held before, and are not closed yet.
    replaced: usize,
}

impl Seals {
    pub fn wait(&mut self, uid: u32, seal: Seal) {
        self.waiting.entry(uid).or_default().push_back(seal);
    }

    /// The next seal to start, of this user, if there is a place for it. One that hangs takes no
    /// place but its user's.
    pub fn next(&mut self) -> Option<(u32, Seal)> {
        if self.under_way.len() + self.replaced >= SEALS_AT_ONCE {
            return None;
        }
        let is_idle = |uid: &&u32| self.under_way.values().all(|(of, _)| of != *uid);
        let behind = self.waiting.range(self.turn.saturating_add(1)..).map(|(uid, _)| uid);
        let uid = *behind.chain(self.waiting.keys()).find(is_idle)?;
        self.turn = uid;
        let seals = self.waiting.get_mut(&uid)?;
        let seal = seals.pop_front()?;
        if seals.is_empty() {
            self.waiting.remove(&uid);
        }
        Some((uid, seal))
    }

    /// A lane opens its memory: its number.
    pub fn begin(&mut self, uid: u32, seal: Seal) -> u64 {
        self.last += 1;
        self.under_way.insert(self.last, (uid, seal));
        self.last
    }

    /// The lane is done; `None`: the seal was given up.
    pub fn end(&mut self, number: u64) -> Option<Seal> {
        self.under_way.remove(&number).map(|(_, seal)| seal)
    }

    /// The fd that was held before goes to a closer.
    pub fn note_replaced(&mut self) {
        self.replaced += 1;
    }

    /// An fd that was replaced is closed.
    pub fn note_closed(&mut self) {
        self.replaced -= 1;
    }

    /// Gives all of them up.
    pub fn take_all(&mut self) -> Vec<Seal> {
        let waiting = std::mem::take(&mut self.waiting).into_values().flatten();
        let under_way = std::mem::take(&mut self.under_way).into_values().map(|(_, seal)| seal);
        under_way.chain(waiting).collect()
    }
}
