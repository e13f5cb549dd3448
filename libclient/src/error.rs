//! What a call answers when it does not succeed: the stable code, the broker's detail, and what was
//! tried. Must never be made on the way of a call that succeeds: it allocates.

use fdbroker_protocol::{AllocationId, ErrorCode, Status};

/// Why a call, or one item of it, was not done.
///
/// The code is the wire's and the C ABI's stable number; `status` has the broker's detail (for
/// NO_QUOTA: which cap, whose, its value, the largest holder). Displays what was tried, the cause
/// and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{context}: {}", self.cause_and_remedy())]
pub struct Error {
    /// The same number on the wire and in C; its meaning never changes.
    pub code: ErrorCode,
    /// What the broker said, when it was the broker.
    pub status: Option<Status>,
    /// What was tried and what came of it, without the remedy.
    pub context: String,
    /// Cause and remedy in place of the code's own words, where those are about something else.
    pub(crate) instead: Option<Box<str>>,
}

impl Error {
    /// A failure found by the library itself.
    pub fn new(code: ErrorCode, context: impl Into<String>) -> Self {
        Error { code, status: None, context: context.into(), instead: None }
    }

    /// A failure that the broker reported. A status of OK would be a bug and reads as INTERNAL.
    pub fn from_status(status: Status, context: impl Into<String>) -> Self {
        let code = status.result().err().unwrap_or(ErrorCode::Internal);
        Error { code, status: Some(status), context: context.into(), instead: None }
    }

    /// A system call that failed, with its errno.
    pub(crate) fn os(code: ErrorCode, what: &str, errno: impl Into<std::io::Error>) -> Self {
        Error::new(code, format!("{what}: {}", errno.into()))
    }

    /// A system call that makes an fd and failed: LOCAL_FD_LIMIT when it was for want of fds, else
    /// `code`.
    pub(crate) fn no_fd(code: ErrorCode, what: &str, error: impl Into<std::io::Error>) -> Self {
        let error = error.into();
        let lacks_fds = matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
        Error::os(if lacks_fds { ErrorCode::LocalFdLimit } else { code }, what, error)
    }

    /// The same with another cause and remedy than the code's.
    #[must_use]
    pub fn because(mut self, cause_and_remedy: impl Into<Box<str>>) -> Self {
        self.instead = Some(cause_and_remedy.into());
        self
    }

    fn cause_and_remedy(&self) -> String {
        match (&self.instead, self.status) {
            (Some(instead), _) => format!("{}: {instead}", self.code.name()),
            (None, Some(status)) => status.to_string(),
            (None, None) if self.says_why() => self.code.name().into(),
            // The code's own words are about the broker.
            (None, None) if self.code == ErrorCode::Internal => {
                "INTERNAL: the system refused it to this process, or it is a fault of this library"
                    .into()
            }
            (None, None) => self.code.to_string(),
        }
    }

    /// Whether the context has the cause ("what was tried: why not"), to which this code's words,
    /// which fit any cause, add nothing. The others' words have a remedy.
    fn says_why(&self) -> bool {
        use ErrorCode::{Again, BadHandle, Internal, NotSupported, Protocol, Stale, TimedOut};
        let is_general = matches!(
            self.code,
            Again | BadHandle | Internal | NotSupported | Protocol | Stale | TimedOut
        );
        is_general && self.context.contains(": ")
    }

    /// BAD_HANDLE for what a program gives back (a lease, a pin, a buffer) and does not have.
    pub(crate) fn given_back(context: impl Into<String>) -> Self {
        let why = "it was given back before, or never came from here; give each back once";
        Error::new(ErrorCode::BadHandle, context).because(why)
    }

    /// NOT_CONNECTED in a child of fork(2).
    pub(crate) fn forked(what: &str) -> Self {
        let why = "a forked child has no connection; have it make one of its own, after the fork, and open there what it needs";
        Error::not_connected(format!("{what}: forked from the process that connected")).because(why)
    }

    /// NOT_SUPPORTED for an allocation registered as recallable that nothing here can export again.
    pub(crate) fn no_recall_callback() -> Self {
        let why = "the broker would ask for its fd again in vain; set a recall callback first, or register it as not recallable";
        Error::new(ErrorCode::NotSupported, "register: recallable without a recall callback")
            .because(why)
    }

    /// AGAIN for what a suspended import cache does not open.
    pub(crate) fn suspended(id: AllocationId) -> Self {
        let why =
            "nothing is opened until the program resumes it (fdbroker_resume, ImportCache::resume)";
        let context = format!("import {id}: the import cache is suspended");
        Error::new(ErrorCode::Again, context).because(why)
    }

    /// Whether the broker was not ready yet. AGAIN whose cause is said is for the program.
    pub(crate) fn asks_again(&self) -> bool {
        self.code == ErrorCode::Again && self.instead.is_none()
    }

    /// What a program is told when the broker was not ready in time.
    pub(crate) fn not_again(self) -> Self {
        if self.asks_again() { Error::not_ready(self.context) } else { self }
    }

    /// TIMED_OUT for what the broker was asked for again and again.
    pub(crate) fn not_ready(context: impl Into<String>) -> Self {
        Error::timed_out(context)
            .because("the broker was not ready for it by the deadline; allow more time")
    }

    pub(crate) fn not_connected(context: impl Into<String>) -> Self {
        Error::new(ErrorCode::NotConnected, context)
    }

    /// TIMED_OUT where the broker has said nothing: it answers sooner than the deadline, if only
    /// that time is over.
    pub(crate) fn no_answer(context: impl Into<String>) -> Self {
        Error::timed_out(context).because(
            "the broker has not answered by the deadline: it is stopped, hangs or is overloaded; look at its process and its log, or \
             allow more time",
        )
    }

    pub(crate) fn timed_out(context: impl Into<String>) -> Self {
        Error::new(ErrorCode::TimedOut, context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fdbroker_protocol::{Resource, Scope};

    #[test]
    fn display_when_no_quota_then_names_cap_and_holder() {
        let status = Status::no_quota(Resource::OpenLeases, Scope::Client, 64, 4711);
        let text = Error::from_status(status, "acquire 3.1").to_string();
        assert!(text.contains("acquire 3.1"), "{text}");
        assert!(text.contains("open_leases = 64"), "{text}");
        assert!(text.contains("4711"), "{text}");
    }

    #[test]
    fn display_when_the_cause_is_said_then_no_general_words_but_remedies() {
        let text = Error::timed_out("import 3.1: another thread imports it").to_string();
        assert_eq!(text, "import 3.1: another thread imports it: TIMED_OUT");
        let no_memory = Error::os(ErrorCode::Internal, "mmap", nix::errno::Errno::ENOMEM);
        assert!(no_memory.to_string().ends_with(" (os error 12): INTERNAL"), "{no_memory}");
        let full = Error::no_fd(ErrorCode::Internal, "eventfd", nix::errno::Errno::EMFILE);
        assert!(full.to_string().ends_with(ErrorCode::LocalFdLimit.remedy()), "{full}");
    }

    #[test]
    fn display_when_local_then_has_context_and_remedy() {
        let text = Error::timed_out("acquire 3.1").to_string();
        assert!(text.starts_with("acquire 3.1: TIMED_OUT: "), "{text}");
    }
}
