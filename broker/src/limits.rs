//! Every bound of the daemon's own loops, queues and tables, each with the reason for its size.
//! What an administrator may change is in [`crate::settings`]; this file must never hold a bound
//! without its reason. Relations between them are asserted beside them.

use fdbroker_protocol::limits::{AHEAD_FDS, MAX_BATCH, MAX_NEIGHBOURS};
use std::time::Duration;

/// What a message costs before its first item, in items and fds (each some 0.5 us).
pub const WORK_PER_MESSAGE: usize = 4;

/// Work of one client's turn, in items and fds: 2 single grants (some 10 us), or one message of
/// more, whatever its size.
pub const WORK_PER_TURN: usize = 2 * (WORK_PER_MESSAGE + 1);

/// Work of several clients' turns before the daemon looks which clients have become ready
/// meanwhile: 6 single grants (some 30 us), or a longer turn. Clients that have just become ready
/// go first, so this is what a client waits for others. A look costs as much as a third of a grant.
pub const WORK_PER_WAKE: usize = 6 * (WORK_PER_MESSAGE + 2);
const _: () = assert!(WORK_PER_TURN <= WORK_PER_WAKE);

/// Wakes with long turns before one that has a chore and no turn: chores go on under any flood, at
/// the rate of one for two turns.
pub const MOST_WAKES_WITHOUT_CHORE: u32 = 2;

/// Turns of clients that have just become ready, before one that has work left has its turn.
pub const FRESH_IN_A_ROW: usize = 16;

/// Allocations looked at to find the neighbours of a virtual fd: some 10 us, those that have none
/// or have ended included.
pub const NEIGHBOUR_LOOKS: usize = 64;
const _: () = assert!(NEIGHBOUR_LOOKS > MAX_NEIGHBOURS as usize);

/// Event messages sent to one client per turn, so that a turn is short.
pub const EVENTS_PER_TURN: usize = 2;

/// Clients that are sent events in a chore, for the same reason.
pub const EVENT_TURNS_PER_CHORE: usize = 2;

/// Readiness events taken from the kernel per wake; the rest comes with the next wake.
pub const READINESS_PER_WAKE: usize = 256;

/// Connections of one listener accepted in a chore, so that a storm of them does not stall the
/// served ones: each costs some 40 us.
pub const ACCEPTS_PER_CHORE: usize = 1;

/// Connections turned away at the door in a chore, each some 8 us, beside the one that is accepted:
/// they are many when somebody connects in a loop, and stand in the queue before those of others.
pub const TURNED_AWAY_PER_CHORE: usize = 8;

/// Connections that have not said hello, nor which client they join: the library says it at once,
/// so these are as many as connect at the same time. A further one is told to try again.
pub const LOBBY: u32 = 256;

/// Most of them of one domain: others find the rest.
pub const LOBBY_PER_DOMAIN: u32 = 16;
const _: () = assert!(LOBBY_PER_DOMAIN < LOBBY);

/// Connections without a hello, or clients without an event socket, whose time is looked at in a
/// wake: ending one takes some 10 us, and thousands may have come at once.
pub const EXPIRIES_PER_WAKE: usize = 2;

/// Sockets closed in a chore: of ended connections, each some 10 us, and of those turned away, each
/// some 3 us.
pub const SOCKETS_PER_CHORE: usize = 4;

/// Messages that a socket can have in it: the kernel takes no more than net.unix.max_dgram_qlen, or
/// than fit the sender's buffer (212,992 bytes, some 770 each at least).
pub const MESSAGES_IN_A_SOCKET: usize = 1024;

/// Fds that a grant may have while other clients wait for their turns, some 15 us: the rest is
/// asked for again. A client that is alone is granted a whole message.
pub const GRANT_IN_TURN: usize = 32;
const _: () = assert!(AHEAD_FDS <= GRANT_IN_TURN && GRANT_IN_TURN <= MAX_BATCH);

/// Fds closed by the closers that are noted in a chore, each a step of the core (some 0.5 us).
pub const REPORTS_PER_CHORE: usize = 16;

/// Pause after accept(2) found no room (EMFILE, ENFILE, ENOMEM): the connection stays queued and
/// the socket readable, so trying at once would spin.
pub const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// From the end of a client until memory is given back to the system, which takes some 100 us: once
/// for all that end meanwhile.
pub const TRIM_PAUSE: Duration = Duration::from_secs(1);

