//! What was noted is taken. Must never note by itself.

use crate::api::Note;
use crate::books::notes::Notes;
use crate::core::Core;

impl Core {
    /// Whether to note what happens from now on. Off in the beginning.
    pub fn set_watched(&mut self, watched: bool) {
        if self.books.notes.is_on != watched {
            self.books.notes = Notes { is_on: watched, ..Notes::default() };
        }
    }

    /// Whether something has been noted.
    pub fn has_notes(&self) -> bool {
        !self.books.notes.list.is_empty() || self.books.notes.lost > 0
    }

    /// Moves what has been noted to `notes`, in order; how many were lost before or among them, because nobody took
    /// them.
    pub fn take_notes(&mut self, notes: &mut Vec<Note>) -> u64 {
        notes.append(&mut self.books.notes.list);
        std::mem::take(&mut self.books.notes.lost)
    }
}
