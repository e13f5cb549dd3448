//! An event as a line of text and as JSON. Must never read a clock, nor print control characters of
//! a client's name.

use super::stream::Back;
use crate::output::{commas, human_size, seconds_of_us};
use crate::records::client_name;
use fdbroker_protocol::admin::{EventKind, EventRecord};
use fdbroker_protocol::{AllocationId, ErrorCode, Resource, Scope, Status};
use serde::{Serialize, Serializer};

/// An event in JSON.
#[derive(Debug, Serialize)]
pub struct EventView {
    #[serde(rename = "time_seconds", serialize_with = "as_seconds")]
    time_us: u64,
    event: &'static str,
    pid: Option<u32>,
    uid: Option<u32>,
    name: Option<String>,
    client: Option<u32>,
    allocation: Option<String>,
    size_bytes: Option<u64>,
    error: Option<&'static str>,
    resource: Option<&'static str>,
    scope: Option<&'static str>,
    cap: Option<u64>,
    largest_pid: Option<u32>,
    lost: Option<u64>,
}

impl EventView {
    /// From the broker's record.
    pub fn new(record: &EventRecord) -> Self {
        let is_client = record.client.get() != u32::MAX;
        let (slot, generation) = (record.slot.get(), record.generation.get());
        let is_allocation = slot != u32::MAX;
        let status = &record.status;
        let is_quota = status.get().result() == Err(ErrorCode::NoQuota);
        EventView {
            time_us: record.unix_us.get(),
            event: kind_of(record).map_or("unknown", EventKind::name),
            pid: Some(record.pid.get()).filter(|pid| is_client || *pid != 0),
            uid: Some(record.uid.get()).filter(|uid| *uid != u32::MAX),
            name: is_client.then(|| client_name(&record.name)),
            client: Some(record.client.get()).filter(|_| is_client),
            allocation: is_allocation.then(|| AllocationId { slot, generation }.to_string()),
            size_bytes: is_allocation.then(|| record.size_bytes.get()),
            error: status.get().result().err().map(ErrorCode::name),
            resource: Resource::from_number(status.resource).map(Resource::name),
            scope: status.get().scope().map(Scope::name),
            cap: status.get().cap().filter(|_| is_quota),
            largest_pid: Some(status.pid.get()).filter(|pid| *pid != 0),
            lost: Some(record.lost.get()).filter(|lost| *lost != 0),
        }
    }

    /// As text: time (UTC), event, client, allocation, size, reason.
    fn line(&self, status: &Status) -> String {
        let mut line = format!("{}  {:<9}", clock(self.time_us), self.event);
        let mut add = |text: &str| {
            line.push_str("  ");
            line.push_str(text);
        };
        if let Some(lost) = self.lost {
            add(&format!("{} events: this reader is too slow", commas(lost)));
        }
        match (self.pid, &self.name, self.uid) {
            (Some(pid), Some(name), _) => add(&format!("pid {pid} {name}")),
            // A connection that was refused: it has not said its name.
            (Some(pid), None, Some(uid)) => add(&format!("pid {pid} of uid {uid}")),
            (_, _, Some(uid)) => add(&format!("uid {uid}")),
            _ => {}
        }
        if let Some(allocation) = &self.allocation {
            add(allocation);
        }
        if let Some(size) = self.size_bytes {
            add(&human_size(size));
        }
        match status.result() {
            Ok(()) => {}
            Err(ErrorCode::NoQuota) => add(&status.to_string()),
            Err(code) => add(code.name()),
        }
        line.truncate(line.trim_end().len());
        line
    }
}

/// The event as a line of text, without a line end.
pub fn line(record: &EventRecord) -> String {
    EventView::new(record).line(&record.status.get())
}

/// The same with the date before it: the event may be of another day.
pub fn dated_line(record: &EventRecord) -> String {
    let (year, month, day) = date(record.unix_us.get() / 86_400_000_000);
    format!("{year}-{month:02}-{day:02} {}", line(record))
}

/// Year, month and day of a day since 1970 (the algorithm `civil_from_days` by H. Hinnant; years
/// begin in March there).
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let (month, next_year) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + next_year, month, day_of_month)
}

/// Several events that differ only in their allocations, as one line: the latest one, their number,
/// the bytes of all.
pub fn line_of_many(latest: &EventRecord, count: u64, size_bytes: u64) -> String {
    let mut view = EventView::new(latest);
    let many = |_| format!("{} times", commas(count));
    view.allocation = view.allocation.map(many);
    view.size_bytes = view.size_bytes.map(|_| size_bytes);
    view.line(&latest.status.get())
}

/// A sentence about a new connection.
pub fn reconnected(back: &Back) -> String {
    let which = match back.is_continued {
        Some(true) => ", which continues the ledger of the one before",
        Some(false) => ", a new one",
        None => "",
    };
    let (pid, gap) = (back.broker.pid, back.gap.as_secs_f64());
    format!("watching broker {pid}{which}; what happened in the {gap:.1} s before is not shown")
}

/// Writes a time as seconds since 1970.
pub fn as_seconds<S: Serializer>(us: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(seconds_of_us(*us))
}

/// The kind of the event; `None`: a kind of a newer broker.
pub fn kind_of(record: &EventRecord) -> Option<EventKind> {
    EventKind::from_number(record.kind.get())
}

/// The time of day, such as `12:03:04.567Z`.
pub fn clock(unix_us: u64) -> String {
    let (seconds, ms) = (unix_us / 1_000_000, unix_us / 1000 % 1000);
    let (hours, minutes) = (seconds / 3600 % 24, seconds / 60 % 60);
    format!("{hours:02}:{minutes:02}:{:02}.{ms:03}Z", seconds % 60)
}

#[cfg(test)]
pub mod tests;
