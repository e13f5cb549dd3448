//! When free memory goes back to the system: a moment after clients have ended, or most names of
//! objects have gone. The allocator itself keeps it, because it lies between pieces in use. Must
//! never do it at the end of each client.

use crate::limits::{NAMES_WORTH_A_TRIM, TRIM_PAUSE};
use crate::{clock, kernel};
use fdbroker_core::Now;

#[derive(Default)]
pub(crate) struct Trim {
    due: Option<Now>,
    /// Most names of objects since half of them have gone.
    names: u64,
}

impl Trim {
    /// A client has ended.
    pub fn note(&mut self, now: Now) {
        self.due.get_or_insert(clock::after(now, TRIM_PAUSE));
    }

    /// There are so many names of objects.
    pub fn note_names(&mut self, names: u64, now: Now) {
        if names > self.names {
            self.names = names;
        } else if self.names - names >= (self.names / 2).max(NAMES_WORTH_A_TRIM) {
            self.names = names;
            self.note(now);
        }
    }

    /// When memory goes back.
    pub fn due(&self) -> Option<Now> {
        self.due
    }

    /// Gives memory back if it is time to.
    pub fn run(&mut self, now: Now) {
        if self.due.take_if(|at| *at <= now).is_some() {
            kernel::trim_memory();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn note_names_when_most_have_gone_then_memory_goes_back_once() {
        let mut trim = Trim::default();
        let many = 8 * NAMES_WORTH_A_TRIM;
        for names in [many, many / 2 + 1, many] {
            trim.note_names(names, Now(0));
        }
        assert_eq!(trim.due(), None);
        trim.note_names(many / 2, Now(0));
        let due = trim.due().expect("half of them have gone");
        trim.run(due);
        trim.note_names(many / 2, due);
        assert_eq!(trim.due(), None);
        let few = NAMES_WORTH_A_TRIM - 1;
        let mut trim = Trim::default();
        trim.note_names(few, Now(0));
        trim.note_names(0, Now(0));
        assert_eq!(trim.due(), None, "a few are not worth it");
    }
}
