//! Events for those that watch: each watcher has a bounded queue, and is sent what is in it when
//! its socket takes it. Must cost nothing while nobody watches, never wait for a slow watcher (the
//! events that it misses are counted), nor tell of what is not in its sight.

use crate::admin::chosen::{Chosen, Traits};
use crate::admin::rights::Sight;
use crate::limits::{WATCH_EVENTS_KEPT, WATCH_EVENTS_PER_MESSAGE};
use crate::past::Of;
use fdbroker_core::{DomainKey, Note, PodKey};
use fdbroker_protocol::admin::{EventKind, EventRecord};
use fdbroker_protocol::limits::{MAX_ADMIN_MESSAGE_BYTES, NAME_BYTES};
use fdbroker_protocol::{AllocationId, Scope, Status};
use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

const _: () = assert!(
    16 + (WATCH_EVENTS_PER_MESSAGE + 1) * size_of::<EventRecord>() <= MAX_ADMIN_MESSAGE_BYTES
);

/// What one watcher is still to be told.
pub(crate) struct Watch {
    sight: Sight,
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
    pub fn new(sight: Sight, chosen: Chosen) -> Self {
        Watch {
            sight,
            chosen,
            past: VecDeque::new(),
            is_past_due: false,
            events: VecDeque::new(),
            lost: 0,
        }
    }

