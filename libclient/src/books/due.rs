//! Which of many things under way may go on: one fd for all of them, for event loops. Each has a
//! token of the program's, and tells it when its answer has come. Must never wait, nor keep more
//! than one token for each thing told of.

use super::wake::Wake;
use crate::error::Error;
use crate::sync::lock;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex};

/// The tokens of started requests and of watches that have something new since they were told last.
/// See [`crate::Request::tell`]. Clones share it.
#[derive(Clone, Debug)]
pub struct Due(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Rings while there are tokens.
    wake: Wake,
    tokens: Mutex<VecDeque<u64>>,
}

impl Due {
    /// # Errors
    /// LOCAL_FD_LIMIT.
    pub fn new() -> Result<Self, Error> {
        Ok(Due(Arc::new(Shared { wake: Wake::new(true)?, tokens: Mutex::default() })))
    }

    /// To be polled for reading, and for nothing else: there are tokens. After a program has closed
    /// it, another one.
    ///
    /// # Errors
    /// LOCAL_FD_LIMIT.
    pub fn event_fd(&self) -> Result<RawFd, Error> {
        Ok(self.0.wake.mended()?.polled().as_raw_fd())
    }

    /// The next token; `None`: nothing is due.
    pub fn take(&self) -> Option<u64> {
        let mut tokens = lock(&self.0.tokens);
        let token = tokens.pop_front();
        if tokens.is_empty() {
            self.0.wake.take_kicks();
        }
        token
    }

    /// Puts in a token, for libraries over this one with things of their own.
    pub fn tell(&self, token: u64) {
        let mut tokens = lock(&self.0.tokens);
        tokens.push_back(token);
        self.0.wake.kick();
    }
}

/// Tells one token.
#[derive(Clone, Debug)]
pub(crate) struct Teller {
    due: Due,
    token: u64,
}

impl Teller {
    pub fn new(due: &Due, token: u64) -> Self {
        Teller { due: due.clone(), token }
    }

    pub fn tell(&self) {
        self.due.tell(self.token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::os::fd::BorrowedFd;

    #[test]
    fn due_when_told_then_its_fd_is_readable_until_all_is_taken() {
        let due = Due::new().unwrap();
        // SAFETY: open as long as `due` lives.
        let fd = unsafe { BorrowedFd::borrow_raw(due.event_fd().unwrap()) };
        let is_readable = || {
            let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::ZERO).unwrap() == 1
        };
        assert!(!is_readable() && due.take().is_none());
        Teller::new(&due, 7).tell();
        Teller::new(&due, 9).tell();
        assert!(is_readable() && due.take() == Some(7));
        assert!(is_readable() && due.take() == Some(9));
        assert!(!is_readable() && due.take().is_none());
    }
}
