//! Counts, the trace, and the text of a violation. Must never decide anything: a run is the same
//! whether it is traced or not.

use crate::tally::{Counts, Fault, Promise};
use fdbroker_protocol::ErrorCode;
use std::collections::VecDeque;

/// Steps that are kept for the text of a violation.
const RING_STEPS: usize = 50;

macro_rules! stats {
    ($($field:ident)*) => {
        /// What happened, counted.
        #[derive(Clone, Copy, Debug, Default)]
        pub struct Stats {
            $(pub $field: u64,)*
            pub by_fault: Counts,
            pub by_promise: Counts,
            /// Codes that recalls were refused with, a bit each.
            pub refusal_codes: u32,
            /// Most records that a step has visited, and the bound of that step.
            pub longest: (u64, u64),
        }

        impl Stats {
            /// Adds the counts of another run.
            pub fn add(&mut self, other: &Stats) {
                $(self.$field += other.$field;)*
                self.by_fault.add_all(&other.by_fault);
                self.by_promise.add_all(&other.by_promise);
                self.refusal_codes |= other.refusal_codes;
                self.longest = self.longest.max(other.longest);
            }

            fn fields(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($field), self.$field)),*].into_iter()
            }
        }
    };
}

stats! {
    steps polls worlds grants recalls supplies evictions registrations deaths silences
    refusals no_quota parked unsent reclaims revoked drained retired quiesced
}

impl Stats {
    pub fn fault(&mut self, fault: Fault) {
        self.faults(fault, 1);
    }

    /// The fault has happened so many times.
    pub fn faults(&mut self, fault: Fault, count: usize) {
        self.by_fault.add(fault as usize, count as u64);
    }
}

impl std::fmt::Display for Stats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, (name, value)) in self.fields().enumerate() {
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
    /// A scenario's name; or configuration, seed and step.
    pub place: String,
    /// The promise that is broken, and for which client or allocation.
    pub message: String,
    /// The command that replays it.
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

/// Prints all counts of a run.
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
    let (visited, bound) = total.longest;
    println!("sim: the longest step visited {visited} records, bound {bound}");
    let rate = total.steps as f64 / seconds;
    println!("sim: steps {}, steps/s {rate:.0}, violations {violations}", total.steps);
}

/// The faults that never happened in a run, and the promises that it never checked.
pub fn missing(total: &Stats) -> Vec<&'static str> {
    let faults = Fault::ALL.iter().filter(|fault| total.by_fault.of(**fault as usize) == 0);
    let promises = Promise::ALL.iter().filter(|one| total.by_promise.of(**one as usize) == 0);
    let mut missing: Vec<&str> = faults.map(|fault| fault.text()).collect();
    missing.extend(promises.map(|promise| promise.text()));
    let all_codes = total.refusal_codes.count_ones() as usize == ErrorCode::ALL.len();
    missing.extend((!all_codes).then_some("a code that recalls are refused with"));
    missing
}