/// Names of objects whose end is worth it, some 4 MiB.
pub const NAMES_WORTH_A_TRIM: u64 = 16 << 10;

/// Most groups of a client that are asked for (SO_PEERGROUPS): 4 KiB. Site directories give users
/// some hundred; of a process with more, only the first group counts.
pub const PEER_GROUPS: usize = 1024;

/// Pause of a start that is refused for its configuration before it ends, as a service: systemd
/// starts it again 200 ms later, without end, and each try writes some lines into the journal. It
/// is what a mended file waits for at most, and much less than TimeoutStartSec=30s of the unit.
pub const REFUSED_PAUSE: Duration = Duration::from_secs(5);

/// Connections waiting in a listener's queue: the kernel's default upper bound
/// (net.core.somaxconn).
pub const LISTEN_BACKLOG: i32 = 4096;

/// Most listeners: each is an isolation domain for an administrator to overlook, and an fd.
pub const MAX_LISTENERS: usize = 16;

/// Most connections of administrators at once: a node has a handful of people and programs that
/// look. A further connection takes the place of one that has been idle for [`ADMIN_IDLE`], or has
/// had its place for [`ADMIN_TURN`].
pub const MAX_ADMIN_CONNECTIONS: usize = 16;

/// Most of these connections that watch. A watcher stays for hours and never gives way, so half of
/// the places are for others: a command always finds one, however many `fdbroker watch` and
/// `fdbroker top` were left open.
pub const MAX_ADMIN_WATCHES: usize = MAX_ADMIN_CONNECTIONS / 2;

/// An administrator's connection that has asked nothing for so long gives way to one that waits for
/// a place. A command asks page after page without a pause; `fdbroker top`, which rests between its
/// looks, connects anew.
pub const ADMIN_IDLE: Duration = Duration::from_secs(1);

/// A connection that asks without a pause keeps its place for so long, from its first query on.
/// Then it gives way, too; the connection that has rested for longest is the first. A list of
/// 100,000 records takes some 140 ms (`cargo bench -p fdbroker --bench ls`), and a command waits
/// this long at most for each (MAX_ADMIN_CONNECTIONS - MAX_ADMIN_WATCHES) that came before it: less
/// than its own 10 s.
pub const ADMIN_TURN: Duration = Duration::from_secs(3);
const _: () = assert!(ADMIN_IDLE.as_millis() < ADMIN_TURN.as_millis());

/// Most connections of users that look at what is their own, beside those of administrators: some
/// users at a time, each with one or two commands. A further one takes the place of one that has
/// been idle for [`ADMIN_IDLE`] or has had its place for [`ADMIN_TURN`], or of a user that has two
/// more places than its own: users that take all they may leave a place to everybody else.
pub const MAX_VIEWERS: usize = 32;

/// Most of them of one user: others find the rest. A `fdbroker top` has two.
pub const MAX_VIEWERS_PER_USER: usize = 4;

/// Most of a user's that watch, for the same reason as [`MAX_ADMIN_WATCHES`].
pub const MAX_WATCHES_PER_USER: usize = MAX_VIEWERS_PER_USER / 2;
const _: () = assert!(0 < MAX_WATCHES_PER_USER && MAX_WATCHES_PER_USER < MAX_VIEWERS_PER_USER);

/// Most of all users' that watch, for the same reason. One more takes the place of a user that has
/// two more of these than its own.
pub const MAX_VIEWER_WATCHES: usize = MAX_VIEWERS / 2;

/// Most connections of monitors, beside those of users: a node is to be monitored just when its
/// users crowd. One monitor has [`MAX_VIEWERS_PER_USER`].
pub const MAX_MONITORS: usize = 8;

/// Most of these that watch, for the same reason as above.
pub const MAX_MONITOR_WATCHES: usize = MAX_MONITORS / 2;
const _: () = assert!(MAX_VIEWERS_PER_USER <= MAX_MONITORS && MAX_MONITORS <= MAX_VIEWERS);

/// Connections of users that look which are accepted in a chore: each costs some 20 us, and most of
/// those that are turned away come from one user.
pub const VIEWERS_PER_CHORE: usize = 2;

