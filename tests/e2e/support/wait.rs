//! Waiting for what another process does: always bounded, by one number.
//! Must never be a substitute for an event: what can be awaited is awaited.

use fdbroker_client::Deadline;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fmt::Display;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Longest time that anything here may take. It ends a test that hangs, and is far above what an emulated
/// machine needs: no test passes or fails by how long something took below it.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Between two looks at a state that no event announces.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);

/// For calls that are expected to succeed.
pub fn patience() -> Deadline {
    Deadline::after(PATIENCE)
}

/// Looks until `condition` holds.
#[track_caller]
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    eventually_some(what, || condition().then_some(()));
}

/// Looks until `look` finds something.
#[track_caller]
pub fn eventually_some<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    eventually_ok(what, || look().ok_or("not so"))
}

/// Looks until `look` succeeds.
#[track_caller]
pub fn eventually_ok<T, E: Display>(what: &str, mut look: impl FnMut() -> Result<T, E>) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        match look() {
            Ok(found) => return found,
            Err(error) => {
                assert!(Instant::now() < until, "waited in vain until {what}: {error}");
            }
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}

/// Waits until a read would not block: bytes or the end.
pub fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let limit = PollTimeout::try_from(PATIENCE).expect("below 24 days");
    let mut entries = [PollFd::new(fd, PollFlags::POLLIN)];
    loop {
        match poll(&mut entries, limit) {
            Err(Errno::EINTR) => {}
            came => return came.is_ok_and(|count| count > 0),
        }
    }
}

/// The same without waiting.
pub fn is_readable_now(fd: BorrowedFd<'_>) -> bool {
    let mut entries = [PollFd::new(fd, PollFlags::POLLIN)];
    poll(&mut entries, PollTimeout::ZERO).is_ok_and(|count| count > 0)
}

/// All that comes until the other side closes the pipe; `None` when it does not, or says no text.
pub fn read_to_end(pipe: &mut (impl Read + AsFd)) -> Option<String> {
    let (mut bytes, mut piece) = (Vec::new(), [0; 256]);
    while is_readable(pipe.as_fd()) {
        match pipe.read(&mut piece).ok()? {
            0 => return String::from_utf8(bytes).ok(),
            length => bytes.extend_from_slice(&piece[..length]),
        }
    }
    None
}
