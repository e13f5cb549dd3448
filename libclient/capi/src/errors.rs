//! Error codes, their names and texts, and the library's version.
//! Must never wait, allocate or take a lock: a program in trouble calls these.

use crate::last_error;
use fdbroker_client::ErrorCode;
use std::ffi::c_char;

/// The answer of a call: FDBROKER_OK, or the reason why it failed. A number never changes its
/// meaning.
pub type fdbroker_code_t = i32;

/// Success.
pub const FDBROKER_OK: fdbroker_code_t = 0;
/// No broker, a lost connection, or a context of before fork(2). Retry later.
pub const FDBROKER_NOT_CONNECTED: fdbroker_code_t = 1;
/// The handle is of another node, or of this node before a reboot.
pub const FDBROKER_WRONG_NODE: fdbroker_code_t = 2;
/// No handle (lease, pointer, import) of this broker, or one given back.
pub const FDBROKER_BAD_HANDLE: fdbroker_code_t = 3;
/// The allocation has ended: get a new handle from its owner.
pub const FDBROKER_STALE: fdbroker_code_t = 4;
/// The allocation, or at open the socket, belongs to somebody else.
pub const FDBROKER_NOT_PERMITTED: fdbroker_code_t = 5;
/// A cap is full; fdbroker_last_error() names it and its largest holder.
pub const FDBROKER_NO_QUOTA: fdbroker_code_t = 6;
/// Not ready yet; the comment of each function that answers it says what.
pub const FDBROKER_AGAIN: fdbroker_code_t = 7;
/// The deadline passed.
pub const FDBROKER_TIMED_OUT: fdbroker_code_t = 8;
/// The request was cancelled.
pub const FDBROKER_CANCELLED: fdbroker_code_t = 9;
/// The process that owned the allocation has ended.
pub const FDBROKER_OWNER_GONE: fdbroker_code_t = 10;
/// The owner did not export its memory again when asked.
pub const FDBROKER_OWNER_SILENT: fdbroker_code_t = 11;
/// This process has no free fd. Nothing is lost: close some fds, retry.
pub const FDBROKER_LOCAL_FD_LIMIT: fdbroker_code_t = 12;
/// This fd cannot be shared; fdbroker_last_error() says what it is.
pub const FDBROKER_UNSUPPORTED_FD: fdbroker_code_t = 13;
/// Not available here; or a call inside a callback that would wait.
pub const FDBROKER_NOT_SUPPORTED: fdbroker_code_t = 14;
/// Library and broker are of releases that do not fit together.
pub const FDBROKER_PROTOCOL: fdbroker_code_t = 15;
/// The broker is going away (the library reconnects), or is being drained.
pub const FDBROKER_SHUTTING_DOWN: fdbroker_code_t = 16;
/// A fault in library or broker, or the system has no memory left.
pub const FDBROKER_INTERNAL: fdbroker_code_t = 17;
/// Another object has the name, or is being made under it.
pub const FDBROKER_EXISTS: fdbroker_code_t = 18;
/// No object has the name.
pub const FDBROKER_NOT_FOUND: fdbroker_code_t = 19;
/// The object is being made.
pub const FDBROKER_NOT_SEALED: fdbroker_code_t = 20;
/// The group of objects is sealed and cannot be changed.
pub const FDBROKER_SEALED: fdbroker_code_t = 21;
/// The memory is still mapped, or used by a device: unmap it, then seal.
pub const FDBROKER_SEALED_BUSY: fdbroker_code_t = 22;
/// The group of objects is not in the making any more.
pub const FDBROKER_ABORTED: fdbroker_code_t = 23;
/// The name has another version than was expected.
pub const FDBROKER_VERSION: fdbroker_code_t = 24;
/// Too many objects, or too much for one answer: ask for less at a time.
pub const FDBROKER_TOO_LONG: fdbroker_code_t = 25;
/// The broker was killed, and its owner, which lives, could not give the memory to the next one in
/// time: get a new handle.
pub const FDBROKER_LOST: fdbroker_code_t = 26;
/// Of this ABI alone: a pointer, size, flag or value that is not valid.
pub const FDBROKER_INVALID_ARGUMENT: fdbroker_code_t = 64;

/// The name of a code, such as "NO_QUOTA"; "UNKNOWN" for any other number. A static string, never
/// NULL.
#[unsafe(no_mangle)]
pub extern "C" fn fdbroker_error_name(code: fdbroker_code_t) -> *const c_char {
    let row = |code: ErrorCode| NAMES[code as usize].as_ptr().cast();
    text_of(code, row, [c"OK", c"INVALID_ARGUMENT", c"UNKNOWN"].map(|text| text.as_ptr()))
}

