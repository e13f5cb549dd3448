//! What happened between two samples, in words. Must never tell of what it cannot know: of clients only when all have
//! been read both times.

use super::sample::Sample;
use crate::output::commas;
use crate::records::{self, UseView};
use fdbroker_protocol::admin::ClientRecord;
use std::collections::HashMap;

/// Events kept, newest first: as many as the tallest terminals show.
pub const EVENTS_KEPT: usize = 100;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// In a sentence.
    pub text: String,
    /// Somebody should look.
    pub is_bad: bool,
}

impl Event {
    /// Something as it should be.
    pub fn good(text: impl Into<String>) -> Self {
        Event { text: text.into(), is_bad: false }
    }

    /// Something that somebody should look at.
    pub fn bad(text: impl Into<String>) -> Self {
        Event { text: text.into(), is_bad: true }
    }
}

/// What happened from `old` to `new`, at most [`EVENTS_KEPT`]: of the whole node first, then of clients.
pub fn between(old: &Sample, new: &Sample) -> Vec<Event> {
    let (before, now) = (&old.status, &new.status);
    if before.incarnation != now.incarnation {
        return vec![Event::bad(format!("another broker answers, pid {}", now.pid))];
    }
    let mut events = Vec::new();
    let mut counted = |before: u64, now: u64, what: &str| {
        if let Some(more) = now.checked_sub(before).filter(|more| *more > 0) {
            events.push(Event::bad(format!("{} {what}", commas(more))));
        }
    };
    counted(before.refusals, now.refusals, "requests refused: a cap is in the way (NO_QUOTA)");
    counted(before.recalls_silent, now.recalls_silent, "recalls unanswered in time");
    for (name, use_of) in super::model::USES {
        let is_full = |item: &UseView| item.now > 0 && item.cap.is_some_and(|cap| item.now >= cap);
        let item = use_of(now);
        if is_full(item) && !is_full(use_of(before)) {
            events.push(Event::good(format!("{name} reached the cap, {}", commas(item.now))));
        }
    }
    if !old.clients_cut && !new.clients_cut {
        clients_between(&old.clients, &new.clients, &mut events);
    }
    events.truncate(EVENTS_KEPT);
    events
}

fn clients_between(old: &[ClientRecord], new: &[ClientRecord], events: &mut Vec<Event>) {
    let by_number = |clients: &[ClientRecord]| -> HashMap<(u32, u32), ClientRecord> {
        clients.iter().map(|it| ((it.client.get(), it.pid.get()), *it)).collect()
    };
    let (before, now) = (by_number(old), by_number(new));
    let is_silent = |it: &ClientRecord| it.silent.get() != 0;
    for client in new {
        let known = before.get(&(client.client.get(), client.pid.get()));
        if known.is_none() {
            events.push(Event::good(format!("{} connected", named(client))));
        }
        if is_silent(client) && !known.is_some_and(is_silent) {
            events.push(Event::bad(format!("{} leaves a recall unanswered", named(client))));
        }
    }
    for client in old {
        if !now.contains_key(&(client.client.get(), client.pid.get())) {
            events.push(Event::good(format!("{} left", named(client))));
        }
    }
}

fn named(client: &ClientRecord) -> String {
    match records::name(&client.name).shown() {
        name if name.is_empty() => format!("process {}", client.pid),
        name => format!("process {} ({name})", client.pid),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{client, sample};
    use super::*;

    fn texts(events: &[Event]) -> Vec<&str> {
        events.iter().map(|event| event.text.as_str()).collect()
    }

    #[test]
    fn between_when_nothing_changed_then_nothing() {
        let sample = sample(&[client(1, "a")]);
        assert_eq!(between(&sample, &sample.clone()), []);
    }

    #[test]
    fn between_when_clients_come_leave_and_fall_silent_then_each_is_told() {
        let mut silent = client(1, "a");
        let old = sample(&[silent, client(2, "b")]);
        silent.silent = 1.into();
        let new = sample(&[silent, client(3, "")]);
        let events = between(&old, &new);
        let expected = [
            "process 1 (a) leaves a recall unanswered",
            "process 3 connected",
            "process 2 (b) left",
        ];
        assert_eq!(texts(&events), expected);
        assert!(events[0].is_bad && !events[1].is_bad);
    }

    #[test]
    fn between_when_not_all_clients_were_read_then_nothing_is_told_of_them() {
        let mut new = sample(&[client(3, "c")]);
        new.clients_cut = true;
        assert_eq!(between(&sample(&[client(1, "a")]), &new), []);
    }

    #[test]
    fn between_when_a_cap_is_reached_and_requests_refused_then_told_once() {
        let old = sample(&[]);
        let mut new = old.clone();
        new.status.fds = UseView { now: 256, peak: 256, cap: Some(256) };
        new.status.refusals += 1200;
        let events = between(&old, &new);
        let expected =
            ["1,200 requests refused: a cap is in the way (NO_QUOTA)", "fds reached the cap, 256"];
        assert_eq!(texts(&events), expected);
        assert_eq!(between(&new, &new.clone()), []);
    }

    #[test]
    fn between_when_another_broker_answers_then_only_that() {
        let mut new = sample(&[client(1, "a")]);
        new.status.incarnation = "another".into();
        let events = between(&sample(&[]), &new);
        assert_eq!(texts(&events), ["another broker answers, pid 77"]);
    }

    #[test]
    fn between_when_very_many_come_then_bounded() {
        let many: Vec<ClientRecord> = (0..1000).map(|pid| client(pid, "x")).collect();
        assert_eq!(between(&sample(&[]), &sample(&many)).len(), EVENTS_KEPT);
    }
}
