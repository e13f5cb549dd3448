//! The broker's events as `top` shows them: a bounded list, newest first. Events that differ only
//! in their allocation share a line, else grants would leave no room for other events. Must never
//! read a clock.

use crate::error::Error;
use crate::events::stream::{Back, Told};
use crate::events::view::{self, reconnected};
use fdbroker_protocol::admin::{EventKind, EventRecord};
use std::collections::VecDeque;

/// Events kept, newest first: as many as the tallest terminals show.
pub const EVENTS_KEPT: usize = 100;

/// A line of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Events of the broker.
    Told {
        latest: EventRecord,
        /// Number of events that this line stands for.
        count: u64,
        /// Sum of the sizes of their allocations.
        size_bytes: u64,
    },
    /// A note about the connection.
    Note {
        /// Microseconds since 1970.
        unix_us: u64,
        /// A sentence.
        text: String,
        /// Shown as an alarm.
        is_bad: bool,
    },
}

impl Event {
    fn of(record: &EventRecord) -> Self {
        Event::Told { latest: *record, count: 1, size_bytes: record.size_bytes.get() }
    }

    /// A note that there are no events, with the reason. Without the path of the socket, which
    /// would take the room.
    pub fn none(unix_us: u64, why: &Error) -> Self {
        let why = match why {
            Error::BrokerEnded { .. } => "the broker has ended".into(),
            Error::Lost { cause, .. } => format!("the broker ended the connection ({cause})"),
            Error::NoBroker { cause, .. } => format!("no broker answers ({cause})"),
            Error::TooManyWatch { .. } => {
                "no room for another watcher; end a watch or a top".into()
            }
            Error::NoAnswer { .. } => "the broker does not answer".into(),
            error => error.to_string(),
        };
        Event::Note { unix_us, text: format!("no events: {why}"), is_bad: true }
    }

    fn back(back: &Back) -> Self {
        Event::Note { unix_us: back.unix_us, text: reconnected(back), is_bad: false }
    }

    /// The line: time (UTC), event, client, allocation, reason.
    pub fn line(&self) -> String {
        match self {
            Event::Told { latest, count: 1, .. } => view::line(latest),
            Event::Told { latest, count, size_bytes } => {
                view::line_of_many(latest, *count, *size_bytes)
            }
            Event::Note { unix_us, text, .. } => format!("{}  {text}", view::clock(*unix_us)),
        }
    }

    /// Whether the line is shown as an alarm.
    pub fn is_bad(&self) -> bool {
        match self {
            Event::Told { latest, .. } => matches!(
                view::kind_of(latest),
                Some(EventKind::Refusal | EventKind::Silent | EventKind::Lost)
            ),
            Event::Note { is_bad, .. } => *is_bad,
        }
    }

    /// Adds a newer event to this line; `false`: it needs a line of its own.
    fn take_in(&mut self, more: &Event) -> bool {
        let (
            Event::Told { latest, count, size_bytes },
            Event::Told { latest: new, count: more, size_bytes: new_bytes },
        ) = (self, more)
        else {
            return false;
        };
        // They must be about memory, of the same client, and have the same outcome.
        let key = |it: &EventRecord| (it.kind, it.client, it.pid, it.status.get().result());
        let is_of_memory = |it: &EventRecord| it.slot.get() != u32::MAX;
        if key(latest) != key(new) || !is_of_memory(latest) || !is_of_memory(new) {
            return false;
        }
        *latest = *new;
        *count += more;
        *size_bytes = size_bytes.saturating_add(*new_bytes);
        true
    }
}

/// Two lists of at most [`EVENTS_KEPT`] lines each.
#[derive(Debug, Default)]
pub struct Events {
    shown: VecDeque<Event>,
    /// Lines that arrived in a pause.
    later: VecDeque<Event>,
}

impl Events {
    /// The lines to show, newest first.
    pub fn shown(&self) -> impl Iterator<Item = &Event> {
        self.shown.iter()
    }

    /// Takes what the stream has told. [`Events::go_on`] shows lines that arrived in a pause.
    pub fn tell(&mut self, told: &Told, is_paused: bool) {
        match told {
            Told::Events(records) => {
                records.iter().for_each(|record| self.add(Event::of(record), is_paused));
            }
            Told::Lost { unix_us, error } => self.add(Event::none(*unix_us, error), is_paused),
            Told::Back(back) => self.add(Event::back(back), is_paused),
            Told::Over { unix_us, error } => self.add(Event::none(*unix_us, error), is_paused),
        }
    }

    pub fn add(&mut self, event: Event, is_paused: bool) {
        push(if is_paused { &mut self.later } else { &mut self.shown }, event);
    }

    /// Shows the lines that arrived in a pause.
    pub fn go_on(&mut self) {
        let later = std::mem::take(&mut self.later);
        later.into_iter().rev().for_each(|event| push(&mut self.shown, event));
    }
}

fn push(events: &mut VecDeque<Event>, event: Event) {
    if events.front_mut().is_some_and(|newest| newest.take_in(&event)) {
        return;
    }
    events.push_front(event);
    events.truncate(EVENTS_KEPT);
}

#[cfg(test)]
mod tests;
