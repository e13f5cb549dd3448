//! Bounds of the core's own loops and tables, each with its reason. What an administrator may
//! change is in [`crate::Config`].

/// Fds a connection takes in the broker's table: its socket, its event socket, the pidfd, and a
/// socket that is about to join in place of one that is refused.
pub const FDS_PER_CONNECTION: u64 = 4;

/// Idle fds that are not closed for a newcomer's connection: connections alone must not leave the
/// broker without any fd.
pub const IDLE_FDS_KEPT: u64 = 4;

/// What domains share is kept for those that have little when less than this part of it is free:
/// one sixteenth.
pub const LAST_PART: u64 = 16;

/// A domain gets more of the last part only up to this part of the whole, one 256th: when sixteen
/// domains have taken all that they can, another one still finds some.
pub const SHARE_OF_LAST: u64 = 256;

/// And at least up to so much: the places of one connection in the table.
pub const LEAST_OF_LAST: u64 = FDS_PER_CONNECTION;

/// Most domains of one pod, or of one user that has subordinate uids: what they hold is added up
/// for each share, and they must not use up the domains of the node. A container's processes run
/// under a few uids, seldom under so many.
pub const DOMAINS_PER_USER: usize = 16;

/// Most GPUs that the clients of one domain name for their memory: 16 GPUs with 8 tiles or MIG
/// instances each are 128, and after another division of them there is memory of the former ones.
/// Each domain's are its own, 20 KiB at most: no number of domains uses up those of another.
pub const GPUS_PER_DOMAIN: usize = 256;

/// Places in the table kept free for one inbound message: the kernel's most fds per message.
pub const TABLE_RESERVE: u64 = 253;

/// Most parked items, leases and allocations of gone clients torn down in one step, to which one
/// request may add 253: some 20 us, so that the death of a client with 100,000 leases stalls
/// nobody.
pub const TEARDOWN_PER_STEP: usize = 64;

/// Most leases of ended allocations whose holders are charged and told in one step: some 20 us. 4
/// million of them take 16,000 polls, less than a second.
pub const LEASES_SWEPT_PER_STEP: usize = 256;

/// Of these, those of one domain's allocations before another's turn comes.
pub const LEASES_SWEPT_PER_TURN: usize = 16;

/// Most parked requests looked at in one step when room appears; the rest is looked at in the next
/// poll, which is then due at once.
pub const PARKED_LOOKS_PER_STEP: usize = 16;

/// Most requests that are made ready of those that hold nobody up, at each of the looks of a step:
/// some 50 us a step.
pub const LISTENERS_WOKEN_PER_LOOK: usize = 64;

/// Most items of parked requests looked at, or granted, in one step, to which the request under way
/// may add 253: a request of 253 costs as much as a hundred small ones. The daemon hands in what it
/// could not send to one list of effects, so this bounds the list, too.
pub const PARKED_ITEMS_PER_STEP: usize = 64;

/// Items for which a list of effects keeps its memory: what a step of full batches needs, doubled.
pub const EFFECTS_KEPT: usize = 2048;

/// Most items of parked requests on the node: 48 bytes each, and as much again where each item of a
/// batch waits for an account of its own.
pub const PARKED_ITEMS_PER_NODE: u64 = 1 << 20;

/// Most items of parked requests of one domain: 256 requests of full length, or one item of each
/// thread of many ranks.
pub const PARKED_ITEMS_PER_DOMAIN: u64 = 1 << 16;

/// Most allocations of owners that have turned silent whose waiting requests are told in one step.
pub const SILENT_QUEUES_PER_STEP: usize = 64;

/// Most parked requests of one domain looked at in its turn, in several steps: those that cannot be
/// served, as many as they may be, then hold up the other domains no longer.
pub const LOOKS_PER_TURN: usize = 64;

/// Most fds of its own that a client may declare in a hello that stands in line with other requests
/// when it has to wait: as many as a recall with its lease needs. Requests behind it could be
/// served by less than it waits for.
pub const HELLO_IN_LINE_FDS: u64 = 2;

/// Leases that a client is asked for at a time, if one is needed: enough that a burst of requests
/// is not served one round trip each, few enough that a cache of thousands is not emptied for one
/// request.
pub const RECLAIM_BATCH: usize = 16;

/// Time for an answer to a reclaim before more are asked: some round trips to a busy process.
pub const RECLAIM_PAUSE_US: u64 = 10_000;

/// Time before the same lease is asked for again: what was in use may be idle by then.
pub const RECLAIM_AGAIN_US: u64 = 1_000_000;

/// Most clients looked at for one reclaim, the most idle first: some 10 us. Those whose order was
/// not as it seemed, or that had nothing left, count too; the next poll goes on behind them.
pub const RECLAIM_LOOKS: usize = 32;

/// Time between two looks at accounts that are above a lowered cap: each looks at every account, in
/// portions.
pub const DRAIN_PAUSE_US: u64 = 100_000;

/// Most accounts looked at for that in one step: some 20 us.
pub const SCOPES_DRAINED_PER_STEP: usize = 1024;

/// Most evictions in one step of a broker that is being drained: some 50 us, and the next poll goes
/// on at once.
pub const DRAINED_PER_STEP: usize = 64;

