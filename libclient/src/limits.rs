//! Every bound of the library, with its reason; bounds of the wire format live in
//! `fdbroker_protocol::limits`. Must never hold a bound without its reason.

use fdbroker_protocol::limits::{AHEAD_FDS, MAX_BATCH, MAX_GROUP};
use std::time::Duration;

/// How long a connect may take, hello's answer included. A broker answers hello from its loop,
/// within microseconds, or lets it wait for its turn while the node's fds are all in use: 32 ranks
/// that start together at a full cap are let in within 0.3 s, and on an emulated machine within 3
/// s. A broker that takes longer hangs, or everything is in use: a rank should hear of it.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause between two looks for a broker that is named or installed and does not listen yet: a
/// service starts in some ten milliseconds, or never.
pub const SERVICE_PAUSE: Duration = Duration::from_millis(50);

/// Most bytes that are heard of the program that starts a broker: a path, or why it cannot.
pub const STARTER_WORDS: usize = 4096;

/// How far the clock of a wait that is to end is set ahead: beyond all deadlines, the longest of
/// which is an hour.
pub const BEYOND_DEADLINES: Duration = Duration::from_secs(2 * 3600);

/// How often a wait asks a program that may end it, without a sign of a signal: one that came just
/// before the wait, or that another thread has taken, interrupts nothing.
pub const INTERRUPT_LOOK: Duration = Duration::from_millis(50);

/// The most fds that are guarded at once: a connection has two or three, its client two. More
/// clients than this has room for are connected all the same.
pub const OWN_FDS: usize = 64;

/// Mappings that are noted for children to lease anew: as many as a process may have by the
/// kernel's default (vm.max_map_count). They are 1.5 MiB of addresses, of which the pages that are
/// used take memory. Beyond it children read the memory, and are not counted.
pub const INHERITED: usize = 1 << 16;

/// How long the broker may let a child wait for leases of what it has inherited: an owner answers a
/// recall within milliseconds, and a full cap should delay no worker's start.
pub const INHERITED_WAIT: Duration = Duration::from_millis(100);
/// The lowest number of the library's lasting fds where half of RLIMIT_NOFILE is above it, as with
/// limits of 1e9: the kernel's table then has 64 KiB, which a fork(2) copies in microseconds. To
/// grow it stalls a process with threads once, for some milliseconds.
pub const HIGH_FD_MOST: i32 = 4096;

/// How long calls wait for another connection after the program has closed the fds of the one
/// before: a living broker answers hello within microseconds. After that time they answer
/// NOT_CONNECTED at once, as without a broker.
pub const CLOSED_HERE_PATIENCE: Duration = Duration::from_secs(1);

/// How long fds that are fetched ahead lie unread: a program that fetches one after the other takes
/// the next within a millisecond, and each pins its memory.
pub const AHEAD_TIME: Duration = Duration::from_millis(100);

/// The longest pause between two looks for fds that were asked for ahead and have not come, the
/// first being [`AHEAD_TIME`]: the broker leaves out without a word what it has no room for, and
/// one that is busy sends late. What comes later still is given back at the next fetch, at an end
/// of memory, or when the broker asks for leases.
pub const AHEAD_LAST_PAUSE: Duration = Duration::from_secs(4);

/// Most fds that count as asked for ahead and not come: those of two requests. What has not come of
/// older ones was left out.
pub const AHEAD_AWAITED: usize = 2 * AHEAD_FDS;

/// How long a client does without a socket for fds fetched ahead when the broker has none to give:
/// the next acquires cost a round trip each, as they do without.
pub const AHEAD_RETRY: Duration = Duration::from_secs(1);

/// First and longest pause before connecting again when the broker has said AGAIN: many others of
/// this user are connecting, each of which takes the broker some tens of microseconds.
pub const AT_THE_DOOR_FIRST: Duration = Duration::from_millis(1);
/// See [`AT_THE_DOOR_FIRST`].
pub const AT_THE_DOOR_LAST: Duration = Duration::from_millis(50);