/// Records in one administrator's answer: it must not hold up grants for more than some 100 us, and
/// a message is 32 KiB at most.
pub const ADMIN_RECORDS_PER_PAGE: usize = 256;

/// Messages with fds a client may leave unread. An unread 1-fd message costs 5 KB of kernel memory
/// and its fds count against the broker's uid. The library reads at once, so 16 is room for 16
/// threads' replies.
pub const UNREAD_MESSAGES_PER_CLIENT: u32 = 16;

/// Fds a client may leave unread before its next one waits: one full message.
pub const IN_FLIGHT_FDS_PER_CLIENT: u64 = MAX_BATCH as u64;

/// Clients looked at in one sweep for fds that have been read, each some 0.5 us; the next sweep
/// goes on behind them.
pub const IN_FLIGHT_LOOKS_PER_SWEEP: usize = 16;

/// Clients that go on in one such sweep: each is sent what it waits for, a message of 253 fds
/// maybe.
pub const RESUMED_PER_SWEEP: usize = 2;

/// Fewer bytes than this in a socket (SIOCOUTQ) are no message: the kernel counts a message with
/// its own bookkeeping, at least 256 bytes of it, and tells that it has been read while a last byte
/// of it is still counted (`sock_wfree`). Nothing would tell again.
pub const LEAST_UNREAD_BYTES: usize = 256;

/// The share of the fd limit that may be in flight to all clients: beyond the whole of it every
/// send of this uid fails with ETOOMANYREFS, and other programs of the uid need some too.
pub const IN_FLIGHT_DIVISOR: u64 = 2;

/// Time in which every held memfd is looked at again, however many there are: it can grow.
pub const FILES_ROUND: Duration = Duration::from_secs(10);

/// The same where there are few, so that what grows and is then left by its owner is charged soon.
pub const FILES_ROUND_OF_FEW: Duration = Duration::from_secs(1);

/// Least time between two looks at memfds that are few: 0.13 % of the loop's time, at 256 each. So
/// up to 2,560 of them are looked at each second, and from 25,600 on all in [`FILES_ROUND`].
pub const FILES_PAUSE: Duration = Duration::from_millis(100);

/// Most memfds looked at in one go, some 0.5 us each.
pub const FILES_PER_LOOK: usize = 256;

/// Most slots passed in one go in search of memfds: 20 us.
pub const SLOTS_PER_LOOK: usize = 4096;

/// Most sockets for fds that are fetched ahead: one for each process of the largest nodes, which
/// have eight GPUs and a rank or two for each; a client without one fetches as it needs.
const AHEAD_SOCKETS_MOST: u64 = 64;

/// The sockets for fds fetched ahead in a broker whose table has `table_fds` places: none where it
/// is hardly enough to serve with. The fds in all of them are less than a sixteenth of as many in
/// flight.
pub fn ahead_sockets(table_fds: u64) -> u64 {
    (table_fds / (16 * AHEAD_FDS as u64)).saturating_sub(1).min(AHEAD_SOCKETS_MOST)
}

/// Ended allocations that are remembered for `fdbroker audit`, each of their files by itself: 88
/// bytes each, 5.5 MiB in all. An application of 64 ranks with 1,000 buffers each fits.
pub const TOMBSTONES: usize = 1 << 16;

/// Most of them of one domain: others find the rest.
pub const TOMBSTONES_PER_DOMAIN: usize = 8192;
const _: () = assert!(TOMBSTONES_PER_DOMAIN < TOMBSTONES);

/// Time between two such sweeps, while a client waits until others have read: no event tells.
pub const IN_FLIGHT_SWEEP: Duration = Duration::from_millis(1);

/// Requests of one client that may wait for closes: one for each thread that ends memory at the
/// same time.
pub const SETTLES_PER_CLIENT: usize = 64;

/// Replies without fds kept for a client whose socket is full, beyond one per parked request: the
/// one under way. No request is read while any is kept, so more cannot come.
pub const PENDING_REPLIES_BESIDE_PARKED: usize = 2;

/// Largest fd table, in fds: the kernel's default upper bound (fs.nr_open), 8 MiB of kernel memory.
/// Limits of 1e9 exist.
pub const MAX_TABLE_FDS: u64 = 1 << 20;

