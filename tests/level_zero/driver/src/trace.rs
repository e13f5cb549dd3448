//! The trace on stderr, and the counters at exit. Must never change what a call does or answers.

use crate::allocation::registry;
use crate::counters::Counters;
use crate::settings::settings;
use std::io::Write;
use std::sync::Once;

/// Whether `ZE_TEST_DRIVER_TRACE` is `yes`.
pub fn is_on() -> bool {
    settings().is_ok_and(|settings| settings.trace)
}

/// Writes a line `ze-test-driver[pid]: ...` to stderr, when tracing is on.
macro_rules! trace {
    ($($words:tt)*) => {
        if $crate::trace::is_on() {
            $crate::trace::line(format_args!($($words)*));
        }
    };
}
pub(crate) use trace;

/// Writes the line in one call, so that lines of two processes do not mix.
pub fn line(words: std::fmt::Arguments<'_>) {
    let line = format!("ze-test-driver[{}]: {words}\n", std::process::id());
    // A program without stderr has no trace; it must not fail for that.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Prints the counters when the process ends or the loader unloads this library.
pub fn account_at_exit() {
    extern "C" fn account() {
        let left = registry().counters();
        let verdict = if left == Counters::default() { "all given back" } else { "NOT given back" };
        line(format_args!("at exit: {verdict}: {left:?}"));
    }
    static ONCE: Once = Once::new();
    if is_on() {
        // SAFETY: `account` is a function of this library, and atexit(3) calls it before the
        // library is unloaded. If it cannot be registered, a line of trace is missing.
        ONCE.call_once(|| unsafe {
            libc::atexit(account);
        });
    }
}
