//! Which parts of an arena are free, in use, or freed and still leased. Pure bookkeeping: no IO, no
//! lock. Must never give out a range that some consumer may still have mapped.

use crate::books::one_way::OwnerKey;
use crate::deposit::Registration;
use crate::limits::ARENA_WARM_BYTES;
use fdbroker_protocol::AllocationId;
use std::collections::BTreeMap;

/// The ranges of one arena; offsets and spans are multiples of the page size.
#[derive(Debug)]
pub(crate) struct Ranges {
    /// Offset -> bytes; neighbours are merged.
    free: BTreeMap<usize, usize>,
    /// Offset -> what is there.
    used: BTreeMap<usize, Range>,
    /// Parts of `free`, offset -> bytes, that were used and not given back to the system; and their
    /// sum.
    warm: BTreeMap<usize, usize>,
    warm_bytes: usize,
    /// Freed bytes whose drain no broker is going to report, so far.
    orphaned_bytes: usize,
}

#[derive(Debug)]
struct Range {
    span: usize,
    owner_allocation_id: u64,
    state: State,
    registration: Option<Registration>,
    /// A broker that is gone may have granted it under a handle that has ended: nobody can declare
    /// a lease any more, and no broker knows of all consumers that have it mapped.
    is_exposed: bool,
    /// The broker has said that its last lease is gone.
    drained: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A buffer of the application.
    Held,
    /// Freed, its last lease not yet gone.
    Draining,
    /// Freed, and its leases forgotten with the connection. The next broker may take it over.
    Orphaned,
    /// Freed, nobody's, and being given back to the system.
    Emptying,
}

/// A range whose memory goes back to the system, without a lock; then [`Ranges::note_emptied`]
/// frees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the range stays unused until it is noted as emptied"]
pub(crate) struct Emptying {
    pub offset: usize,
    pub span: usize,
}

/// What is left to do after a buffer was freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freed {
    Done,
    /// Unregister it at this connection; the range waits for its drain.
    Unregister(AllocationId),
    /// Give its memory back to the system.
    Empty(Emptying),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub offset: usize,
    pub owner_allocation_id: u64,
}

impl Ranges {
    pub fn new(bytes: usize) -> Self {
        Ranges {
            free: BTreeMap::from([(0, bytes)]),
            used: BTreeMap::new(),
            warm: BTreeMap::new(),
            warm_bytes: 0,
            orphaned_bytes: 0,
        }
    }

    /// Takes the first free range of `span` bytes.
    pub fn take(&mut self, span: usize, owner_allocation_id: u64) -> Option<Taken> {
        let (offset, room) = self.free.iter().find(|(_, room)| **room >= span)?;
        let (offset, room) = (*offset, *room);
        self.free.remove(&offset);
        if room > span {
            self.free.insert(offset + span, room - span);
        }
        self.cool(offset, offset + span);
        let range = Range {
            span,
            owner_allocation_id,
            state: State::Held,
            registration: None,
            is_exposed: false,
            drained: false,
        };
        self.used.insert(offset, range);
        Some(Taken { offset, owner_allocation_id })
    }

    /// The largest free range and the sum of all.
    pub fn room(&self) -> (usize, usize) {
        let largest = self.free.values().copied().max().unwrap_or(0);
        (largest, self.free.values().sum())
    }

    pub fn registration(&self, offset: usize) -> Option<&Registration> {
        self.used.get(&offset)?.registration.as_ref()
    }

    /// A registration of a held range is about to be sent: what was drained before no longer
    /// counts.
    pub fn note_sending(&mut self, offset: usize) {
        if let Some(range) = self.used.get_mut(&offset) {
            range.drained = false;
        }
    }

    /// `false`: it was so already (by another thread meanwhile), and now counts twice at the
    /// broker.
    pub fn note_registered(&mut self, offset: usize, registration: Registration) -> bool {
        let Some(range) = self.used.get_mut(&offset) else { return true };
        let id = registration.id();
        range.registration.replace(registration).is_none_or(|before| before.id() != id)
    }