/// Bits of a cursor in the list of all objects that say which member of a group; the others say
/// which group.
pub const MEMBER_BITS: u32 = 8;
const _: () = assert!(fdbroker_protocol::limits::MAX_GROUP <= 1 << MEMBER_BITS);
/// The broker holds an fd of each group.
const _: () = assert!(MAX_TABLE_FDS < 1 << (32 - MEMBER_BITS));

/// Smallest share of the table that must be left for the core to plan with, else the daemon refuses
/// to start: its reserve for one inbound message (253) and a handful of clients and allocations.
pub const MIN_CORE_FDS: u64 = fdbroker_core::limits::TABLE_RESERVE + 64;
const _: () = assert!(MIN_CORE_FDS < MAX_TABLE_FDS);

/// Fds closed by the refused closer without a charge in the core (they came with broken messages),
/// of one uid. At this number the uid's messages wait until they are closed: long enough for
/// mistakes, short against a whole message.
pub const REFUSED_FDS_PER_UID: u32 = 64;

/// Refused fds of one register message that are classified, each some 5 us; what comes behind them
/// says AGAIN. Mistakes are told a few at a time.
pub const REFUSED_LOOKS_PER_MESSAGE: usize = 4;

/// Fds of one uid that came with messages, were not kept and are not closed yet; at this number its
/// messages wait until some are. One full message.
pub const ARRIVED_CLOSINGS_PER_UID: u32 = 253;
const _: () = assert!(ARRIVED_CLOSINGS_PER_UID as usize == MAX_BATCH);

/// When none of the closes that a uid's messages wait for came back for so long, they hang. From
/// then on its messages are read without their fds: deposits are refused, all else is served, and
/// nothing more can pile up. A last close of GPU memory takes 2 ms, and 253 of them 0.6 s.
pub const HUNG_CLOSE: Duration = Duration::from_secs(1);

/// Refused fds that one uid can have: its bound, and a whole message beyond it.
const REFUSED_FDS_OF_ONE: u64 = REFUSED_FDS_PER_UID as u64 + MAX_BATCH as u64;

/// Places in a table of `table_fds` that are set aside for refused fds. While a whole message more
/// would not fit them, no message with fds is read. So there are places for several users whose
/// closes hang, at most for as many as there are lanes that can hang.
pub fn refused_fds(table_fds: u64) -> u64 {
    let most = (LANES_MAX - LANES_FOR_ACCEPTED) as u64 * REFUSED_FDS_OF_ONE;
    (table_fds / 16).clamp(REFUSED_FDS_OF_ONE, most)
}

/// Places in a table of `table_fds` for sockets that were turned away with fds in them, and whose
/// close takes long. When all are used, no connection is accepted: the next one may be turned away,
/// too. Clients that are connected do not feel it. From Linux 6.16 on no fds lie in such sockets.
pub fn turned_away(table_fds: u64) -> u64 {
    (table_fds / 64).clamp(16, 1024)
}

/// Slots looked at for one administrator's answer: those that are free, or that the filter leaves
/// out, take time too.
pub const ADMIN_SLOTS_SCANNED: u32 = 4096;

/// One group of objects is looked at in place of so many slots: it may have 253 of them.
pub const OBJECT_GROUPS_SHARE: u32 = 64;

/// The same for a user that looks: some 50 us, because anybody may ask without a pause, and each
/// grant then waits for one answer.
pub const VIEWER_SLOTS_SCANNED: u32 = ADMIN_SLOTS_SCANNED / 4;

/// Events kept for one watcher that does not read: 360 KiB, and 10 MiB for as many watchers as
/// there can be. A second of a busy node; what comes then is counted.
pub const WATCH_EVENTS_KEPT: usize = 4096;

/// Events in one message to a watcher: 22 KiB of the 32 KiB that a message on the administrator's
/// socket may have.
pub const WATCH_EVENTS_PER_MESSAGE: usize = 256;
const _: () = assert!(WATCH_EVENTS_PER_MESSAGE <= WATCH_EVENTS_KEPT);

/// Events that are kept for administrators who ask afterwards, 128 bytes each, 1.3 MB in all: what
/// several users have done in the minutes before a fault. Grants are not among them, since they
/// come some 100,000 a second.
pub const EVENTS_KEPT: usize = 10_000;