    /// Begins with those of these events that are chosen.
    pub fn begin_with<'e>(&mut self, past: impl Iterator<Item = (&'e EventRecord, Of)>) {
        self.past = past.filter_map(|(event, of)| self.told(event, of)).collect();
        self.is_past_due = true;
    }

    /// Whether there is something to tell.
    pub fn is_due(&self) -> bool {
        self.is_past_due || !self.events.is_empty() || self.lost > 0
    }

    /// Of which domains it is told.
    pub fn sight(&self) -> Sight {
        self.sight
    }

    /// The event as this watcher is told of it, if it is.
    fn told(&self, event: &EventRecord, (pod, job): Of) -> Option<EventRecord> {
        let (pid, uid) = (event.pid.get(), event.uid.get());
        let is_of_node = uid == u32::MAX && event.slot.get() == u32::MAX;
        let allocation = Some((event.slot.get(), event.generation.get()));
        let is_chosen = is_of_node || self.chosen.has(Traits { allocation, pid, uid, job });
        let told = match self.sight {
            Sight::Node => Some(*event),
            Sight::Domain(_) if is_of_node => Some(EventRecord { lost: 0.into(), ..*event }),
            Sight::Domain(own) => is_of(event, pod, own).then(|| EventRecord {
                status: without_stranger(event.status.get()).into(),
                ..*event
            }),
        };
        told.filter(|_| is_chosen)
    }

    /// `of`: the client's, or those of a client that is gone and has left the allocation.
    pub fn offer(&mut self, event: &EventRecord, of: Of) {
        let Some(event) = self.told(event, of) else { return };
        if self.events.len() >= WATCH_EVENTS_KEPT {
            self.lost += 1;
            return;
        }
        if self.lost > 0 {
            let lost = std::mem::take(&mut self.lost);
            self.events.push_back(lost_event(lost, event.unix_us.get()));
        }
        self.events.push_back(event);
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

/// Whether an event is of a domain. What is known of a user alone, such as a hung call, has no
/// listener.
fn is_of(event: &EventRecord, pod: PodKey, domain: DomainKey) -> bool {
    let its = DomainKey { listener: event.listener.get(), uid: event.uid.get(), pod };
    its == domain || its == DomainKey { uid: domain.uid, ..DomainKey::NOBODYS }
}

/// The largest holder of all may be of another domain.
fn without_stranger(status: Status) -> Status {
    if status.scope() == Some(Scope::Node) { Status { pid: 0, ..status } } else { status }
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
        status: note.status.into(),
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
    use fdbroker_core::{ClientId, JobKey};
    use fdbroker_protocol::Resource;
    use fdbroker_protocol::admin::Filter;

    fn watch(filter: Filter, value: u64) -> Watch {
        Watch::new(Sight::Node, Chosen { filter, value })
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
        (0..most + 5).for_each(|number| watch.offer(&grant(number), Of::default()));
        let first = told(&mut watch);
        assert_eq!(first.len(), WATCH_EVENTS_PER_MESSAGE);
        assert_eq!((first[0], watch.lost), ((0, 0), 5));
        watch.offer(&grant(1_000_000), Of::default());
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
            watch.begin_with(past.iter().map(|event| (event, Of::default())));
            watch.offer(&grant(4), Of::default());
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
        (0..=WATCH_EVENTS_KEPT).for_each(|_| watch.offer(&grant(1), Of::default()));
        let mut last = None;
        while watch.is_due() {
            last = told(&mut watch).last().copied();
        }
        assert_eq!(last, Some((0, 1)));
    }

    #[test]
    fn watch_when_filtered_by_job_then_its_clients_alone() {
        let mut watch = watch(Filter::Job, 5);
        watch.offer(&grant(1), (PodKey::NONE, Some(JobKey(4))));
        watch.offer(&grant(2), (PodKey::NONE, Some(JobKey(5))));
        watch.offer(&grant(3), Of::default());
        assert_eq!(told(&mut watch), [(2, 0)]);
    }

    #[test]
    fn watch_when_filtered_then_its_own_and_what_is_of_the_node() {
        let mut watch = watch(Filter::Pid, 77);
        watch.offer(&grant(76), Of::default());
        watch.offer(&grant(77), Of::default());
        // A refused connection is no client.
        for pid in [76, 77] {
            let domain = DomainKey::new(0, 5);
            let refused = Note { pid, domain, ..Note::of_node(EventKind::Refusal) };
            watch.offer(&event(&refused, 7), Of::default());
        }
        watch.offer(&event(&Note::of_node(EventKind::Drain), 7), Of::default());
        let kinds: Vec<u32> = watch.take(9).iter().map(|event| event.kind.get()).collect();
        let expected = [EventKind::Grant, EventKind::Refusal, EventKind::Drain];
        assert_eq!(kinds, expected.map(|kind| kind as u32));
    }

    #[test]
    fn watch_when_of_a_pod_then_nothing_of_another_pod_of_the_uid_and_what_is_known_of_the_uid() {
        let [own, other] =
            [1, 2].map(|it| DomainKey { pod: PodKey([it, 0]), ..DomainKey::new(2, 5) });
        let mut watch = Watch::new(Sight::Domain(own), Chosen { filter: Filter::None, value: 0 });
        let hang = DomainKey { uid: 5, ..DomainKey::NOBODYS };
        for (pid, domain) in [(1, own), (2, other), (3, DomainKey::new(2, 5)), (4, hang)] {
            let note = Note { pid, domain, ..Note::of_node(EventKind::Refusal) };
            watch.offer(&event(&note, 7), (domain.pod, None));
        }
        let pids: Vec<u32> = watch.take(9).iter().map(|event| event.pid.get()).collect();
        assert_eq!(pids, [1, 4]);
    }

    #[test]
    fn watch_when_of_a_domain_then_of_others_neither_an_event_nor_a_pid_nor_how_many_are_lost() {
        let own = DomainKey::new(2, 5);
        let all = Chosen { filter: Filter::None, value: 0 };
        let mut watch = Watch::new(Sight::Domain(own), all);
        let refused = |domain, pid| {
            let status = Status::no_quota(Resource::Fds, Scope::Node, 64, 4711);
            event(&Note { domain, pid, status, ..Note::of_node(EventKind::Refusal) }, 7)
        };
        let hang = |uid| {
            let domain = DomainKey { uid, ..DomainKey::NOBODYS };
            event(&Note { domain, ..Note::of_node(EventKind::Hang) }, 7)
        };
        let others = [DomainKey { listener: 1, ..own }, DomainKey { uid: 6, ..own }];
        let mut events: Vec<EventRecord> = others.map(|other| refused(other, 8)).into();
        events.extend([hang(6), refused(own, 9), hang(5), lost_event(1234, 7)]);
        events.push(event(&Note::of_node(EventKind::Drain), 7));
        watch.begin_with(events.iter().map(|event| (event, Of::default())));
        events.iter().for_each(|event| watch.offer(event, Of::default()));
        for told in [watch.take(9), watch.take(9)] {
            let kinds: Vec<u32> = told.iter().map(|event| event.kind.get()).collect();
            let expected = [EventKind::Refusal, EventKind::Hang, EventKind::Lost, EventKind::Drain];
            assert_eq!(kinds, expected.map(|kind| kind as u32));
            assert_eq!((told[0].pid.get(), told[0].status.pid.get()), (9, 0));
            assert_eq!(told[2].lost.get(), 0);
        }
    }
}