    /// The application is done with it.
    ///
    /// `end` ends its registration; whether the broker is told, and so tells when it is drained.
    pub fn free(&mut self, offset: usize, end: impl FnOnce(&Registration) -> bool) -> Freed {
        let Some(range) = self.used.get_mut(&offset) else { return Freed::Done };
        debug_assert_eq!(range.state, State::Held);
        let registration = range.registration.take();
        let is_told = registration.as_ref().is_some_and(end);
        match registration.filter(|_| !range.drained) {
            None if range.is_exposed => {
                range.state = State::Orphaned;
                self.orphaned_bytes += range.span;
                Freed::Done
            }
            None => self.give_back(offset).map_or(Freed::Done, Freed::Empty),
            Some(registration) if is_told => {
                range.state = State::Draining;
                Freed::Unregister(registration.id())
            }
            Some(_) => {
                range.state = State::Orphaned;
                self.orphaned_bytes += range.span;
                Freed::Done
            }
        }
    }

    /// The last lease of this allocation is gone.
    pub fn note_drained(&mut self, offset: usize, owner_allocation_id: u64) -> Option<Emptying> {
        let range = self.find(offset, owner_allocation_id)?;
        match range.state {
            State::Held => range.drained = true,
            State::Draining if range.is_exposed => self.orphan(offset),
            State::Orphaned if range.is_exposed => {}
            State::Draining | State::Orphaned => return self.give_back(offset),
            State::Emptying => {}
        }
        None
    }

    /// A freed range is known to the broker of the moment, which is going to say when it is
    /// drained.
    pub fn note_adopted(&mut self, offset: usize, owner_allocation_id: u64) {
        let Some(range) = self.find(offset, owner_allocation_id) else { return };
        if range.state == State::Orphaned && !range.is_exposed {
            range.state = State::Draining;
            self.orphaned_bytes -= self.used[&offset].span;
        }
    }

    /// The system has its memory: the range is free.
    pub fn note_emptied(&mut self, emptied: Emptying) {
        debug_assert_eq!(self.used.get(&emptied.offset).map(|r| r.state), Some(State::Emptying));
        self.release(emptied.offset);
    }

    /// A registration has ended with its broker.
    pub fn note_lost(&mut self, offset: usize, id: AllocationId) {
        let range = self.used.get_mut(&offset);
        if let Some(range) = range
            && range.registration.as_ref().is_some_and(|registration| registration.id() == id)
        {
            range.registration = None;
            range.is_exposed = true;
        }
    }

    /// The connection is lost: what was leased is reported drained only if the next broker takes it
    /// over. What is held goes on there; that broker calls nothing drained before all have had the
    /// time to declare their leases.
    pub fn note_disconnected(&mut self) {
        for range in self.used.values_mut().filter(|range| range.state == State::Draining) {
            range.state = State::Orphaned;
            self.orphaned_bytes += range.span;
        }
    }

    /// Freed bytes that are not free yet.
    pub fn held_back_bytes(&self) -> usize {
        let freed = self.used.values().filter(|range| range.state != State::Held);
        freed.map(|range| range.span).sum()
    }

    /// Whether the allocation is there, held, and the one meant.
    pub fn is_held(&self, offset: usize, owner_allocation_id: u64) -> bool {
        self.used.get(&offset).is_some_and(|range| {
            range.state == State::Held && range.owner_allocation_id == owner_allocation_id
        })
    }

    /// Bytes of a range.
    pub fn span(&self, offset: usize) -> Option<usize> {
        self.used.get(&offset).map(|range| range.span)
    }

    pub fn orphaned_bytes(&self) -> usize {
        self.orphaned_bytes
    }

    /// The application knows that nobody uses the orphaned ranges any more: how many bytes, and
    /// what of them goes back to the system first.
    pub fn reclaim_orphans(&mut self) -> (usize, Vec<Emptying>) {
        let is_orphan =
            |(offset, range): (&usize, &Range)| (range.state == State::Orphaned).then_some(*offset);
        let orphans: Vec<usize> = self.used.iter().filter_map(is_orphan).collect();
        let bytes = self.orphaned_bytes;
        let emptying = orphans.into_iter().filter_map(|offset| self.give_back(offset)).collect();
        // Nor those still held: whoever had them is gone too.
        self.used.values_mut().for_each(|range| range.is_exposed = false);
        (bytes, emptying)
    }