/// Lists of these events, two for each domain; the longest one makes room. With 64 a domain keeps
/// at least 156 events of each list, and to look for the longest takes some 50 ns. Further domains
/// share the last list.
pub const EVENT_LISTS: usize = 64;
const _: () = assert!(EVENTS_KEPT / EVENT_LISTS >= 156);

/// Lines of the log about one topic, such as bad input or refusals, per uid and minute; the rest is
/// counted and named in one line.
pub const LOG_LINES_PER_UID: u32 = 8;

/// The same of evictions: they are no fault, and one line says that there is no room. And of each
/// socket: one line says that somebody is at it.
pub const SINGLE_LINES: u32 = 1;

/// Uids with a count of lines about a topic; beyond them lines are dropped until the minute is
/// over.
pub const LOG_UIDS: usize = 64;

/// What a socket call of the loop takes at most when its peer does nothing about it, and for each
/// fd beside that: a send takes some 3 us and 0.1 us for each fd, and an interrupt some 10 us. What
/// a call takes beyond it is charged to its peer.
pub const USUAL_CALL_US: u64 = 20;

/// For each fd of the message, beside [`USUAL_CALL_US`].
pub const USUAL_CALL_US_PER_FD: u64 = 1;

/// What a message takes at most from a send to its receipt on a machine whose users are charged for
/// long calls: 2 us are usual, and an emulated machine takes ten times as long.
pub const MOST_MESSAGE_US: u64 = 6;
const _: () = assert!(MOST_MESSAGE_US < USUAL_CALL_US);

/// What is charged to a user at most before it has a debt: as long as the longest work of the loop
/// for one message, and more than a softirq takes.
pub const LONG_CALL_US: u64 = 1000;

/// A debt is paid in so many times its length: the calls of all users that have debts take one part
/// in so many of the loop's time.
pub const DEBT_FACTOR: u64 = 200;

/// The first debt of a user, which may be a mishap, in so many times. Its second one is behind
/// those of all, so that a hundred users take no more for it.
pub const FIRST_DEBT_FACTOR: u64 = 20;
const _: () = assert!(FIRST_DEBT_FACTOR < DEBT_FACTOR);

/// So many times what interrupts take of the loop between calls is nobody's in calls: a third of
/// the loop's time at least is between them. And for so long: a long interrupt comes again soon, or
/// not.
pub const EXCUSED_TIMES: u64 = 4;

/// For so long interrupts excuse calls after they have come.
pub const EXCUSE_TIME: Duration = Duration::from_secs(60);

/// So much of a user's calls may be beyond what is usual, in one part of so many of their time:
/// interrupts and the reclaim of memory hit every user so, and those most that call most. All users
/// together have no more of the loop's time than that.
pub const UNUSUAL_PART: u64 = 100;

/// What a user may have saved of that at most, and has at first: one that behaves for an hour has
/// no more for what it does then.
pub const MOST_ALLOWED_US: u64 = 10 * LONG_CALL_US;

/// How often the processor time of the loop is read, which takes 0.4 us, and 1.3 us in some virtual
/// machines.
pub const CPU_LOOK_US: u64 = 1000;

/// For so long it is read at each wake, once calls of a user were long by the clock: a program that
/// took the processor away, or the user.
pub const SUSPECT_TIME: Duration = Duration::from_secs(1);

/// Long calls of a user so far apart count, and at so many of them its connections end. What hits
/// an innocent user three times in three minutes has hit others, too.
pub const LONG_CALLS_APART: Duration = Duration::from_secs(60);

/// At so many long calls in separate minutes its connections end.
pub const MOST_LONG_CALLS: u32 = 3;

/// For so long a user whose connections were ended gets no new one. Then one more long call ends
/// them again.
pub const SHUT_OUT_TIME: Duration = Duration::from_secs(600);

/// A user without a long call for so long is like any other.
pub const DEBT_FORGOTTEN: Duration = Duration::from_secs(3600);

/// Users of whose calls something is remembered, 100 bytes each: more than a node has clients.
pub const DEBTORS: usize = 8192;

/// Clients that go on in a wake, once their user has paid: each is sent what it waits for.
pub const RETURNS_PER_WAKE: usize = 2;

