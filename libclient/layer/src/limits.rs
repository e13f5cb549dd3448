//! The bounds that all layers share. Must never hold a bound without its reason.

use std::time::Duration;

/// The pause between two attempts to reach an absent broker: an attempt costs microseconds, but a
/// program may ask for thousands of handles.
pub(crate) const CONNECT_PAUSE_S: i64 = 1;

/// The most bytes of one line on stderr: below PIPE_BUF (pipe(7)), so that lines of several ranks
/// do not mix.
pub(crate) const LINE_BYTES: usize = 1024;

/// How long a program waits for the fd behind a virtual fd, whose owner may be stopped or busy in
/// its driver, and for a broker that is away, once: a restart takes seconds. A debugger's halt is
/// longer, a launcher's patience shorter. FDBROKER_LAYER_WAIT, in seconds, says otherwise.
pub(crate) const WAIT: Duration = Duration::from_secs(60);

/// The longest FDBROKER_LAYER_WAIT that is taken: a day. More is a mistake.
pub(crate) const WAIT_MOST_S: u64 = 86_400;

/// After this much of it a line on stderr says what the program waits for: an answer takes
/// milliseconds.
pub(crate) const WAIT_SAID_AFTER: Duration = Duration::from_secs(5);

/// The pause before a silent owner, or a broker that is away, is asked again: neither answers
/// anybody, so there is no hurry.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Fds in a row that were asked for ahead and had not come, before no more of them are awaited: the
/// first may only be late.
pub(crate) const MISSES_AHEAD: usize = 2;

/// How many handles by value are in a row, each in the slot after the one before, when the broker
/// is asked for their neighbours: twice is chance.
pub(crate) const IN_A_ROW: u32 = 3;

/// How long an fd that the program has closed is kept, with its lease, to be fetched again: a
/// worker that opens a segment for each batch does so within milliseconds, and the memory's owner
/// should not notice.
pub(crate) const KEPT_TIME: Duration = Duration::from_millis(20);

/// The most fds that are kept, and the most memory that they keep from the device, in bytes: a
/// process that is stopped meanwhile does not give them back. A loader's worker has a dozen
/// segments. Of the broker's free room a quarter at most: it says how much.
pub(crate) const KEPT_FDS: usize = 16;
pub(crate) const KEPT_BYTES: u64 = 256 << 20;

/// How many grants are remembered, and how long, to know what is fetched again and again: more than
/// are kept, and longer, so that those that come late are known the next time.
pub(crate) const RECENT: usize = 64;
pub(crate) const SOON_AGAIN: Duration = Duration::from_secs(1);

/// How many grants of one allocation come before one whose fd is kept: who fetches it so often will
/// do so again.
pub(crate) const TIMES: u32 = 3;

/// How long nothing is kept after the broker has asked for leases back, or has said NO_QUOTA:
/// others wait for each of them.
pub(crate) const PRESSED_TIME: Duration = Duration::from_secs(1);

/// The lowest number of a kept fd, where half of RLIMIT_NOFILE is above it: no open(2) of the
/// program is given it. As the library's own.
pub(crate) const HIGH_FD_MOST: i32 = 4096;

/// How long a fork and the begin or end of a kept fd wait for each other: that is two system calls,
/// one of them the driver's close, 10 us, and a busy machine takes some tens of milliseconds to get
/// to a thread in the middle of them. One that hangs must not hold up a fork for longer; its child
/// may have that fd then.
pub(crate) const FORK_PATIENCE: Duration = Duration::from_millis(200);

/// How long an export waits for the broker, which answers within microseconds unless a cap is full.
/// After that the program gets what the driver gives it, which serves it better than a longer wait.
pub const REGISTER_TIMEOUT: Duration = Duration::from_secs(2);

/// How long what ends memory or a number waits until the broker has ended its registration and
/// closed its fd: microseconds, up to 2 ms for the last fd of a device's memory. A broker that
/// hangs must not hang the program, too.
pub const CLOSE_TIMEOUT: Duration = Duration::from_millis(50);

/// How often an allocation is tried again that finds no memory, and the pause between: a driver
/// takes some 2 ms to close each fd that the broker has of a process which has just died. True want
/// of memory is told 50 ms later.
pub(crate) const MEMORY_TRIES: u32 = 10;
pub(crate) const MEMORY_PAUSE: Duration = Duration::from_millis(5);

const _: () = assert!(LINE_BYTES <= libc::PIPE_BUF && WAIT.as_secs() <= WAIT_MOST_S);
const _: () = assert!(RETRY_PAUSE.as_nanos() < WAIT_SAID_AFTER.as_nanos());
const _: () = assert!(WAIT_SAID_AFTER.as_nanos() < WAIT.as_nanos());
const _: () = assert!(KEPT_FDS < RECENT && KEPT_TIME.as_nanos() < CLOSE_TIMEOUT.as_nanos());
