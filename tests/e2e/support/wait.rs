//! Waits for another process, always with the same bound.
//! Must never look again and again where there is an event to await.

use fdbroker_client::Deadline;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fmt::Display;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Longest time of every wait. It ends a test that hangs. It is far above the needs of an emulated
/// machine on busy cores, where some waits take a minute: no test passes or fails by how long
/// something took.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Pause between two looks at a state that no event announces.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);

/// Held by a test that has hundreds of fds open in this process: one such test at a time fits a
/// table of 1,024 fds.
pub fn many_fds() -> MutexGuard<'static, ()> {
    static TABLE: Mutex<()> = Mutex::new(());
    // A test that fails closes its fds all the same.
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The deadline of calls that are expected to succeed.
pub fn patience() -> Deadline {
    Deadline::after(PATIENCE)
}

/// The deadline of a call that the broker refuses. Its answer comes a quarter sooner: time for
/// threads that get no processor.
pub fn soon() -> Deadline {
    Deadline::from_ms(3000)
}

/// Looks again and again until `condition` holds.
#[track_caller]
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    eventually_some(what, || condition().then_some(()));
}

/// Calls `look` until it finds something, which is returned.
#[track_caller]
pub fn eventually_some<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    eventually_ok(what, || look().ok_or("not so"))
}

/// Calls `look` until it succeeds.
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

/// Whether a read would not block now.
pub fn is_readable_now(fd: BorrowedFd<'_>) -> bool {
    let mut entries = [PollFd::new(fd, PollFlags::POLLIN)];
    poll(&mut entries, PollTimeout::ZERO).is_ok_and(|count| count > 0)
}

/// All text until the other side closes the pipe. `None` if that does not happen in time, or the
/// bytes are no text.
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