/// The cause and the remedy of a code, in a sentence each. A static string, never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn fdbroker_strerror(code: fdbroker_code_t) -> *const c_char {
    let row = |code: ErrorCode| REMEDIES[code as usize].as_ptr().cast();
    let ok = c"done";
    let argument = c"an argument cannot be (a NULL pointer, struct_size, flag or value); \
                     fdbroker_last_error() says which";
    let unknown =
        c"a code that this release of the library does not know; compare fdbroker_version()";
    text_of(code, row, [ok, argument, unknown].map(|text| text.as_ptr()))
}

/// This thread's last failed call: what was tried, the cause and the remedy; for FDBROKER_NO_QUOTA
/// also the cap, its value and its largest holder. "" when no call of this thread has failed. Never
/// NULL; valid until the next call of this thread that fails, or the thread's end.
#[unsafe(no_mangle)]
pub extern "C" fn fdbroker_last_error() -> *const c_char {
    last_error::as_ptr()
}

/// The library's version, such as "0.1.0". A static string.
#[unsafe(no_mangle)]
pub extern "C" fn fdbroker_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// The number in the soname: 0. A program built against a header of another number must not use
/// this library.
#[unsafe(no_mangle)]
pub extern "C" fn fdbroker_abi_version() -> u32 {
    ABI_VERSION
}

const ABI_VERSION: u32 = 0;

/// The text of a code. `[ok, argument, unknown]` are the texts of FDBROKER_OK,
/// FDBROKER_INVALID_ARGUMENT and other numbers, which the wire does not have.
fn text_of(
    code: fdbroker_code_t,
    row: impl FnOnce(ErrorCode) -> *const c_char,
    [ok, argument, unknown]: [*const c_char; 3],
) -> *const c_char {
    let on_wire = u16::try_from(code).ok().and_then(ErrorCode::from_number);
    match (code, on_wire) {
        (FDBROKER_OK, _) => ok,
        (FDBROKER_INVALID_ARGUMENT, _) => argument,
        (_, Some(code)) => row(code),
        (_, None) => unknown,
    }
}

/// The codes of the wire run from 1 without a gap; row 0 is empty.
const ROWS: usize = ErrorCode::ALL.len() + 1;
const NAME_BYTES: usize = 24;
const REMEDY_BYTES: usize = 256;

static NAMES: [[u8; NAME_BYTES]; ROWS] = {
    let mut rows = [[0; NAME_BYTES]; ROWS];
    let mut row = 1;
    while row < ROWS {
        rows[row] = terminated(ErrorCode::ALL[row - 1].name());
        row += 1;
    }
    rows
};

static REMEDIES: [[u8; REMEDY_BYTES]; ROWS] = {
    let mut rows = [[0; REMEDY_BYTES]; ROWS];
    let mut row = 1;
    while row < ROWS {
        rows[row] = terminated(ErrorCode::ALL[row - 1].remedy());
        row += 1;
    }
    rows
};

const _: () = assert!(ErrorCode::ALL[ROWS - 2] as usize == ROWS - 1, "the codes have no gap");

/// The text, filled up with NULs. A text that leaves no room for a NUL does not compile.
const fn terminated<const BYTES: usize>(text: &str) -> [u8; BYTES] {
    let text = text.as_bytes();
    assert!(text.len() < BYTES, "the row is too short for this text");
    let mut row = [0; BYTES];
    let mut at = 0;
    while at < text.len() {
        row[at] = text[at];
        at += 1;
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn text(pointer: *const c_char) -> &'static str {
        // SAFETY: all texts of this file are static and end with a NUL.
        unsafe { CStr::from_ptr(pointer) }.to_str().unwrap()
    }

    #[test]
    fn codes_when_compared_with_the_wires_then_all_there_with_name_and_text() {
        for code in ErrorCode::ALL {
            let number = fdbroker_code_t::from(*code as u16);
            assert_eq!(text(fdbroker_error_name(number)), code.name());
            assert_eq!(text(fdbroker_strerror(number)), code.remedy());
            let line = format!("pub const FDBROKER_{}: fdbroker_code_t = {number};", code.name());
            assert!(include_str!("errors.rs").contains(&line), "{line}");
        }
    }

    #[test]
    fn name_when_code_is_unknown_then_says_so() {
        let unused = ErrorCode::ALL.iter().map(|code| *code as i32).max().expect("codes") + 1;
        for number in [-1, unused, 63, 65, i32::MAX, i32::MIN] {
            assert_eq!(text(fdbroker_error_name(number)), "UNKNOWN");
        }
        assert_eq!(text(fdbroker_error_name(0)), "OK");
        assert_eq!(text(fdbroker_error_name(64)), "INVALID_ARGUMENT");
    }
}
