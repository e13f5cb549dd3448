//! Every bound of the layer, with its reason. Must never hold a bound without its reason.

use std::time::Duration;

/// How long zeMemGetIpcHandle waits for the broker. It answers within microseconds unless a cap is full; a program
/// that would wait longer is better off with the driver's own handle, which it gets then.
pub const REGISTER_TIMEOUT: Duration = Duration::from_secs(2);

/// How long zeMemOpenIpcHandle waits: the owner may have to export again first, and a cap may have to come free.
/// Without the memory the program cannot go on, so this is longer.
pub const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long zeMemFree and the last zeMemPutIpcHandle wait for the broker's word that the key has ended: it is
/// carried out within microseconds; seconds mean a broker that hangs, and a program must not hang with it.
pub const RETIRE_TIMEOUT: Duration = Duration::from_secs(2);

/// Between two tries to reach a broker that was not there at the first: a try costs microseconds, but a program may ask
/// for thousands of handles.
pub const CONNECT_PAUSE_S: i64 = 1;

/// Which part of this process's fd table is kept free of exported fds (an eighth): when an export gets a number in
/// it, exports that the broker knows go back to the driver, which makes them anew when they are recalled.
pub const FREE_FDS_PART: u64 = 8;

/// How many exports go back to the driver at once then: each costs it a close, and later perhaps an export.
pub const RELIEF_EXPORTS: usize = 16;

/// Most bytes of one line on stderr: less than PIPE_BUF (pipe(7)), so that lines of several ranks do not mix.
pub const LINE_BYTES: usize = 1024;