/// Bytes of a file's fdinfo that are looked at: a dma-buf's `exp_name` lies within the first 200.
pub const FDINFO_BYTES: usize = 1024;

/// How long a start waits for another start in the same directory, which takes some milliseconds,
/// and more where a page of a million slots is allocated.
pub const START_PATIENCE: Duration = Duration::from_secs(2);

/// How long a start waits for the end of a broker that has just been killed.
pub const DEATH_PATIENCE: Duration = Duration::from_millis(100);

/// Time between two looks for either.
pub const START_RETRY: Duration = Duration::from_millis(5);
const _: () = assert!(START_RETRY.as_millis() < DEATH_PATIENCE.as_millis());
const _: () = assert!(DEATH_PATIENCE.as_millis() < START_PATIENCE.as_millis());

/// How long the end of the daemon waits for the service manager to take what it is given: PID 1
/// under load takes a second; one that takes longer is stuck, and the daemon ends without it.
pub const MANAGER_PATIENCE: Duration = Duration::from_secs(5);

/// Pause after the service manager had no room for a message that it must hear: it reads some
/// thousand of them a second.
pub const MANAGER_RETRY: Duration = Duration::from_millis(2);

/// Entries of the service manager's store beside those of carriers of what is kept: the state that
/// is handed over, its carriers (both are few), the log of what is kept, and some more.
pub const STORED_BESIDE_CARRIERS: u64 = 128;

/// Entries of the service manager's store for all that is kept, and what is beside it.
pub fn store_entries(table_fds: u64) -> u64 {
    STORED_BESIDE_CARRIERS + 2 * kept_carriers(table_fds) as u64
}

/// Bytes of each of the two areas of the log of kept objects. Half of one may be in use, which is
/// more than the caps let all objects have
/// ([`MOST_METADATA_BYTES`](fdbroker_core::limits::MOST_METADATA_BYTES)): no user can fill it. Only
/// what is written is memory.
pub const KEPT_LOG_AREA_BYTES: u32 = 1 << 31;

/// Bytes of the log of kept objects that get their memory before they are needed: a system call for
/// so many.
pub const KEPT_LOG_ALLOCATED_AHEAD: u64 = 64 << 10;

/// Bytes of the log of kept objects that are copied in a chore, some 100 us.
pub const KEPT_LOG_COPIED_PER_CHORE: u64 = 64 << 10;

/// Bytes of the log of kept objects whose memory is given back in a chore, some 100 us.
pub const KEPT_LOG_GIVEN_BACK_PER_CHORE: u64 = 512 << 10;

/// Bytes of dead records, beside a quarter of what lives, at which the rest is copied.
pub const KEPT_LOG_DEAD_BYTES: u64 = 1 << 20;

/// So many bytes are copied for each one that is written meanwhile, so that a copy ends however
/// fast records come.
pub const KEPT_LOG_COPIED_PER_WRITTEN: u64 = 4;

/// Versions of objects that are reserved at a time in the log: a write for so many seals, and as
/// many numbers are lost with a crash.
pub const VERSIONS_AHEAD: u64 = 1 << 16;

/// Fds of host memory in one carrier. A default socket takes 278 messages with an fd each; a longer
/// queue takes longer to write anew.
pub const HOST_FDS_PER_CARRIER: usize = 128;

/// Fds of a device's memory in one carrier: all others of it are sent again when one is to be
/// dropped, at once.
pub const DEVICE_FDS_PER_CARRIER: usize = 16;
const _: () = assert!(DEVICE_FDS_PER_CARRIER < HOST_FDS_PER_CARRIER);

/// Messages that are written into carriers in a chore, and sent to the service manager about what
/// is to leave its store, each some 3 us.
pub const MESSAGES_PER_CHORE: usize = 32;

/// Messages that lanes drop from carriers at a time: each fd that lives lies there twice meanwhile.
pub const DROPPED_AT_ONCE: usize = 2 * MESSAGES_PER_CHORE;

/// Empty carriers that the service manager has ahead: one is kept for fds that are written anew,
/// one is for the next new one.
pub const CARRIERS_AHEAD: usize = 2;

/// Pause after a carrier could not be written anew or stored: clients read what keeps the kernel
/// from it in microseconds, the service manager reads some thousand messages a second.
pub const CARRIER_RETRY: Duration = Duration::from_millis(20);

