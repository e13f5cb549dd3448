//! Every bound of the library, with its reason; bounds of the wire format live in `fdbroker_protocol::limits`.
//! Must never hold a bound without its reason.

use std::time::Duration;

/// How long a connect may take, hello's answer included. A broker answers hello from its loop, within
/// microseconds; seconds mean that it hangs, and a rank should go its own way rather than hang too.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a connect tries again while the node's fds are all in use, and its first pause, doubled each
/// time. The broker closes idle fds for it within milliseconds; when everything is in use for two seconds
/// the caller should hear of it.
pub const ROOM_TIMEOUT: Duration = Duration::from_secs(2);
/// See [`ROOM_TIMEOUT`].
pub const ROOM_FIRST_PAUSE: Duration = Duration::from_millis(4);

/// Between two attempts to connect while the listener's backlog is full (EAGAIN, which no event ends).
pub const BACKLOG_PAUSE: Duration = Duration::from_millis(5);

/// While hello's answer is awaited on a reconnect: how often the library thread looks whether its client was
/// dropped meanwhile, so that a broker that hangs does not hold up the drop.
pub const HELLO_SLICE: Duration = Duration::from_millis(20);

/// How much longer than the broker the library waits for an answer: the broker owns the deadline and
/// answers at it; this covers its loop and the scheduler on a loaded node. After it: cancel, TIMED_OUT.
pub const REPLY_GRACE: Duration = Duration::from_secs(2);

/// How long a request without a deadline of its own (unregister) may go unanswered. The broker never
/// parks such a request, so this only ends the wait for a broker that hangs.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest sleep of a thread whose send found the socket full before it looks again whether it must
/// read. It bounds how long "nobody reads" can last, see `connection`.
pub const SEND_SLICE: Duration = Duration::from_millis(10);

/// First and longest pause between two tries to reach a broker that went away: short enough that a
/// restart is hardly noticed, long enough that a thousand waiting ranks are no load.
pub const RECONNECT_FIRST: Duration = Duration::from_millis(10);
/// See [`RECONNECT_FIRST`].
pub const RECONNECT_LAST: Duration = Duration::from_secs(1);

/// First and longest pause before asking again when a whole request answered AGAIN before its
/// deadline. The broker parks such requests, so this only keeps a broker that does not from being spun on.
pub const AGAIN_FIRST: Duration = Duration::from_millis(1);
/// See [`AGAIN_FIRST`].
pub const AGAIN_LAST: Duration = Duration::from_millis(20);

/// Most one-way messages (releases, mapped, cancels, unregisters of freed buffers) queued while the
/// socket is full: 8 MiB of numbers. A client has no more leases than the broker's caps allow, far
/// below this; beyond it the connection is ended, which releases everything and keeps the ledger exact.
pub const MAX_QUEUED_ONE_WAY: usize = 1 << 20;

/// Most requests given up on and not yet answered. The broker answers each request once; one that
/// owes this many answers does not work, and the connection is ended.
pub const MAX_ABANDONED: usize = 1024;

/// Most unregister requests of freed buffers under way: while one is answered the next batch gathers,
/// so a few keep the broker busy and the replies are few.
pub const MAX_UNREGISTERS_UNDERWAY: usize = 4;

/// Address space kept for the generation page, in slots: 64 MiB of addresses, no memory. The page is
/// mapped into it again at each reconnect, so that a reader needs no lock. Slots beyond it read as
/// "not current", which is slow and safe.
pub const PAGE_RESERVED_SLOTS: u32 = 16 << 20;

/// Most deposit credits asked for at once: some full messages (253 each). More would reserve places
/// in the broker that others could use meanwhile.
pub const MAX_CREDITS_WANTED: u32 = 1024;

/// How long dropping the last client waits for the library thread to end. A callback should take
/// microseconds to milliseconds; one that hangs must not hang the drop.
pub const THREAD_END_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the library thread waits for a place in the export window before it answers a recall
/// with AGAIN ("not now"). Places are held only over an export and a send.
pub const WINDOW_TIMEOUT: Duration = Duration::from_millis(500);

/// Most event messages handled before the library thread looks at the other sockets again.
pub const EVENTS_PER_TURN: usize = 64;

/// Pause of the library thread when the request socket has hung up and another thread is about to
/// read that: a yield, so that it does not spin.
pub const HANG_UP_PAUSE: Duration = Duration::from_millis(1);

/// Free fds below which a call of the CUDA driver that the system refused is taken to have failed for want of fds:
/// an export makes one, an import has a few open for a moment.
pub const CUDA_CALL_FDS: usize = 8;

/// The same while the driver is loaded and a context made: 33 stay open (H200, driver 580), and some pass.
pub const CUDA_DEVICE_FDS: usize = 48;
