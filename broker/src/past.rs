//! The last events, for administrators who ask afterwards. Must never take more memory than a fixed
//! number of events, nor let what one domain does push out all events of another.

use crate::limits::{EVENT_LISTS, EVENTS_KEPT};
use fdbroker_core::{DomainKey, JobKey, PodKey};
use fdbroker_protocol::admin::{EventKind, EventRecord};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use zerocopy::{FromBytes, IntoBytes};

/// What an event does not say of whose it is: its pod and its job.
pub type Of = (PodKey, Option<JobKey>);

/// What events of one list have in common: their domain, and whether they are of the kinds that
/// come with each use of memory. So neither another domain nor a burst of recalls pushes out a
/// refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    domain: DomainKey,
    is_frequent: bool,
}

#[derive(Debug, Default)]
pub struct Past {
    /// By their numbers, which rise. Growing copies no events on the loop.
    events: BTreeMap<u64, (EventRecord, Of)>,
    last: u64,
    /// The numbers of the events of a key. At most [`EVENT_LISTS`]; further keys share the last.
    lists: Vec<(Key, VecDeque<u64>)>,
    dropped: u64,
}

/// [`Past`] for a successor.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct SavedPast {
    /// [`EventRecord`]s, oldest first.
    pub events: Vec<u8>,
    /// Whose each event is, in the same order.
    pub of: Vec<Of>,
    pub dropped: u64,
}

fn key_of(event: &EventRecord, pod: PodKey) -> Key {
    use EventKind::{Deposit, End, Evict, Grant, Recall};
    let kind = EventKind::from_number(event.kind.get());
    let domain = DomainKey { pod, ..DomainKey::new(event.listener.get(), event.uid.get()) };
    Key { domain, is_frequent: matches!(kind, Some(Deposit | End | Evict | Grant | Recall)) }
}

impl Past {
    /// How many events there are, and how many were dropped for newer ones.
    pub fn counts(&self) -> (u64, u64) {
        (self.events.len() as u64, self.dropped)
    }

    /// One more; the oldest of the longest list makes room.
    pub fn add(&mut self, event: EventRecord, of: Of) {
        if self.events.len() >= EVENTS_KEPT {
            self.drop_one();
        }
        let list = self.list_of(key_of(&event, of.0));
        self.last += 1;
        self.lists[list].1.push_back(self.last);
        self.events.insert(self.last, (event, of));
    }

    /// The list of a key: its own, an empty one, or, when there is none, the last.
    fn list_of(&mut self, key: Key) -> usize {
        let own = self.lists.iter().position(|(of, list)| *of == key && !list.is_empty());
        let empty = || self.lists.iter().position(|(_, list)| list.is_empty());
        if let Some(at) = own.or_else(empty) {
            self.lists[at].0 = key;
            return at;
        }
        if self.lists.len() < EVENT_LISTS {
            self.lists.push((key, VecDeque::new()));
        }
        self.lists.len() - 1
    }

    fn drop_one(&mut self) {
        let longest = self.lists.iter_mut().max_by_key(|(_, list)| list.len());
        if let Some(oldest) = longest.and_then(|(_, list)| list.pop_front()) {
            self.events.remove(&oldest);
            self.dropped = self.dropped.saturating_add(1);
        }
    }

    /// All events and whose they are, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (&EventRecord, Of)> {
        self.events.values().map(|(event, of)| (event, *of))
    }

    pub fn save(&self) -> SavedPast {
        let events = self.iter().flat_map(|(event, _)| event.as_bytes().iter().copied()).collect();
        let of = self.iter().map(|(_, of)| of).collect();
        SavedPast { events, of, dropped: self.dropped }
    }

    /// Goes on with the events of another broker, before there are any of this one.
    pub fn restore(&mut self, saved: &SavedPast) {
        let events = saved.events.chunks_exact(size_of::<EventRecord>());
        for (event, of) in events.zip(&saved.of) {
            if let Ok(event) = EventRecord::read_from_bytes(event) {
                self.add(event, *of);
            }
        }
        self.dropped = self.dropped.saturating_add(saved.dropped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    fn add(past: &mut Past, kind: EventKind, uid: u32, count: usize) {
        let (kind, uid) = ((kind as u32).into(), uid.into());
        for number in 0..count as u64 {
            let unix_us = number.into();
            let event = EventRecord { kind, uid, unix_us, ..EventRecord::new_zeroed() };
            past.add(event, (PodKey::NONE, Some(JobKey(number))));
        }
    }

    fn of(past: &Past, kind: EventKind, uid: u32) -> Vec<u64> {
        let is_it =
            |event: &&EventRecord| (event.kind.get(), event.uid.get()) == (kind as u32, uid);
        past.iter().map(|(event, _)| event).filter(is_it).map(|it| it.unix_us.get()).collect()
    }

    #[test]
    fn events_when_one_domain_floods_then_its_own_oldest_go_and_all_others_stay() {
        let mut past = Past::default();
        add(&mut past, EventKind::Silent, 1, 3);
        add(&mut past, EventKind::Refusal, 2, 5);
        add(&mut past, EventKind::Recall, 2, EVENTS_KEPT + 100);
        assert_eq!(past.counts(), (EVENTS_KEPT as u64, 108));
        assert_eq!(of(&past, EventKind::Silent, 1), [0, 1, 2]);
        assert_eq!(of(&past, EventKind::Refusal, 2), [0, 1, 2, 3, 4]);
        let recalls = of(&past, EventKind::Recall, 2);
        assert_eq!((recalls.len(), recalls[0]), (EVENTS_KEPT - 8, 108));
        assert!(recalls.is_sorted());
    }

    #[test]
    fn events_when_two_domains_flood_then_each_has_half() {
        let mut past = Past::default();
        for uid in [1, 2] {
            add(&mut past, EventKind::Refusal, uid, EVENTS_KEPT);
        }
        for uid in [1, 2] {
            let events = of(&past, EventKind::Refusal, uid);
            assert_eq!(events.len(), EVENTS_KEPT / 2);
            assert_eq!(events.last(), Some(&(EVENTS_KEPT as u64 - 1)));
        }
    }

    #[test]
    fn events_when_of_more_domains_than_there_are_lists_then_all_are_told_in_order() {
        let mut past = Past::default();
        let uids = 2 * u32::try_from(EVENT_LISTS).expect("few");
        (0..uids).for_each(|uid| add(&mut past, EventKind::Gone, uid, 1));
        let told: Vec<u32> = past.iter().map(|(event, _)| event.uid.get()).collect();
        assert_eq!(told, (0..uids).collect::<Vec<_>>());
        assert_eq!(past.lists.len(), EVENT_LISTS);
    }

    #[test]
    fn events_when_saved_then_a_successor_has_the_same_and_a_damaged_state_does_no_harm() {
        let mut past = Past::default();
        add(&mut past, EventKind::Evict, 1, 2);
        add(&mut past, EventKind::Gone, 3, 1);
        let mut saved = past.save();
        let mut other = Past::default();
        other.restore(&saved);
        let all = |past: &Past| past.iter().map(|(event, job)| (*event, job)).collect::<Vec<_>>();
        assert_eq!(all(&other), all(&past));
        saved.events = vec![0xff; size_of::<EventRecord>() * 2 + 1];
        other.restore(&saved);
        assert_eq!(other.counts().0, 5);
    }
}
