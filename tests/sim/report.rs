//! Counts, the trace, and how a violation is told. Must never decide anything: a run is the same whether it
//! is traced or not.

use crate::tally::{Counts, Fault, Promise};
use fdbroker_protocol::ErrorCode;
use std::collections::VecDeque;

/// Lines kept for a violation: the last steps with their effects.
const RING_STEPS: usize = 50;

/// What happened, counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    pub steps: u64,
    pub polls: u64,
    pub worlds: u64,
    pub grants: u64,
    pub recalls: u64,
    pub supplies: u64,
    pub evictions: u64,
    pub registrations: u64,
    pub deaths: u64,
    pub silences: u64,
    pub refusals: u64,
    pub no_quota: u64,
    pub parked: u64,
    pub unsent: u64,
    pub reclaims: u64,
    pub revoked: u64,
    pub drained: u64,
    pub retired: u64,
    pub quiesced: u64,
    /// Faults by kind.
    pub by_fault: Counts,
    /// Checks by promise.
    pub by_promise: Counts,
    /// Codes that recalls were refused with, a bit each.
    pub refusal_codes: u32,
}

impl Stats {
    /// A fault has happened.
    pub fn fault(&mut self, fault: Fault) {
        self.faults(fault, 1);
    }

    /// So many of them.
    pub fn faults(&mut self, fault: Fault, count: usize) {
        self.by_fault.add(fault as usize, count as u64);
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Stats) {
        self.by_fault.add_all(&other.by_fault);
        self.by_promise.add_all(&other.by_promise);
        self.refusal_codes |= other.refusal_codes;
        for (to, from) in self.fields_mut().into_iter().zip(other.fields()) {
            *to.1 += from.1;
        }
    }

    fn fields_mut(&mut self) -> [(&'static str, &mut u64); 19] {
        [
            ("steps", &mut self.steps),
            ("polls", &mut self.polls),
            ("worlds", &mut self.worlds),
            ("grants", &mut self.grants),
            ("recalls", &mut self.recalls),
            ("supplies", &mut self.supplies),
            ("evictions", &mut self.evictions),
            ("registrations", &mut self.registrations),
            ("deaths", &mut self.deaths),
            ("silences", &mut self.silences),
            ("refusals", &mut self.refusals),
            ("no_quota", &mut self.no_quota),
            ("parked", &mut self.parked),
            ("unsent", &mut self.unsent),
            ("reclaims", &mut self.reclaims),
            ("revoked", &mut self.revoked),
            ("drained", &mut self.drained),
            ("retired", &mut self.retired),
            ("quiesced", &mut self.quiesced),
        ]
    }

    fn fields(&self) -> [(&'static str, u64); 19] {
        let mut copy = *self;
        copy.fields_mut().map(|(name, value)| (name, *value))
    }
}

impl std::fmt::Display for Stats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, (name, value)) in self.fields().into_iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{name} {value}")?;
        }
        Ok(())
    }
}

/// How much of a run is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceMode {
    /// Nothing: the fast way.
    Off,
    /// The last steps, for a violation.
    Ring,
    /// Everything, to stdout at once.
    Print,
}

/// The written-down steps.
#[derive(Debug)]
pub struct Trace {
    mode: TraceMode,
    steps: VecDeque<Vec<String>>,
}

impl Trace {
    /// An empty one.
    pub fn new(mode: TraceMode) -> Self {
        Trace { mode, steps: VecDeque::new() }
    }

    /// A step begins; `line` is only made when it is wanted.
    pub fn step(&mut self, line: impl FnOnce() -> String) {
        match self.mode {
            TraceMode::Off => {}
            TraceMode::Print => println!("{}", line()),
            TraceMode::Ring => {
                if self.steps.len() == RING_STEPS {
                    self.steps.pop_front();
                }
                self.steps.push_back(vec![line()]);
            }
        }
    }

    /// Something of the step under way.
    pub fn note(&mut self, line: impl FnOnce() -> String) {
        match self.mode {
            TraceMode::Off => {}
            TraceMode::Print => println!("    {}", line()),
            TraceMode::Ring => {
                if let Some(step) = self.steps.back_mut() {
                    step.push(format!("    {}", line()));
                }
            }
        }
    }

    /// The lines kept.
    pub fn lines(self) -> Vec<String> {
        self.steps.into_iter().flatten().collect()
    }
}

/// A broken promise of the core, with the way to see it again.
#[derive(Debug)]
pub struct Violation {
    /// Where: a scenario's name, or configuration, seed and step.
    pub place: String,
    /// What.
    pub message: String,
    /// The one command that replays it.
    pub replay: String,
    /// The last inputs and effects.
    pub trace: Vec<String>,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "sim: VIOLATION {}", self.place)?;
        for line in &self.trace {
            writeln!(f, "  {line}")?;
        }
        writeln!(f, "  violated: {}", self.message)?;
        write!(f, "  replay:   {}", self.replay)
    }
}

/// All counts of a run: what happened, faults by kind, checks by promise, violations.
pub fn print(total: &Stats, violations: usize, seconds: f64) {
    println!("sim: {total}");
    println!("faults:");
    for fault in Fault::ALL {
        println!("  {:<44} {:>12}", fault.text(), total.by_fault.of(*fault as usize));
    }
    let (codes, all) = (total.refusal_codes.count_ones(), ErrorCode::ALL.len());
    println!("  (recalls were refused with {codes} of {all} codes)");
    println!("checked:");
    for promise in Promise::ALL {
        println!("  {:<44} {:>12}", promise.text(), total.by_promise.of(*promise as usize));
    }
    let rate = total.steps as f64 / seconds;
    println!("sim: steps {}, steps/s {rate:.0}, violations {violations}", total.steps);
}

/// What never happened in a run, and what it never checked.
pub fn missing(total: &Stats) -> Vec<&'static str> {
    let faults = Fault::ALL.iter().filter(|fault| total.by_fault.of(**fault as usize) == 0);
    let promises = Promise::ALL.iter().filter(|one| total.by_promise.of(**one as usize) == 0);
    let mut missing: Vec<&str> = faults.map(|fault| fault.text()).collect();
    missing.extend(promises.map(|promise| promise.text()));
    let all_codes = total.refusal_codes.count_ones() as usize == ErrorCode::ALL.len();
    missing.extend((!all_codes).then_some("a code that recalls are refused with"));
    missing
}