/// Most carriers for what is kept by a broker whose table has `table_fds` places: both ends of each
/// are open, and are entries of the service manager's store, whose time for all of them is
/// quadratic. 16,384 fds of host memory, or 2,048 of devices.
pub fn kept_carriers(table_fds: u64) -> usize {
    (table_fds / 256).clamp(4, 128) as usize
}

/// Most fds in all of them: they are in flight as long as their objects live, and so are up to
/// [half](IN_FLIGHT_DIVISOR) as many as the limit allows to clients.
pub fn kept_fds(table_fds: u64) -> usize {
    usize::try_from(table_fds / 4).unwrap_or(usize::MAX)
}

/// How long a broker that hands over waits for its successor: it has the fds in milliseconds, so
/// one that takes longer hangs, and clients must not wait for it.
pub const HANDOVER_PATIENCE: Duration = Duration::from_secs(10);

/// Tries to pack a state up: each finds the connections that cannot go along and ends them, and
/// what their end brings about is over with the next one.
pub const HANDOVER_TRIES: usize = 8;

/// How long a handover waits for clients to read fds that keep others from being sent.
pub const IN_FLIGHT_PATIENCE: Duration = Duration::from_secs(2);
const _: () = assert!(IN_FLIGHT_PATIENCE.as_millis() < HANDOVER_PATIENCE.as_millis());

/// Carriers of one handover: each takes 200 messages of 253 fds, and the largest table has 2^20
/// fds.
pub const MAX_CARRIERS: usize = 32;
const _: () = assert!((MAX_CARRIERS * 200 * MAX_BATCH) as u64 > MAX_TABLE_FDS);

/// Most of /proc/PID/cgroup that is read: 13 hierarchies (v1) of paths of PATH_MAX are less.
pub const CGROUP_FILE_BYTES: usize = 64 * 1024;

/// Most of /proc/PID/stat that is read: 52 numbers and a name of 64 bytes at most.
pub const STAT_BYTES: usize = 2048;

/// The longest path of a configuration file, its closing zero included: the kernel's PATH_MAX.
pub const PATH_BYTES: usize = 4096;

/// The largest configuration file: the one with every key and its comments has 20 KiB. When it is
/// read again, the loop parses it, a microsecond for each byte in the worst case.
pub const CONFIG_FILE_BYTES: usize = 128 * 1024;

/// Entries of a temporary directory that a private broker looks at before it serves: some
/// milliseconds.
pub const LEFTOVER_LOOKS: usize = 4096;

/// Directories of killed brokers that the next one removes: each has up to 96 MiB of records, which
/// takes milliseconds. More than one for each start, so that they become fewer.
pub const LEFTOVERS_REMOVED: usize = 8;

/// Most processes that close fds or look at them; they start when they are needed. One serves one
/// user at a time, so as many users can have closes that take long.
pub const LANES_MAX: usize = 32;

/// Of these processes, so many never make a call that can hang for ever: accepted fds are closed
/// however many users have a call that hangs.
pub const LANES_FOR_ACCEPTED: usize = 8;
const _: () = assert!(LANES_FOR_ACCEPTED < LANES_MAX);

/// Jobs that a process gets at a time: a close of an fd that is not the last takes 1 us, and to
/// hand a message over some more.
pub const LANE_BATCH: usize = 64;

/// The longest time that a lane keeps what it has done from the loop: less than a last close of GPU
/// memory.
pub const LANE_REPORT: Duration = Duration::from_micros(200);

/// How long a start waits for its first lane. Longer than any machine takes that has room for it.
pub const FIRST_LANE_PATIENCE: Duration = Duration::from_secs(10);

/// How long a lane without work stays, for the next burst: to start one takes some 200 us.
pub const LANE_IDLE: Duration = Duration::from_secs(1);

/// When no lane can be started, it is tried again after this long: at a limit of processes only the
/// end of another one helps.
pub const LANE_RETRY: Duration = Duration::from_millis(100);

/// What lanes say that is heard in a chore, some 0.5 us each.
pub const WORDS_PER_CHORE: usize = 64;

