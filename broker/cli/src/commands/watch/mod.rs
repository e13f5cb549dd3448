//! `fdbroker watch`: prints each event of the broker when it happens. Must never delay events that
//! it has read, nor end silently when the broker ends.

mod args;
mod since;

pub use args::Args;

use crate::admin::{Selection, viewing};
use crate::by_name;
use crate::error::{Error, Result};
use crate::events::stream::{self, Back, EVENTS_PER_MESSAGE, Told, Watching};
use crate::events::view::{self, EventView, reconnected};
use crate::output::{Output, say};
use crate::signals::Signals;
use fdbroker_protocol::admin::EventRecord;
use serde::Serialize;
use std::time::Duration;

/// Longest wait for a new broker. An upgraded broker is there after milliseconds, a restarted
/// service after a second; a large ledger takes some seconds.
const RECONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// Why --since does not go with --objects.
const NO_PAST_OF_OBJECTS: &str = "--since begins with events that the broker has kept, and it keeps none of objects: watch --objects begins now; \
                                  `fdbroker objects --sort AGE` shows which objects are new, `watch --since` without --objects what \
                                  happened to their memory";

/// A new connection, in JSON.
#[derive(Debug, Serialize)]
struct ReconnectedView {
    #[serde(rename = "time_seconds", serialize_with = "view::as_seconds")]
    time_us: u64,
    event: &'static str,
    broker_pid: u32,
    incarnation: String,
    continued: bool,
    gap_seconds: f64,
}

impl ReconnectedView {
    fn new(back: &Back) -> Self {
        ReconnectedView {
            time_us: back.unix_us,
            event: "reconnected",
            broker_pid: back.broker.pid,
            // In the form of `fdbroker status --json`.
            incarnation: format!("{:016x}", back.broker.incarnation),
            continued: back.is_continued == Some(true),
            gap_seconds: back.gap.as_secs_f64(),
        }
    }
}

/// Prints events until a signal, or until the broker has ended and no other has started.
pub fn run(args: Args) -> Result<()> {
    if let Some(prefix) = &args.objects {
        if args.since.is_some() {
            return Err(Error::Usage(NO_PAST_OF_OBJECTS.into()));
        }
        return by_name::watch::run(prefix, args.job, args.json);
    }
    let mut admin = viewing::connect()?;
    let selection = match &args.filter {
        None => Selection::ALL,
        Some(subject) => subject.selection(&mut admin)?,
    };
    let first = match args.since {
        None => Watching::begin(admin, selection)?,
        Some(since) => Watching::begin_since(admin, selection, since.0)?,
    };
    if args.no_follow {
        return print_past(first, &args);
    }
    let signals = Signals::take_over()?;
    // After the signals are blocked: the thread must not receive them.
    let patience = Some(RECONNECT_PATIENCE);
    let stream = stream::start(Some(first), selection, patience, viewing::connect_again)?;
    stream::follow(&signals, &stream, |told, out| print(told, &args, out))
}

/// Prints the events of before, and ends.
fn print_past(mut past: Watching, args: &Args) -> Result<()> {
    let mut out = Output::stdout();
    loop {
        let records = past.next()?;
        let is_last = records.len() < EVENTS_PER_MESSAGE;
        print_events(&records, args, &mut out)?;
        if is_last {
            return out.finish();
        }
    }
}

fn print_events(records: &[EventRecord], args: &Args, out: &mut Output) -> Result<()> {
    let line = if args.since.is_some() { view::dated_line } else { view::line };
    records.iter().try_for_each(|record| match args.json {
        true => out.json_line(&EventView::new(record)),
        false => out.text(&(line(record) + "\n")),
    })
}

fn print(told: Told, args: &Args, out: &mut Output) -> Result<()> {
    match told {
        Told::Events(records) => print_events(&records, args, out),
        Told::Lost { error, .. } => {
            // Events before it are printed first.
            out.flush()?;
            let seconds = RECONNECT_PATIENCE.as_secs();
            say!("fdbroker: {error}; waiting up to {seconds} s for another");
            Ok(())
        }
        Told::Back(back) if args.json => out.json_line(&ReconnectedView::new(&back)),
        Told::Back(back) => {
            say!("fdbroker: {}", reconnected(&back));
            Ok(())
        }
        Told::Over { error, .. } => {
            out.flush()?;
            Err(error)
        }
    }
}