/// Between two attempts to connect while the listener's backlog is full (EAGAIN, which no event
/// ends).
pub const BACKLOG_PAUSE: Duration = Duration::from_millis(5);

/// While hello's answer is awaited on a reconnect in dispatch mode: how often the event fd says to
/// look for it. A broker answers within microseconds; one that hangs is no load at this rate.
pub const HELLO_SLICE: Duration = Duration::from_millis(5);

/// How often whoever waits or has something at the broker looks whether the broker was killed: a
/// thread of a killed process that hangs in the kernel keeps its sockets open, and no event tells.
/// Short beside the grace time (10 s), in which all must be named.
pub const LIVENESS_LOOK: Duration = Duration::from_secs(2);

/// How long the page must say so before the connection is dropped: in a takeover the word is
/// another broker's within milliseconds, also when one of the two dies meanwhile, and the
/// connection goes on.
pub const LIVENESS_CONFIRM: Duration = Duration::from_millis(100);

/// Longest sleep with nothing to wait for; every cause to wake comes with an event.
pub const IDLE: Duration = Duration::from_secs(3600);

/// How much sooner than the caller's deadline the broker has to answer; a quarter of the deadline
/// where that is less. It covers the broker's loop and the scheduler on a loaded node: the broker's
/// answer says which cap was in the way.
pub const ANSWER_LEAD: Duration = Duration::from_secs(1);

/// How much longer than its deadline a call waits for an answer: for a deadline of 0, and for an
/// answer under way. After it: cancel, TIMED_OUT, whatever the broker does.
pub const REPLY_GRACE: Duration = Duration::from_millis(50);

/// How long a request without a deadline of its own (naming what is alive to another broker) may go
/// unanswered. The broker never parks such a request, so this only ends the wait for a broker that
/// hangs.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// How long an unregister without a deadline of its own waits. The broker never parks it, so this
/// only ends the wait for a broker that hangs; what the caller frees after it is safe all the same.
pub const UNREGISTER_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest sleep of a thread whose send found the socket full before it looks again whether it must
/// read. It bounds how long "nobody reads" can last, see `connection`.
pub const SEND_SLICE: Duration = Duration::from_millis(10);

/// How long the first read for a reply waits by itself, which saves a poll(2) before it. Most
/// replies come within microseconds; for a later one poll(2) waits until the deadline, and for a
/// deadline sooner than this at once.
pub const READ_SLICE: Duration = Duration::from_millis(10);

/// First and longest pause between two tries to reach a broker that went away: short enough that a
/// restart is hardly noticed, long enough that a thousand waiting ranks are no load.
pub const RECONNECT_FIRST: Duration = Duration::from_millis(10);
/// See [`RECONNECT_FIRST`].
pub const RECONNECT_LAST: Duration = Duration::from_secs(1);

/// First and longest pause before asking again when a whole request answered AGAIN before its
/// deadline. The broker parks such requests, so this only keeps a broker that does not from being
/// spun on.
pub const AGAIN_FIRST: Duration = Duration::from_millis(1);
/// See [`AGAIN_FIRST`].
pub const AGAIN_LAST: Duration = Duration::from_millis(20);

/// Most one-way messages (releases, mapped, cancels, unregisters of freed buffers) queued while the
/// socket is full: 8 MiB of numbers. A client has no more leases than the broker's caps allow, far
/// below this; beyond it the connection is ended, which releases everything and keeps the ledger
/// exact.
pub const MAX_QUEUED_ONE_WAY: usize = 1 << 20;

/// How long a lease reported as mapped or given back, or the end of a registration that nobody
/// waits for, waits for others, to go with them in one message. A program that opens or closes
/// buffers does so every 10 us or so, and nobody notices a millisecond.
pub const GATHER_TIME: Duration = Duration::from_millis(1);

