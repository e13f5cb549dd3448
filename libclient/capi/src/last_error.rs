//! The text of each thread's last failed call. Must never allocate or have a destructor: a thread
//! that exits, a forked child and a program that has closed the library may ask.

use crate::limits::LAST_ERROR_BYTES;
use std::cell::Cell;
use std::ffi::c_char;
use std::fmt::{self, Write};

thread_local! {
    // Always ends with a NUL: the last byte is never written.
    static TEXT: [Cell<u8>; LAST_ERROR_BYTES] = const { [const { Cell::new(0) }; LAST_ERROR_BYTES] };
}

/// Keeps `text` for this thread, cut at a character.
pub(crate) fn set(text: impl fmt::Display) {
    TEXT.with(|bytes| {
        let mut cursor = Cursor { bytes, len: 0 };
        // An error means that the text was cut; the first part is kept.
        let _ = write!(cursor, "{text}");
        bytes[cursor.len].set(0);
    });
}

/// This thread's text, NUL-terminated; valid as long as the thread runs.
pub(crate) fn as_ptr() -> *const c_char {
    TEXT.with(|bytes| bytes.as_ptr().cast())
}

struct Cursor<'a> {
    bytes: &'a [Cell<u8>; LAST_ERROR_BYTES],
    len: usize,
}

impl Write for Cursor<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = LAST_ERROR_BYTES - 1 - self.len;
        let cut = text.floor_char_boundary(room);
        for byte in text[..cut].bytes() {
            // A NUL inside, of a path for example, would end the text early.
            self.bytes[self.len].set(if byte == 0 { b'?' } else { byte });
            self.len += 1;
        }
        if cut == text.len() { Ok(()) } else { Err(fmt::Error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn text() -> String {
        // SAFETY: NUL-terminated, and read before this thread's next failing call.
        unsafe { CStr::from_ptr(as_ptr()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn set_when_shorter_than_before_then_nothing_of_before_shows() {
        set("a long text of before");
        set("short");
        assert_eq!(text(), "short");
    }

    #[test]
    fn set_when_too_long_then_cut_at_a_character() {
        set("é".repeat(LAST_ERROR_BYTES));
        let kept = text();
        assert!(kept.len() < LAST_ERROR_BYTES && kept.chars().all(|c| c == 'é'));
        assert_eq!(kept.len(), (LAST_ERROR_BYTES - 1) / 2 * 2);
    }

    #[test]
    fn set_when_another_thread_fails_then_this_one_keeps_its_text() {
        set("mine");
        std::thread::spawn(|| set("its own")).join().unwrap();
        assert_eq!(text(), "mine");
    }
}
