//! Names of the broker's own files in the administrator's directory, beside its socket, and of its
//! own memfds. Must never name anything that is not the broker's.

/// The lock, which whoever serves the directory holds.
pub const LOCK_NAME: &str = "lock";
/// The key by which handles of the node are sealed.
pub const KEY_NAME: &str = "node.key";
/// The head of the generation page: what the next broker goes on from.
pub const PAGE_NAME: &str = "generations";
/// The records beside it.
pub const RECORDS_NAME: &str = "records";

/// The configuration of the last good start.
pub const GOOD_CONFIG_NAME: &str = "fdbrokerd.toml.good";

/// The generation page itself, which has no place in any directory.
pub const PAGE_MEMFD: &str = "generations";
/// The state that is handed over.
pub const STATE_MEMFD: &str = "fdbroker-state";
/// The log of what is kept.
pub const KEPT_LOG_MEMFD: &str = "fdbroker-kept-objects";
/// The configuration while it is read again, for ever if its disk hangs.
pub const CONFIG_MEMFD: &str = "fdbroker-config";
/// All memfds of a broker that are no client's memory.
pub const OWN_MEMFDS: [&str; 4] = [PAGE_MEMFD, STATE_MEMFD, KEPT_LOG_MEMFD, CONFIG_MEMFD];

/// With what the names of further links to sockets begin.
pub const LINK_PREFIX: &str = "socket-";

/// All of the files.
pub const OWN_FILES: [&str; 5] = [LOCK_NAME, KEY_NAME, PAGE_NAME, RECORDS_NAME, GOOD_CONFIG_NAME];
