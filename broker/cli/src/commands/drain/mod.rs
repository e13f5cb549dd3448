//! `fdbroker drain`: empties the broker before maintenance, and waits until it is empty. Must never
//! report `drained` while the broker holds an fd or a client has a lease.

mod args;

pub use args::Args;

use crate::acts::left::{Holding, Left};
use crate::acts::{Tally, Targets, Verb, act_on_each, denied};
use crate::admin::{Admin, Selection};
use crate::error::{Result, exit};
use crate::output::{Output, commas};
use fdbroker_protocol::Kind;
use fdbroker_protocol::admin::{
    ActOutcome, AllocationRecord, AllocationState, LeaseRecord, NodeStatus, act_flags,
};
use serde::Serialize;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Time between two looks at the broker: short enough for a person, and no load for the broker.
const LOOK: Duration = Duration::from_millis(100);

/// Time between two lines of progress where stderr is not a terminal.
const LINE: Duration = Duration::from_secs(5);

#[derive(Serialize)]
struct Report {
    draining: bool,
    drained: bool,
    held_fds: u64,
    open_leases: u64,
    mapped_leases: u64,
    /// In a dry run: fds that would be closed at once.
    evictable: Option<u64>,
    left: Vec<Holding>,
}

/// What is still held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rest {
    held: u64,
    open: u64,
    mapped: u64,
}

impl Rest {
    fn of(status: &NodeStatus) -> Self {
        Rest {
            held: status.gauges.stored_fds.get() + status.gauges.closing_fds.get(),
            open: status.uses.open_leases.now.get(),
            mapped: status.uses.mapped_leases.now.get(),
        }
    }

    fn is_nothing(self) -> bool {
        self == Rest { held: 0, open: 0, mapped: 0 }
    }
}

impl std::fmt::Display for Rest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Rest { held, open, mapped } = self;
        let [held, open, mapped] = [held, open, mapped].map(|count| commas(*count));
        write!(f, "{held} fds in the broker, {open} leases open, {mapped} mapped")
    }
}

/// Drains; gives the exit status 1 if something is still held.
pub fn run(args: &Args) -> Result<u8> {
    let mut admin = Admin::from_env()?;
    if args.dry_run {
        let mut tally = Tally::default();
        act_on_each(&mut admin, Verb::EVICT, &Targets::all(), true, |_, outcome, record| {
            tally.add(outcome, record);
            Ok(())
        })?;
        let status = admin.status()?;
        let (draining, rest) = (status.draining.get() != 0, Rest::of(&status));
        return finish(&mut admin, args, draining, rest, Some(tally.of(ActOutcome::Done)));
    }
    let flags = if args.undo { act_flags::UNDO } else { 0 };
    let body = Selection::ALL.act(0, flags);
    let reply = admin.exchange(Kind::AdminDrain, &body);
    let reply = reply.map_err(|error| denied(error, "drain"))?;
    let status = *reply.body_as::<NodeStatus>()?;
    let rest = Rest::of(&status);
    let (draining, rest) = if args.undo {
        (false, rest)
    } else {
        wait(&mut admin, rest, args.wait.map(Duration::from_secs))?
    };
    finish(&mut admin, args, draining, rest, None)
}

/// Waits until nothing is held, the time is over, or an administrator has ended the drain.
fn wait(admin: &mut Admin, mut rest: Rest, limit: Option<Duration>) -> Result<(bool, Rest)> {
    let start = Instant::now();
    let mut progress = Progress::new();
    let mut draining = true;
    while draining && !rest.is_nothing() && limit.is_none_or(|limit| start.elapsed() < limit) {
        progress.show(rest);
        let left = limit.map_or(LOOK, |limit| limit.saturating_sub(start.elapsed()));
        std::thread::sleep(LOOK.min(left));
        let status = admin.status()?;
        (draining, rest) = (status.draining.get() != 0, Rest::of(&status));
    }
    progress.end();
    Ok((draining, rest))
}

/// Progress on stderr: a line that is overwritten on a terminal, else a line now and then.
struct Progress {
    is_terminal: bool,
    shown: Option<(Instant, Rest)>,
}

impl Progress {
    fn new() -> Self {
        Progress { is_terminal: std::io::stderr().is_terminal(), shown: None }
    }

    fn show(&mut self, rest: Rest) {
        let is_new = self
            .shown
            .is_none_or(|(at, last)| last != rest && (self.is_terminal || at.elapsed() >= LINE));
        if !is_new {
            return;
        }
        self.shown = Some((Instant::now(), rest));
        let mut stderr = std::io::stderr();
        // Progress that cannot be written is not an error.
        let _ = if self.is_terminal {
            write!(stderr, "\r\x1b[Kdraining: {rest}")
        } else {
            writeln!(stderr, "draining: {rest}")
        };
    }

    fn end(&self) {
        if self.is_terminal && self.shown.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// What each process still holds.
fn left(admin: &mut Admin) -> Result<Left> {
    let mut left = Left::default();
    let has_fd = [AllocationState::Held as u32, AllocationState::Resident as u32];
    admin.each_page(Selection::ALL, |page: &[AllocationRecord]| {
        page.iter()
            .filter(|record| has_fd.contains(&record.state.get()))
            .for_each(|record| left.add_held(record));
        Ok(())
    })?;
    admin.each_page(Selection::ALL, |page: &[LeaseRecord]| {
        page.iter().for_each(|lease| left.add_lease(lease));
        Ok(())
    })?;
    Ok(left)
}

fn finish(
    admin: &mut Admin,
    args: &Args,
    draining: bool,
    rest: Rest,
    evictable: Option<u64>,
) -> Result<u8> {
    let drained = draining && rest.is_nothing();
    let left = if rest.is_nothing() || args.undo { Left::default() } else { left(admin)? };
    let mut out = Output::stdout();
    if args.json {
        let Rest { held: held_fds, open: open_leases, mapped: mapped_leases } = rest;
        let left = left.into_sorted();
        let report =
            Report { draining, drained, held_fds, open_leases, mapped_leases, evictable, left };
        out.json_line(&report)?;
    } else {
        let text = match evictable {
            Some(evictable) => {
                let evictable = commas(evictable);
                format!("{rest}; {evictable} of the fds would be closed at once\n")
            }
            None if args.undo => "the broker takes new allocations again\n".to_owned(),
            None if drained => "drained: nothing is held\n".to_owned(),
            None if !draining => format!("an administrator ended the drain; {rest}\n"),
            None => format!("not drained yet: {rest}\n"),
        };
        out.text(&text)?;
        if left.count() > 0 {
            out.text("\n")?;
            left.write(&mut out)?;
        }
    }
    out.finish()?;
    let is_done = args.undo || args.dry_run || drained;
    Ok(if is_done { exit::OK } else { exit::ERROR })
}