/// Notes of what happened that are kept until the daemon takes them, which it does after each step:
/// a step makes at most those of a full message with the evictions for it.
pub const NOTES_KEPT: usize = 1024;

/// Most places that are made at a time for a request that waits, some 50 us of evictions: enough
/// that a batch is not served item by item, and asked for again each time; few enough that one
/// request does not close most of what a node holds.
pub const PLACES_AT_ONCE: usize = 64;

/// Fds that are fetched ahead take this part of the free room of each account at most: the rest is
/// for what is asked for.
pub const AHEAD_ROOM_DIVISOR: u64 = 4;

/// Most evictions in one step: those that a full batch (253 grants with their recalls) can need,
/// doubled.
pub const EVICTIONS_PER_STEP: usize = 512;

/// Most allocations looked at to find one to evict: those used since they were put into their queue
/// get a second chance. With 64 owners and any skew of use, this costs no more recalls than the
/// exact order (`tests/sim`).
pub const LOOKS_PER_VICTIM: usize = 8;

/// Most second chances in one step, two for each item of a full batch; then the oldest entry is
/// taken, used or not.
pub const LOOKS_PER_STEP: usize = 512;

/// Most ranges of files that are passed by in one step when bytes are short, because their file
/// would stay: some 50 us.
pub const FILE_LOOKS_PER_STEP: usize = 64;

/// Most deadlines dealt with in one poll; further ones are due at once in the next.
pub const TIMERS_PER_STEP: usize = 8;

/// Most allocations of before a crash ended in one step when the time for naming them again is
/// over: some 50 us, so that a million of them stalls nobody.
pub const RESERVED_ENDS_PER_STEP: usize = 64;

/// Most slots looked at for such allocations in one step, those included that have been named
/// meanwhile: some 20 us.
pub const RESERVED_LOOKS_PER_STEP: usize = 4096;

/// Most objects in the making under one name: replacers of a name wait for each other seldom.
pub const MAKERS_PER_NAME: usize = 16;

/// What an object is charged with in `metadata_bytes` beside its name and metadata: the broker's
/// memory for it, of which some 190 bytes were measured with groups of 253, and more than the table
/// of kept objects says of it.
pub const OBJECT_RECORD_BYTES: u64 = 192;

/// Domains without clients: each has left an fd at least, of which the node keeps some 17,000 by
/// default. A record of one takes some 1 KiB.
pub const DORMANT_DOMAINS: u32 = 1 << 16;

/// The largest cap of `metadata_bytes` for the node: what the daemon's table of kept objects has
/// room for beside what it says of each group, so that a domain's share of the cap is its share of
/// the table.
pub const MOST_METADATA_BYTES: u64 = (1 << 30) - (16 << 20);

/// Most objects of ended groups that are taken off the names in one step: some 50 us.
pub const MEMBERS_SWEPT_PER_STEP: usize = 256;

/// Of these, those of one domain's groups before another's turn comes.
pub const MEMBERS_SWEPT_PER_TURN: usize = 32;

/// The end of a group's memory counts as so many objects: some 1 us.
pub const MEMBERS_PER_MEMORY: usize = 4;

/// Most requests woken in one step that wait for a name which was sealed. Looking at them takes
/// more steps.
pub const WAITERS_WOKEN_PER_STEP: usize = 64;

/// Prefixes that one client watches: a cache has one for each thing it keeps.
pub const WATCHES_PER_CLIENT: usize = 8;

/// Events that are kept of one scope for those who watch it, whose names are charged as metadata:
/// eight full groups, some 100 us to look through with eight prefixes.
pub const EVENTS_IN_LOG: usize = 2048;

/// What an event takes beside its name, bytes.
pub const EVENT_IN_LOG_BYTES: u64 = 48;

/// Most clients woken in one step that watch names: some 10 us. Each then reads in a turn of its
/// own.
pub const WATCHERS_WOKEN_PER_STEP: usize = 64;

/// Most groups looked at in one step to find one to evict, and groups evicted, some 1 us each:
/// those that are leased, or were used since they were looked at last, go to the end.
pub const OBJECT_LOOKS_PER_STEP: usize = 64;

/// Bytes of a segment of a table. A table grows by one of them and moves nothing: some us, whatever
/// is in it.
pub const SEGMENT_BYTES: usize = 1 << 16;

/// Addresses of a client that are kept, and moved, together: 1.5 KiB.
pub const ADDRESSES_PER_CHUNK: usize = 128;

/// Slots of allocations that are used before one is used again. An application that registers and
/// ends one allocation 100,000 times a second uses up a slot's 2^32 generations in 12 hours, and
/// those of so many slots in 89 years. The records of that many take 7 MiB, once, and stay.
pub const SLOTS_BEFORE_REUSE: u32 = 1 << 16;

/// Client numbers that a predecessor may have given, whatever the new limit: 8 MiB of table.
pub const CLIENT_NUMBERS: u32 = 1 << 20;

/// Most groups of one client: the kernel's NGROUPS_MAX (include/uapi/linux/limits.h).
pub const MOST_GROUPS: usize = 65_536;

/// Records that a step may visit beside those that the items of its message ask for (invariant 9).
pub const VISITS_PER_STEP: u64 = 20_000;

/// Records that a step may visit for each item of its message.
pub const VISITS_PER_ITEM: u64 = 256;
