//! `fdbroker watch --objects`: prints what happens to names. Must never end silently when the
//! broker ends, nor hold events without a bound.

use super::connect;
use crate::error::{Error, Result};
use crate::events::stream::{follow, unix_us};
use crate::events::view::{self, clock};
use crate::mailbox::{self, Outbox, Unheard};
use crate::output::{Output, commas, printable, say};
use crate::signals::Signals;
use fdbroker_client::{Deadline, Watch, WatchEvent};
use fdbroker_protocol::ErrorCode;
use fdbroker_protocol::object::ObjectEvent;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Most events between the thread and the loop: when there are so many the thread reads no more,
/// and the library counts what is lost.
const EVENTS_KEPT: usize = 256;
/// Longest wait for another broker, as for other events.
const RECONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// Pause between two looks at whether there is one. The library looks for it by itself.
const LOOK: Duration = Duration::from_millis(50);

/// A message of the thread.
enum Told {
    Event(u64, WatchEvent),
    /// There is no broker now.
    Lost,
    /// The thread has given up.
    Over(Error),
}

/// An event in JSON.
#[derive(Serialize)]
struct EventView<'a> {
    #[serde(rename = "time_seconds", serialize_with = "view::as_seconds")]
    time_us: u64,
    event: &'static str,
    name: Option<&'a str>,
    version: Option<u64>,
    /// Events that were lost; 0 = nobody knows how many.
    lost: Option<u64>,
}

/// Prints what happens to names that begin so, until a signal.
pub fn run(prefix: &str, of_job: bool, is_json: bool) -> Result<()> {
    let signals = Signals::take_over()?;
    // After the signals are blocked: no thread must receive them.
    let watch = connect(of_job)?.watch(prefix, super::soon())?;
    let inbox = mailbox::start("watcher", EVENTS_KEPT, move |outbox| drop(read(&watch, outbox)))?;
    follow(&signals, &inbox, |told, out| print(told, is_json, out))
}

/// Sends events on until the broker has been gone for long.
fn read(watch: &Watch, outbox: &Outbox<Told>) -> std::result::Result<(), Unheard> {
    let mut lost_at: Option<Instant> = None;
    loop {
        match watch.next(Deadline::longest()) {
            Ok(event) => {
                lost_at = None;
                if let Some(event) = event {
                    outbox.send(Told::Event(unix_us(), event))?;
                }
            }
            Err(error) => {
                let since = *lost_at.get_or_insert_with(Instant::now);
                if error.code != ErrorCode::NotConnected || since.elapsed() >= RECONNECT_PATIENCE {
                    return outbox.send(Told::Over(error.into()));
                }
                if since.elapsed() < LOOK {
                    outbox.send(Told::Lost)?;
                }
                std::thread::sleep(LOOK);
            }
        }
    }
}

fn print(told: Told, is_json: bool, out: &mut Output) -> Result<()> {
    match told {
        Told::Event(time_us, event) if is_json => out.json_line(&view_of(time_us, &event)),
        Told::Event(time_us, event) => out.text(&(line(time_us, &event) + "\n")),
        Told::Lost => {
            // Events before it are printed first.
            out.flush()?;
            let seconds = RECONNECT_PATIENCE.as_secs();
            say!("fdbroker: the broker has ended; waiting up to {seconds} s for another");
            Ok(())
        }
        Told::Over(error) => {
            out.flush()?;
            Err(error)
        }
    }
}

fn view_of(time_us: u64, event: &WatchEvent) -> EventView<'_> {
    let is_lost = event.event == ObjectEvent::Lost;
    EventView {
        time_us,
        event: event.event.name(),
        name: (!is_lost).then_some(&event.name),
        version: Some(event.version).filter(|version| !is_lost && *version != 0),
        lost: is_lost.then_some(event.version),
    }
}

fn line(time_us: u64, event: &WatchEvent) -> String {
    let (time, kind, name) = (clock(time_us), event.event.name(), printable(&event.name));
    match (event.event, event.version) {
        (ObjectEvent::Lost, 0) => {
            format!("{time}  lost      some events; a list tells how it stands")
        }
        (ObjectEvent::Lost, count) => {
            format!("{time}  lost      {} events; a list tells how it stands", commas(count))
        }
        (_, 0) => format!("{time}  {kind:<8}  {name}"),
        (_, version) => format!("{time}  {kind:<8}  {name}  version {version}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(event: ObjectEvent, name: &str, version: u64) -> WatchEvent {
        WatchEvent::new(event, name, version)
    }

    #[test]
    fn line_when_each_kind_then_its_name_and_version_and_nothing_that_moves_the_cursor() {
        let lines = [
            (event(ObjectEvent::Sealed, "a/b", 7), "00:00:01.000Z  sealed    a/b  version 7"),
            (event(ObjectEvent::Aborted, "a\x1b[2J", 0), r"00:00:01.000Z  aborted   a\u001b[2J"),
            (
                event(ObjectEvent::Lost, "", 1200),
                "00:00:01.000Z  lost      1,200 events; a list tells how it stands",
            ),
        ];
        for (event, expected) in lines {
            assert_eq!(line(1_000_000, &event), expected);
        }
    }

    #[test]
    fn json_when_lost_or_not_then_what_has_no_value_is_null() {
        let json = |event: &WatchEvent| serde_json::to_string(&view_of(0, event)).expect("plain");
        assert_eq!(
            json(&event(ObjectEvent::Replaced, "a\n", 3)),
            r#"{"time_seconds":0.0,"event":"replaced","name":"a\n","version":3,"lost":null}"#
        );
        assert_eq!(
            json(&event(ObjectEvent::Lost, "", 5)),
            r#"{"time_seconds":0.0,"event":"lost","name":null,"version":null,"lost":5}"#
        );
    }
}