/// How many of them are sent without waiting for more: by then the cost of a message is small
/// beside theirs.
pub const GATHER_MOST: usize = 64;

/// How long nothing waits after the broker has asked for leases back, or has said NO_QUOTA: others
/// wait for each of them.
pub const PRESSED_TIME: Duration = Duration::from_secs(1);

/// Most requests given up on and not yet answered. The broker answers each request once; one that
/// owes this many answers does not work, and the connection is ended.
pub const MAX_ABANDONED: usize = 1024;

/// Most unregister requests of freed buffers under way: while one is answered the next batch
/// gathers, so a few keep the broker busy and the replies are few.
pub const MAX_UNREGISTERS_UNDERWAY: usize = 4;

/// Address space kept for the generation page, in slots: 64 MiB of addresses, no memory. The page
/// is mapped into it again at each reconnect, so that a reader needs no lock. Slots beyond it read
/// as "not current", which is slow and safe.
pub const PAGE_RESERVED_SLOTS: u32 = 16 << 20;

/// The first zone of addresses for what is imported, in bytes: room for 16,384 small imports,
/// nothing beside 47 bits of addresses. Each further zone doubles what there is.
pub const FIRST_ZONE_BYTES: usize = 64 << 20;

/// Most zones. Doubling needs 21 of them for all addresses. Under RLIMIT_AS a zone is this part of
/// the limit, and what is larger than half of that has a zone of its own: 192 use it up. A child
/// closes each by a system call.
pub const ZONES: usize = 256;
/// See [`ZONES`].
pub const ZONES_IN_LIMIT: u64 = 64;

/// What a child closes of a zone by one system call, in bytes: 1,024 small imports, whose records
/// fit the caches of a processor. 65,000 take a tenth less time than by one call. Most calls for
/// one zone: an empty one takes 0.6 us.
pub const CLOSE_BYTES: usize = 4 << 20;
/// See [`CLOSE_BYTES`].
pub const CLOSE_STEPS: usize = 64;

/// Mappings that are kept to be given up when the process has all that it may have: unmapping a
/// part of a zone takes two, at the limit one more.
pub const SPARE_MAPPINGS: usize = 3;

/// A huge page of shared memory, where the file's offset is a multiple of it as the address is: on
/// x86-64, and on aarch64 with pages of 4 KiB.
pub const HUGE_PAGE: usize = 2 << 20;

/// The smallest page of hugetlbfs (aarch64): at any other address it refuses to map before it
/// unmaps what is there.
pub const SMALLEST_HUGE_PAGE: usize = 64 << 10;

/// How long a seal waits for children of fork(3) to begin, which lets go of their copy of a
/// mapping: microseconds, or until a busy machine gets to them. A child that is stopped meanwhile
/// is in the way of the seal.
pub const CHILD_BEGIN: Duration = Duration::from_secs(1);
/// Between two tries.
pub const CHILD_PAUSE: Duration = Duration::from_millis(1);

/// Most deposit credits asked for at once: some full messages (253 each). More would reserve places
/// in the broker that others could use meanwhile.
pub const MAX_CREDITS_WANTED: u32 = 1024;

/// Of the places for requests under way one in so many is left to seals by started requests that
/// wait for room: it is the seals that make room, each within microseconds, so few will do.
pub const SEALS_PART: usize = 4;

/// How many deposits are announced with one with a virtual fd that comes right after another,
/// within [`ROW_GAP`]: the broker makes room for all of them at once, ahead, and not for each while
/// it waits. A cap of 256 has thirty-two times as many.
pub const ROW_CREDITS: usize = 8;
pub const ROW_GAP: Duration = Duration::from_millis(2);

