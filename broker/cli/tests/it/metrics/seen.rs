//! What a scenario has predicted and then seen. Must never count a value that nobody predicted.

use super::page::name_of;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

/// Values by series.
#[derive(Default)]
pub struct Seen(BTreeMap<String, Vec<f64>>);

impl Seen {
    /// A value that was as predicted.
    pub fn note(&mut self, series: &str, value: f64) {
        let values = self.0.entry(series.to_owned()).or_default();
        if !values.contains(&value) {
            values.push(value);
        }
    }

    /// Names of the series that had two values at least.
    pub fn moved(&self) -> BTreeSet<String> {
        let moved = self.0.iter().filter(|(_, values)| values.len() > 1);
        moved.map(|(series, _)| name_of(series).to_owned()).collect()
    }
}

/// What is done to brokers, once in a process, for its own test and for the one that looks at all
/// of them.
pub struct Scenario {
    play: fn(&mut Seen),
    seen: OnceLock<Seen>,
}

impl Scenario {
    pub const fn new(play: fn(&mut Seen)) -> Self {
        Scenario { play, seen: OnceLock::new() }
    }

    /// Plays it, if nobody has.
    pub fn seen(&self) -> &Seen {
        self.seen.get_or_init(|| {
            let mut seen = Seen::default();
            (self.play)(&mut seen);
            seen
        })
    }
}
