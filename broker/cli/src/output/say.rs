//! What is said on stderr. Must never fail or panic: there is nobody else to be told.

/// Writes a line to stderr. Where that fails - a full disk, a reader that went away - nobody is there to be told, and what the
/// command does and its exit status stay what they are: `eprintln!` would panic.
macro_rules! say {
    ($($words:tt)*) => {{
        let _ = std::io::Write::write_all(
            &mut std::io::stderr(),
            (format!($($words)*) + "\n").as_bytes(),
        );
    }};
}
pub(crate) use say;