/// How long dropping the last client waits for the library thread to end. A callback should take
/// microseconds to milliseconds; one that hangs must not hang the drop.
pub const THREAD_END_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a recall waits for a place in the export window before it is answered with AGAIN ("not
/// now"). Places are held only over an export and a send.
pub const WINDOW_TIMEOUT: Duration = Duration::from_millis(500);

/// Most event messages served before the other sockets are looked at again.
pub const EVENTS_PER_TURN: usize = 64;

/// How long the end of a socket is left to another thread that is about to read it: a yield, so
/// that the serving thread does not spin.
pub const HANG_UP_PAUSE: Duration = Duration::from_millis(1);

/// Fewest entries of an `Exports` table at which those ended by others are swept out; after that
/// whenever it has doubled. So it has at most this many entries, or twice what the broker's cap on
/// allocations lets a client have, and a sweep costs each entry less than its registration.
pub const EXPORTS_SWEEP_LEAST: usize = 1024;

/// Entries of the import cache: one per slot of the generation page, at the slot's own number, and
/// some for allocations whose place is taken by an ended one of the same slot that is still in use:
/// a million of those is a program that never releases.
pub const CACHE_ENTRIES: u32 = PAGE_RESERVED_SLOTS + SPARE_ENTRIES;
/// See [`CACHE_ENTRIES`].
pub const SPARE_ENTRIES: u32 = 1 << 20;

/// Mappings that a process may have where /proc does not tell: the kernel's default
/// (vm.max_map_count).
pub const MAX_MAP_COUNT: u64 = 65_530;

/// Entries per segment of the cache's tables, as a power of two: 65,536 make 2 MiB of entries, and
/// a few hundred segments at most. A small cache touches a few pages of one segment; the rest is
/// address space.
pub const CACHE_SEGMENT_SHIFT: u32 = 16;

/// Pin counts per entry. Two threads that share one stripe slow each other down on a hot entry, so
/// this is about the cores that the threads of one rank use; each stripe costs 4 bytes per entry
/// when a thread uses it.
pub const PIN_STRIPES: usize = 16;

/// Most pins of one entry by the threads of one stripe: half of what the count can hold, so that
/// threads that go over it at once cannot wrap it. Only a program that never releases gets there.
pub const MAX_PINS: u32 = 1 << 31;

/// Entries an eviction looks at before it takes the next unused one, referenced or not, and as many
/// again before it gives up and lets the cache go over its limit: an import costs the same however
/// many entries there are.
pub const EVICTION_LOOKS: usize = 32;

/// Most entries closed under one hold of the cache's lock: looking at each costs about 0.1 us, so a
/// miss of another thread waits some microseconds.
pub const CLOSE_CHUNK: usize = 64;

/// How long a miss waits for the broker's caps before the cache closes what it does not use, and
/// asks again: the broker parks a request until its deadline, and it cannot know that what it waits
/// for is idle right here.
pub const QUOTA_SLICE: Duration = Duration::from_millis(100);

/// What objects of a group begin at multiples of in host memory, in bytes: a cache line, so that
/// two readers' objects share none.
pub const OBJECT_ALIGN: u64 = 64;

/// The same in device memory: what cuMemAlloc promises at least (CUDA C++ Programming Guide,
/// "Device Memory Accesses").
pub const OBJECT_DEVICE_ALIGN: u64 = 256;

/// Memory from this size on is compared with what the machine has left before it is allocated, in
/// bytes: the look takes some 100 us, a hundredth of what such an allocation takes, and a machine
/// with less to spare is about to fail anyway.
pub const MEMORY_CHECK_BYTES: usize = 64 << 20;

/// Most parts of one write: UIO_MAXIOV of pwritev(2).
pub const WRITE_PARTS: usize = 1024;

/// How often a get begins anew because an object was replaced between the answer and the one with
/// its metadata.
pub const METADATA_TRIES: usize = 8;

/// Most names that the cache of objects keeps: each is some 200 bytes and, alone in its group, one
/// mapping of vm.max_map_count.
pub const OBJECTS_KEPT: usize = 4096;

/// Most events of a watch that are not read yet: those of four full groups that are made and
/// replaced. Each is some 100 bytes.
pub const WATCH_EVENTS: usize = 2048;

/// How long a watch waits for a new broker to take it.
pub const WATCH_AGAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Most aborts of groups that are sent and not answered: the answer to one takes microseconds, and
/// more wait in the queue.
pub const MAX_ABORTS_UNDERWAY: usize = 64;

/// Most freed memory that an arena keeps at hand instead of giving it back to the system, in bytes.
/// Buffers freed and allocated in turn stay within it and cost no system call; what goes back is
/// faulted in again, zeroed, when it is next used. Small beside any rank, also with many of them on
/// a node.
pub const ARENA_WARM_BYTES: usize = 4 << 20;

/// Allocations that were retired and are drained of which a client still says so: who was told that
/// others have one asks again, soon, and of few at a time.
pub const RETIRED_KEPT: usize = 4096;

/// Free fds below which a call of the CUDA driver that the system refused is taken to have failed
/// for want of fds: an export makes one, an import has a few open for a moment.
pub const CUDA_CALL_FDS: usize = 8;

/// The same while the driver is loaded and a context made: 33 stay open (H200, driver 580), and
/// some pass.
pub const CUDA_DEVICE_FDS: usize = 48;

/// The same for a call of a Level Zero driver: an export makes one, an open handle may fetch
/// another by pidfd.
pub const LEVEL_ZERO_CALL_FDS: usize = 4;

/// The same while loader, driver and context are made: a driver opens the device's nodes and keeps
/// a few per device.
pub const LEVEL_ZERO_START_FDS: usize = 16;

/// Most drivers, and devices of one, that are looked at: more than a node has, and the loader's
/// answer is a number that memory is made for.
#[cfg(feature = "level-zero")]
pub const LEVEL_ZERO_DEVICES: u32 = 1024;

/// Number of the fd by which it is found out whether a Level Zero driver closes what it imports:
/// above what other threads get, since the system gives the lowest that is free, and low enough for
/// the table to grow to it (8 KiB).
pub const LEARNING_FD: i32 = 1000;

// What the bounds' reasons say of one another.
const _: () = {
    assert!(AHEAD_TIME.as_nanos() < AHEAD_LAST_PAUSE.as_nanos());
    assert!(AT_THE_DOOR_FIRST.as_nanos() < AT_THE_DOOR_LAST.as_nanos());
    assert!(RECONNECT_FIRST.as_nanos() < RECONNECT_LAST.as_nanos());
    assert!(AGAIN_FIRST.as_nanos() < AGAIN_LAST.as_nanos());
    assert!(LIVENESS_CONFIRM.as_nanos() < LIVENESS_LOOK.as_nanos());
    assert!(REPLY_GRACE.as_nanos() < ANSWER_LEAD.as_nanos());
    assert!(CHILD_PAUSE.as_nanos() < CHILD_BEGIN.as_nanos());
    assert!(ROW_CREDITS <= MAX_CREDITS_WANTED as usize);
    assert!(3 * ZONES_IN_LIMIT <= ZONES as u64);
    assert!(CLOSE_BYTES <= FIRST_ZONE_BYTES && FIRST_ZONE_BYTES.is_multiple_of(HUGE_PAGE));
    assert!(HUGE_PAGE.is_multiple_of(SMALLEST_HUGE_PAGE));
    assert!(OBJECT_DEVICE_ALIGN.is_multiple_of(OBJECT_ALIGN));
    assert!(CACHE_ENTRIES.is_multiple_of(1 << CACHE_SEGMENT_SHIFT));
    assert!(8 * MAX_GROUP <= WATCH_EVENTS && GATHER_MOST <= MAX_BATCH);
    assert!(LEARNING_FD < HIGH_FD_MOST && CUDA_CALL_FDS < CUDA_DEVICE_FDS);
    assert!(LEVEL_ZERO_CALL_FDS < LEVEL_ZERO_START_FDS);
};
