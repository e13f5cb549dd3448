//! Events for administrators who watch: each watcher has a bounded queue, and is sent what is in it when its socket
//! takes it. Must cost nothing while nobody watches, and never wait for a slow watcher: the events that it misses are counted.

use crate::admin::chosen::{Chosen, Traits};
use crate::limits::{WATCH_EVENTS_KEPT, WATCH_EVENTS_PER_MESSAGE};
use fdbroker_core::{JobKey, Note};
use fdbroker_protocol::AllocationId;
use fdbroker_protocol::admin::{EventKind, EventRecord};
use fdbroker_protocol::limits::{MAX_ADMIN_MESSAGE_BYTES, NAME_BYTES};
use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

const _: () = assert!(
    16 + (WATCH_EVENTS_PER_MESSAGE + 1) * size_of::<EventRecord>() <= MAX_ADMIN_MESSAGE_BYTES
);

/// What one watcher is still to be told.
pub(crate) struct Watch {
    chosen: Chosen,
    /// Events of before the watch.
    past: VecDeque<EventRecord>,
    /// They were asked for, and not all of them are told.
    is_past_due: bool,
    events: VecDeque<EventRecord>,
    /// Events missed after the last of these.
    lost: u64,
}

impl Watch {
    pub fn new(chosen: Chosen) -> Self {
        Watch {
            chosen,
            past: VecDeque::new(),
            is_past_due: false,
            events: VecDeque::new(),
            lost: 0,
        }
    }

    /// Begins with those of these events that are chosen.
    pub fn begin_with<'e>(
        &mut self,
        past: impl Iterator<Item = (&'e EventRecord, Option<JobKey>)>,
    ) {
        let past = past.filter(|(event, job)| self.wants(event, *job));
        self.past = past.map(|(event, _)| *event).collect();
        self.is_past_due = true;
    }

    /// Whether there is something to tell.
    pub fn is_due(&self) -> bool {
        self.is_past_due || !self.events.is_empty() || self.lost > 0
    }

    fn wants(&self, event: &EventRecord, job: Option<JobKey>) -> bool {
        let (pid, uid) = (event.pid.get(), event.uid.get());
        let is_of_node = uid == u32::MAX && event.slot.get() == u32::MAX;
        let allocation = Some((event.slot.get(), event.generation.get()));
        is_of_node || self.chosen.has(Traits { allocation, pid, uid, job })
    }

    /// `job`: of the client, or of a client that is gone and has left the allocation.
    pub fn offer(&mut self, event: &EventRecord, job: Option<JobKey>) {
        if !self.wants(event, job) {
            return;
        }
        if self.events.len() >= WATCH_EVENTS_KEPT {
            self.lost += 1;
            return;
        }
        if self.lost > 0 {
            let lost = std::mem::take(&mut self.lost);
            self.events.push_back(lost_event(lost, event.unix_us.get()));
        }
        self.events.push_back(*event);
    }

    /// The events of the next message. Of the past, a message that is not full is the last.
    pub fn take(&mut self, unix_us: u64) -> Vec<EventRecord> {
        if self.is_past_due {
            let count = self.past.len().min(WATCH_EVENTS_PER_MESSAGE);
            let events = self.past.drain(..count).collect();
            self.is_past_due = count == WATCH_EVENTS_PER_MESSAGE;
            if !self.is_past_due {
                self.past = VecDeque::new();
            }
            return events;
        }
        let count = self.events.len().min(WATCH_EVENTS_PER_MESSAGE);
        let mut events: Vec<EventRecord> = self.events.drain(..count).collect();
        if self.events.is_empty() && self.lost > 0 {
            events.push(lost_event(std::mem::take(&mut self.lost), unix_us));
        }
        if self.events.is_empty() {
            // A burst's memory goes with it.
            self.events = VecDeque::new();
        }
        events
    }
}

pub(crate) fn lost_event(lost: u64, unix_us: u64) -> EventRecord {
    EventRecord { lost: lost.into(), ..event(&Note::of_node(EventKind::Lost), unix_us) }
}

/// A note as it is told, without the client's name.
pub(crate) fn event(note: &Note, unix_us: u64) -> EventRecord {
    let nothing = AllocationId { slot: u32::MAX, generation: 0 };
    let id = note.id.unwrap_or(nothing);
    EventRecord {
        unix_us: unix_us.into(),
        kind: (note.kind as u32).into(),
        client: note.client.map_or(u32::MAX, |client| client.0).into(),
        pid: note.pid.into(),
        uid: note.domain.uid.into(),
        listener: note.domain.listener.into(),
        slot: id.slot.into(),
        generation: id.generation.into(),
        size_bytes: note.size_bytes.into(),
        lost: 0.into(),
        status: note.status,
        name: [0; NAME_BYTES],
        reserved: 0.into(),
    }
}