/// When the close of an accepted fd is not back after this long, nobody else waits for it: others
/// are evicted instead. A last close of GPU memory takes 2 ms, of host memory 190 ms per GiB.
pub const LANE_SLOW: Duration = Duration::from_millis(20);
const _: () = assert!(LANE_REPORT.as_micros() < LANE_SLOW.as_micros());
const _: () = assert!(LANE_SLOW.as_micros() < HUNG_CLOSE.as_micros());

/// Bytes of the log that are kept while nobody reads it: some 10,000 lines.
pub const LOG_BYTES_KEPT: usize = 1 << 20;

/// How long the end of the daemon waits for its log to be read.
pub const LOG_PATIENCE: Duration = Duration::from_secs(1);

/// How long the warden of the sockets' places lets events gather before it looks: ten looks a
/// second, of some 10 us for each socket, however many files somebody makes in a directory. A
/// program that removes a directory with all in it is done by then.
pub const PLACE_PAUSE: Duration = Duration::from_millis(100);

/// Each time that it has put back so many sockets without a quiet round, the pause is twice as
/// long: somebody undoes it again and again.
pub const MENDS_AT_ONCE: u32 = 4;

/// The longest such pause.
pub const PLACE_PAUSE_MOST: Duration = Duration::from_secs(10);
const _: () = assert!(PLACE_PAUSE.as_millis() < PLACE_PAUSE_MOST.as_millis());

/// How often it looks without an event: none tells of a directory above, or of a file system that
/// is mounted over one.
pub const PLACE_ROUND: Duration = Duration::from_secs(5);

/// How long the end of the daemon waits until it has removed the sockets: some 10 us for each,
/// unless somebody holds the lock of their directory.
pub const WARDEN_PATIENCE: Duration = Duration::from_secs(1);

/// The longest message to it or from it: the places of all sockets, two paths for each, are 8 KiB.
pub const WARDEN_MESSAGE: usize = 64 << 10;

/// Stack of the helper threads: they make a system call or two, or sleep.
pub const THREAD_STACK_BYTES: usize = 128 * 1024;

/// The daemon's own fds apart from what it was started with: epoll, signalfd, lock file, page file,
/// /proc/self/fd, the administrator's listener; two sockets to the service manager and the keep
/// book; a third socket, and the log of kept objects; the warden's socket; two pairs of sockets and
/// a signalfd for lanes, and both ends of the pair of each.
const STANDING_FDS: u64 = 17 + 2 * LANES_MAX as u64;

/// Fds open for a moment: one connection being accepted, its pidfd, one fdinfo file, one file of
/// the start; and what a library may open.
const PASSING_FDS: u64 = 4 + 8 + FDS_PER_SEAL * SEALS_AT_ONCE as u64;

/// Seals at a time whose memory a lane opens for readers, which takes some 10 us, one of each user.
/// Further ones wait, the users in turn: as many users can have one that hangs before others wait.
pub const SEALS_AT_ONCE: usize = 8;
const _: () = assert!(SEALS_AT_ONCE < LANES_MAX - LANES_FOR_ACCEPTED);

/// Fds of each beside the one that is held: a duplicate, and the new one; then the one that was
/// held.
const FDS_PER_SEAL: u64 = 2;

/// Work of a page of the names of objects, in items: some 60 us.
pub const WORK_PER_PAGE: usize = 128;

/// Names that are looked at for a page of a list, some 0.2 us each: more than a page has records,
/// since names that have ended are left out.
pub const NAMES_PER_PAGE: usize = 512;
const _: () = assert!(ADMIN_RECORDS_PER_PAGE < NAMES_PER_PAGE);

/// Places of a table of `table_fds` that the daemon keeps for itself, with `at_start` fds open when
/// it starts (stdio and what it inherits), and so many `listeners` for clients and sockets for
/// `viewing`.
pub fn own_fds(at_start: u64, (listeners, viewing): (usize, usize), table_fds: u64) -> u64 {
    let viewers = if viewing == 0 { 0 } else { viewing + MAX_VIEWERS + MAX_MONITORS };
    at_start
        + STANDING_FDS
        + PASSING_FDS
        + listeners as u64
        + MAX_ADMIN_CONNECTIONS as u64
        + viewers as u64
        + refused_fds(table_fds)
        + turned_away(table_fds)
        // Each of them, and one that is about to join.
        + 2 * ahead_sockets(table_fds)
        + 2 * kept_carriers(table_fds) as u64
}