    fn find(&mut self, offset: usize, owner_allocation_id: u64) -> Option<&mut Range> {
        self.used.get_mut(&offset).filter(|range| range.owner_allocation_id == owner_allocation_id)
    }

    fn orphan(&mut self, offset: usize) {
        if let Some(range) = self.used.get_mut(&offset) {
            range.state = State::Orphaned;
            self.orphaned_bytes += range.span;
        }
    }

    /// Nobody uses the range any more. What is kept warm is free at once; the rest only when the
    /// system has its memory, so that nobody is given a range that is about to become zeros, and
    /// none that is free goes away.
    fn give_back(&mut self, offset: usize) -> Option<Emptying> {
        let range = self.used.get_mut(&offset)?;
        let span = range.span;
        if range.state == State::Orphaned {
            self.orphaned_bytes -= span;
        }
        if self.warm_bytes + span > ARENA_WARM_BYTES {
            range.state = State::Emptying;
            return Some(Emptying { offset, span });
        }
        self.release(offset);
        self.warm.insert(offset, span);
        self.warm_bytes += span;
        None
    }

    fn release(&mut self, offset: usize) {
        let Some(range) = self.used.remove(&offset) else { return };
        let (mut begin, mut span) = (offset, range.span);
        if let Some((before, room)) = self.free.range(..begin).next_back()
            && before + room == begin
        {
            (begin, span) = (*before, room + span);
        }
        if let Some(after) = self.free.remove(&(offset + range.span)) {
            span += after;
        }
        self.free.insert(begin, span);
    }

    /// What of the range was warm is in use from now on.
    fn cool(&mut self, begin: usize, end: usize) {
        while let Some((offset, span)) = self.warm.range(..end).next_back() {
            let (offset, span) = (*offset, *span);
            if offset + span <= begin {
                return;
            }
            self.warm.remove(&offset);
            self.warm_bytes -= span;
            for (from, to) in [(offset, begin), (end, offset + span)] {
                if from < to {
                    self.warm.insert(from, to - from);
                    self.warm_bytes += to - from;
                }
            }
        }
    }
}

