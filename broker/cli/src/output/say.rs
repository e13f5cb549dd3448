//! Prints messages on stderr. Must never fail or panic: there is no other place for an error.

/// Writes a line to stderr. Errors, such as a full disk or a reader that is gone, are ignored and
/// do not change the exit status; `eprintln!` would panic.
macro_rules! say {
    ($($words:tt)*) => {{
        let _ = std::io::Write::write_all(
            &mut std::io::stderr(),
            (format!($($words)*) + "\n").as_bytes(),
        );
    }};
}
pub(crate) use say;