pub(crate) fn unix_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fdbroker_core::{ClientId, DomainKey};
    use fdbroker_protocol::admin::Filter;

    fn watch(filter: Filter, value: u64) -> Watch {
        Watch::new(Chosen { filter, value })
    }

    fn grant(pid: u32) -> EventRecord {
        let id = Some(AllocationId { slot: 1, generation: pid });
        event(&Note { client: Some(ClientId(1)), pid, id, ..Note::of_node(EventKind::Grant) }, 7)
    }

    fn told(watch: &mut Watch) -> Vec<(u32, u64)> {
        let events = watch.take(9);
        events.iter().map(|event| (event.generation.get(), event.lost.get())).collect()
    }

    #[test]
    fn watch_when_it_is_slow_then_the_oldest_are_kept_and_the_gap_is_told_where_it_is() {
        let mut watch = watch(Filter::None, 0);
        let most = u32::try_from(WATCH_EVENTS_KEPT).expect("small");
        (0..most + 5).for_each(|number| watch.offer(&grant(number), None));
        let first = told(&mut watch);
        assert_eq!(first.len(), WATCH_EVENTS_PER_MESSAGE);
        assert_eq!((first[0], watch.lost), ((0, 0), 5));
        watch.offer(&grant(1_000_000), None);
        let mut all = first;
        while watch.is_due() {
            all.extend(told(&mut watch));
        }
        assert_eq!(all.len(), WATCH_EVENTS_KEPT + 2);
        assert_eq!(all[WATCH_EVENTS_KEPT - 1..], [(most - 1, 0), (0, 5), (1_000_000, 0)]);
    }

    #[test]
    fn watch_when_begun_with_the_past_then_told_first_and_the_last_message_is_not_full() {
        for count in [0, 5, WATCH_EVENTS_PER_MESSAGE] {
            let mut watch = watch(Filter::None, 0);
            let past = vec![grant(3); count];
            watch.begin_with(past.iter().map(|event| (event, None)));
            watch.offer(&grant(4), None);
            let mut told_past = 0;
            loop {
                assert!(watch.is_due());
                let events = told(&mut watch);
                assert!(events.iter().all(|event| *event == (3, 0)), "{events:?}");
                told_past += events.len();
                if events.len() < WATCH_EVENTS_PER_MESSAGE {
                    break;
                }
            }
            assert_eq!(told_past, count);
            assert_eq!(told(&mut watch), [(4, 0)]);
            assert!(!watch.is_due());
        }
    }

    #[test]
    fn watch_when_nothing_follows_the_gap_then_it_is_told_all_the_same() {
        let mut watch = watch(Filter::None, 0);
        (0..=WATCH_EVENTS_KEPT).for_each(|_| watch.offer(&grant(1), None));
        let mut last = None;
        while watch.is_due() {
            last = told(&mut watch).last().copied();
        }
        assert_eq!(last, Some((0, 1)));
    }

    #[test]
    fn watch_when_filtered_by_job_then_its_clients_alone() {
        let mut watch = watch(Filter::Job, 5);
        watch.offer(&grant(1), Some(JobKey(4)));
        watch.offer(&grant(2), Some(JobKey(5)));
        watch.offer(&grant(3), None);
        assert_eq!(told(&mut watch), [(2, 0)]);
    }

    #[test]
    fn watch_when_filtered_then_its_own_and_what_is_of_the_node() {
        let mut watch = watch(Filter::Pid, 77);
        watch.offer(&grant(76), None);
        watch.offer(&grant(77), None);
        // A refused connection is no client.
        for pid in [76, 77] {
            let domain = DomainKey { listener: 0, uid: 5 };
            let refused = Note { pid, domain, ..Note::of_node(EventKind::Refusal) };
            watch.offer(&event(&refused, 7), None);
        }
        watch.offer(&event(&Note::of_node(EventKind::Drain), 7), None);
        let kinds: Vec<u32> = watch.take(9).iter().map(|event| event.kind.get()).collect();
        let expected = [EventKind::Grant, EventKind::Refusal, EventKind::Drain];
        assert_eq!(kinds, expected.map(|kind| kind as u32));
    }
}