/// The key of a range as the broker names it.
pub(crate) fn key(base: u64, offset: usize, owner_allocation_id: u64) -> OwnerKey {
    OwnerKey { base: base + offset as u64, owner_allocation_id }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fdbroker_protocol::Handle;

    const PAGE: usize = 4096;

    fn registration(slot: u32, epoch: u64) -> Registration {
        let mut handle = Handle::from_bytes([0; 64]);
        handle.prefix.slot = slot;
        handle.prefix.generation = 1;
        Registration { handle, token: [0; 16], epoch }
    }

    #[test]
    fn take_when_freed_unregistered_then_merged_and_reused() {
        let mut ranges = Ranges::new(4 * PAGE);
        let taken: Vec<usize> =
            (0..4).map(|id| ranges.take(PAGE, id).expect("room").offset).collect();
        assert_eq!(taken, [0, PAGE, 2 * PAGE, 3 * PAGE]);
        assert_eq!(ranges.take(PAGE, 9), None);
        for offset in [PAGE, 3 * PAGE, 2 * PAGE, 0] {
            assert_eq!(ranges.free(offset, |_| true), Freed::Done);
        }
        assert_eq!(ranges.room(), (4 * PAGE, 4 * PAGE));
    }

    #[test]
    fn free_when_registered_then_reused_only_after_drained() {
        let mut ranges = Ranges::new(PAGE);
        ranges.take(PAGE, 7).expect("room");
        assert!(ranges.note_registered(0, registration(3, 1)));
        let id = AllocationId { slot: 3, generation: 1 };
        assert_eq!(ranges.free(0, |_| true), Freed::Unregister(id));
        assert_eq!(ranges.take(PAGE, 8), None);
        assert_eq!(ranges.note_drained(0, 6), None);
        assert_eq!(ranges.take(PAGE, 8), None, "another allocation was drained");
        assert_eq!(ranges.note_drained(0, 7), None);
        assert_eq!(ranges.take(PAGE, 8).map(|taken| taken.offset), Some(0));
    }

    #[test]
    fn free_when_revoked_and_drained_before_then_free_at_once() {
        let mut ranges = Ranges::new(PAGE);
        ranges.take(PAGE, 7).expect("room");
        assert!(ranges.note_registered(0, registration(3, 1)));
        assert_eq!(ranges.note_drained(0, 7), None);
        assert_eq!(ranges.free(0, |_| true), Freed::Done);
        assert_eq!(ranges.room().0, PAGE);
    }

    #[test]
    fn disconnected_when_leased_then_orphaned_until_taken_over_or_reclaimed() {
        let mut ranges = Ranges::new(2 * PAGE);
        ranges.take(PAGE, 7).expect("room");
        ranges.take(PAGE, 8).expect("room");
        assert!(ranges.note_registered(0, registration(3, 1)));
        assert!(ranges.note_registered(PAGE, registration(4, 1)));
        ranges.free(0, |_| true);
        ranges.note_disconnected();
        assert_eq!(ranges.orphaned_bytes(), PAGE);
        assert_eq!(ranges.registration(PAGE), Some(&registration(4, 1)), "it goes on");
        ranges.free(PAGE, |_| true);
        assert_eq!(ranges.note_drained(PAGE, 8), None);
        assert_eq!((ranges.orphaned_bytes(), ranges.room().0), (PAGE, PAGE));
        assert_eq!(ranges.reclaim_orphans(), (PAGE, vec![]));
        assert_eq!(ranges.room(), (2 * PAGE, 2 * PAGE));
        // The next broker may have taken it over all the same.
        ranges.take(PAGE, 9).expect("room");
        ranges.note_adopted(0, 7);
        assert_eq!(ranges.note_drained(0, 7), None);
        assert_eq!((ranges.orphaned_bytes(), ranges.room().0), (0, PAGE));
    }

    #[test]
    fn adopted_when_freed_around_three_losses_then_reused_after_drained_like_any_other() {
        let mut ranges = Ranges::new(2 * PAGE);
        for id in [7, 8] {
            let offset = ranges.take(PAGE, id.into()).expect("room").offset;
            assert!(ranges.note_registered(offset, registration(id, 1)));
        }
        ranges.free(0, |_| true);
        for _ in 0..3 {
            ranges.note_disconnected();
            assert_eq!((ranges.orphaned_bytes(), ranges.held_back_bytes()), (PAGE, PAGE));
            ranges.note_adopted(0, 7);
            assert_eq!((ranges.orphaned_bytes(), ranges.held_back_bytes()), (0, PAGE));
        }
        ranges.note_disconnected();
        assert_eq!(ranges.free(PAGE, |_| false), Freed::Done);
        assert_eq!(ranges.orphaned_bytes(), 2 * PAGE);
        ranges.note_adopted(PAGE, 8);
        assert_eq!(ranges.note_drained(PAGE, 8), None);
        // The broker before had drained it, and its word was lost.
        assert_eq!(ranges.note_drained(0, 7), None);
        assert_eq!((ranges.held_back_bytes(), ranges.orphaned_bytes()), (0, 0));
        assert_eq!(ranges.room().0, 2 * PAGE);
    }

    #[test]
    fn adopted_when_a_registration_was_lost_before_then_exposed_for_good() {
        let mut ranges = Ranges::new(PAGE);
        ranges.take(PAGE, 7).expect("room");
        assert!(ranges.note_registered(0, registration(3, 1)));
        ranges.note_disconnected();
        ranges.note_lost(0, AllocationId { slot: 3, generation: 1 });
        assert!(ranges.note_registered(0, registration(5, 2)));
        ranges.note_disconnected();
        ranges.free(0, |_| false);
        ranges.note_adopted(0, 7);
        assert_eq!(ranges.note_drained(0, 7), None);
        assert_eq!(ranges.orphaned_bytes(), PAGE);
    }

    #[test]
    fn free_when_connection_lost_and_not_yet_told_then_orphaned() {
        let mut ranges = Ranges::new(PAGE);
        ranges.take(PAGE, 7).expect("room");
        assert!(ranges.note_registered(0, registration(3, 1)));
        assert_eq!(ranges.free(0, |_| false), Freed::Done);
        assert_eq!(ranges.orphaned_bytes(), PAGE);
    }

    #[test]
    fn lost_when_held_then_registered_anew_and_still_exposed() {
        let mut ranges = Ranges::new(PAGE);
        ranges.take(PAGE, 7).expect("room");
        assert!(ranges.note_registered(0, registration(3, 1)));
        ranges.note_lost(0, AllocationId { slot: 4, generation: 1 });
        assert!(ranges.registration(0).is_some(), "another one was lost");
        ranges.note_lost(0, AllocationId { slot: 3, generation: 1 });
        assert_eq!(ranges.registration(0), None);
        assert!(ranges.note_registered(0, registration(5, 2)));
        ranges.free(0, |_| true);
        assert_eq!(ranges.note_drained(0, 7), None);
        assert_eq!(ranges.orphaned_bytes(), PAGE, "holders of the lost one are unknown");
    }

    const WARM: usize = ARENA_WARM_BYTES;

    #[test]
    fn free_when_more_than_is_kept_warm_then_not_free_before_it_is_emptied() {
        let mut ranges = Ranges::new(3 * WARM);
        let taken: Vec<usize> =
            (0..3).map(|id| ranges.take(WARM, id).expect("room").offset).collect();
        assert_eq!(ranges.free(taken[0], |_| false), Freed::Done);
        let emptying = Emptying { offset: taken[1], span: WARM };
        assert_eq!(ranges.free(taken[1], |_| false), Freed::Empty(emptying));
        assert_eq!(ranges.room(), (WARM, WARM));
        assert!(!ranges.is_held(taken[1], 1), "a recall of it is answered STALE");
        assert_eq!(ranges.note_drained(taken[1], 1), None);
        ranges.note_disconnected();
        ranges.note_emptied(emptying);
        assert_eq!(ranges.room(), (2 * WARM, 2 * WARM));
    }

    #[test]
    fn take_when_warm_then_room_for_as_much_warm_memory_again() {
        let mut ranges = Ranges::new(8 * WARM);
        for id in 0..100 {
            let one = ranges.take(WARM, id).expect("room").offset;
            assert_eq!(
                ranges.free(one, |_| false),
                Freed::Done,
                "the same warm range again and again"
            );
        }
        // A part of it in use: the rest is still warm, the part comes back warm.
        let part = ranges.take(3 * PAGE, 100).expect("room");
        assert_eq!((part.offset, ranges.warm_bytes), (0, WARM - 3 * PAGE));
        let middle = ranges.take(PAGE, 101).expect("room");
        assert_eq!(ranges.free(part.offset, |_| false), Freed::Done);
        assert_eq!(ranges.warm_bytes, WARM - PAGE);
        let all = ranges.take(2 * WARM, 102).expect("room");
        assert_eq!(ranges.warm_bytes, 3 * PAGE, "what it covers is in use");
        assert_eq!(ranges.free(middle.offset, |_| false), Freed::Done);
        assert!(matches!(ranges.free(all.offset, |_| false), Freed::Empty(_)));
        let sum: usize = ranges.warm.values().sum();
        assert_eq!((sum, ranges.warm_bytes), (4 * PAGE, 4 * PAGE));
    }

    #[test]
    fn reclaim_orphans_when_more_than_is_kept_warm_then_the_rest_is_emptied() {
        let mut ranges = Ranges::new(3 * WARM);
        for id in 0..3 {
            let offset = ranges.take(WARM, id.into()).expect("room").offset;
            assert!(ranges.note_registered(offset, registration(id, 1)));
            ranges.free(offset, |_| false);
        }
        let (bytes, emptying) = ranges.reclaim_orphans();
        assert_eq!((bytes, emptying.len(), ranges.room().1), (3 * WARM, 2, WARM));
        emptying.into_iter().for_each(|one| ranges.note_emptied(one));
        assert_eq!(ranges.room(), (3 * WARM, 3 * WARM));
    }
}
