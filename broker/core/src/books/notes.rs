//! What happens, for the journal and for whoever watches: noted as it happens, taken by the daemon
//! after each step. Must cost nothing where nobody wants it, and never keep more than a step can
//! make.

use crate::api::Note;
use crate::limits::NOTES_KEPT;

/// Notes not taken yet.
#[derive(Debug, Default)]
pub struct Notes {
    is_on: bool,
    list: Vec<Note>,
    lost: u64,
}

impl Notes {
    /// Whether anybody wants them.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Whether something has been noted.
    pub fn has_some(&self) -> bool {
        !self.list.is_empty() || self.lost > 0
    }

    /// Begins anew where somebody wants them now, or nobody does any more.
    pub fn set_on(&mut self, is_on: bool) {
        if self.is_on != is_on {
            *self = Notes { is_on, ..Notes::default() };
        }
    }

    pub fn add(&mut self, note: Note) {
        if self.list.len() < NOTES_KEPT {
            self.list.push(note);
        } else {
            self.lost += 1;
        }
    }

    /// Moves them to `notes`, in order; how many were lost.
    pub fn take(&mut self, notes: &mut Vec<Note>) -> u64 {
        notes.append(&mut self.list);
        std::mem::take(&mut self.lost)
    }
}
