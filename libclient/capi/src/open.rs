//! Opening and closing a context, and whether it is connected.
//! After a close must never leave a thread, an fd or a running callback behind.

use crate::arenas::Arenas;
use crate::callbacks::{Callbacks, deliver_recall, translate};
use crate::context::{context, fdbroker_t, keep_copy};
use crate::errors::fdbroker_code_t;
use crate::failure::Failure;
use crate::gpus::Gpus;
use crate::guard::{guard, guard_value};
use crate::leases::Leases;
use crate::notices::Notices;
use crate::sized::{Growable, init, place, read};
use crate::slot::refuse_in_callback;
use crate::{logger, stats};
use fdbroker_client::{CacheSettings, Client, Deadline, Exports, ImportCache};
use std::ffi::{CStr, CString, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicPtr;
use std::time::Duration;

/// No library thread: the application polls fdbroker_event_fd() and calls fdbroker_dispatch().
/// Calls that wait serve events, too. Callbacks run inside these calls.
///
/// Between these calls nobody serves, which other processes feel: an acquire of memory of this
/// process whose fd the broker has closed waits, and answers FDBROKER_OWNER_SILENT after the
/// broker's limits.recall_timeout_ms (2 s unless configured), until this process dispatches again;
/// leases that the broker asks back for others stay; memory that has ended stays mapped in the
/// cache; of hundreds of releases in a row those that the socket has no room for wait. After a
/// crash of the broker nobody gets this process's memory until it dispatches, and its registrations
/// are lost if it does not within limits.grace_ms (10 s). Where a rank computes longer than that
/// without a call, use FDBROKER_OPEN_RECALL_THREAD.
pub const FDBROKER_OPEN_DISPATCH: u32 = 1;
/// When the connection is lost, do not look for a broker again.
pub const FDBROKER_OPEN_NO_RECONNECT: u32 = 2;
/// The library thread serves recalls and the reconnect, and runs the recall callback alone. Notices
/// wait, and the notice callback runs inside fdbroker_dispatch(), for which fdbroker_event_fd()
/// says when. Not with FDBROKER_OPEN_DISPATCH.
pub const FDBROKER_OPEN_RECALL_THREAD: u32 = 4;
/// Notices wait for fdbroker_notice_next(), and no callback is told of them.
pub const FDBROKER_OPEN_NOTICES: u32 = 8;
/// Where there is no broker, start one, for all programs of this user on the node that ask for it,
/// or those of the scheduler's job; FDBROKER_START=1 in the environment does the same. The program
/// fdbroker does it, which is found by FDBROKER_PROGRAM, beside the library or on PATH; it is no
/// child of this process. The broker ends some seconds after its last client, not while it holds
/// kept or pinned memory, or by `fdbroker stop`.
///
/// Where a socket is named or a service is installed (/run/fdbroker is there) none is started:
/// fdbroker_open() waits for that one until connect_timeout_ms is over. A process with more rights
/// than its user (AT_SECURE, getauxval(3)) starts none.
pub const FDBROKER_OPEN_START: u32 = 16;
/// The default of cache_max_entries, cache_max_bytes, leave_pinned, empty_cache, cache_strict and
/// print_stats: the environment's value (FDBROKER_CACHE_MAX_ENTRIES, FDBROKER_CACHE_MAX_BYTES,
/// FDBROKER_LEAVE_PINNED, FDBROKER_EMPTY_CACHE, FDBROKER_CACHE_STRICT, FDBROKER_PRINT_STATS), else
/// the built-in value.
pub const FDBROKER_DEFAULT: i64 = -1;

/// Settings of fdbroker_open(). Call fdbroker_options_init(), then change fields.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fdbroker_options_t {
    /// Set by fdbroker_options_init().
    pub struct_size: u64,
    /// Path of the broker's socket. NULL: FDBROKER_SOCKET, else the user's own broker, else the
    /// node's.
    pub socket: *const c_char,
    /// This client's name on screens, cut to 16 bytes. NULL: the command's name.
    pub name: *const c_char,
    /// FDBROKER_OPEN_*, combined by |.
    pub flags: u32,
    /// How many fds of shared memory this process will hold on its own; they are charged to it.
    /// Each arena has a memfd, and at least one export is on its way to the broker. 0: the default,
    /// 2.
    pub own_fds: u32,
    /// Address space of each arena of host memory, in bytes; a page costs memory from its first
    /// use. 0: 64 GiB, or less where the address space is limited. Set it low under valgrind, which
    /// touches every page at the end.
    pub arena_bytes: u64,
    /// Most entries in the import cache; 0: no limit.
    pub cache_max_entries: i64,
    /// Most bytes of memory that the import cache keeps open; 0: no limit.
    pub cache_max_bytes: i64,
    /// 1: an import stays in the cache when its last user releases it; 0: it is closed; -1: the
    /// default.
    pub leave_pinned: i32,
    /// 1: a full cache closes all unused entries; 0: only as many as it must; -1: the default.
    pub empty_cache: i32,
    /// 1: fdbroker_close() prints a line of counters to stderr; 0: it does not; -1: the default.
    pub print_stats: i32,
    /// 1: an import that would pass a limit of the cache fails with FDBROKER_NO_QUOTA while all
    /// that is open is in use; 0: the cache goes over its limits then; -1: the default.
    pub cache_strict: i32,
    /// Most fds of this process in the broker; 0: no limit but its caps; FDBROKER_DEFAULT: the
    /// environment's value (FDBROKER_MAX_HELD), else no limit. Over it the broker closes the one
    /// that was used least recently, and recalls it when it is wanted; what is neither host memory
    /// nor FDBROKER_RECALLABLE is refused with FDBROKER_NO_QUOTA.
    pub max_held_fds: i64,
    /// How long fdbroker_open() waits at most, in milliseconds; FDBROKER_DEFAULT: 10 s.
    pub connect_timeout_ms: i64,
}

// SAFETY: repr(C), struct_size first, no padding (4 + 4 beside each other); pointers may hold any
// bits until used.
unsafe impl Growable for fdbroker_options_t {
    const NAME: &'static str = "fdbroker_options_t";
    const LEAST_BYTES: u64 = 8;
    fn absent() -> Self {
        fdbroker_options_t {
            cache_max_entries: FDBROKER_DEFAULT,
            cache_max_bytes: FDBROKER_DEFAULT,
            leave_pinned: -1,
            empty_cache: -1,
            print_stats: -1,
            cache_strict: -1,
            max_held_fds: FDBROKER_DEFAULT,
            connect_timeout_ms: FDBROKER_DEFAULT,
            ..Self::zeroed()
        }
    }
}

/// Bytes of the options in the first release, which every caller has room for.
const FIRST_OPTIONS_BYTES: usize = 80;
const _: () = assert!(FIRST_OPTIONS_BYTES <= size_of::<fdbroker_options_t>());

/// Sets all options, struct_size included, to their defaults. NULL: does nothing. A macro of this
/// name passes the size of the struct; the function, for those that take its address, sets the
/// fields of the first release.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_options_init(options: *mut fdbroker_options_t) {
    // SAFETY: the caller's struct, at least as large as the first release's.
    unsafe { fdbroker_options_init_sized(options, FIRST_OPTIONS_BYTES) };
}

/// The same for a struct of struct_size bytes: the caller's sizeof(fdbroker_options_t).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_options_init_sized(
    options: *mut fdbroker_options_t,
    struct_size: usize,
) {
    // SAFETY: the caller's struct, as the header states.
    unsafe { init(options, struct_size) };
}

/// Connects to the broker. On success *out is a context, to be given back by fdbroker_close();
/// otherwise NULL. Waits at most connect_timeout_ms, for a broker that is stopped or hangs, or a
/// node whose fds are all in use. options NULL: all defaults.
///
/// Starts one library thread, which serves recalls and calls the callbacks, with all signals
/// blocked. With FDBROKER_OPEN_DISPATCH there is no such thread. Not inside a callback.
///
/// Errors: FDBROKER_NOT_CONNECTED (at once when no broker listens; at the end of that time when one
/// listens and does not answer, which the text says), FDBROKER_NOT_PERMITTED (the socket refuses
/// this user; or its server is neither root nor the owner of the socket's directory nor this
/// process's effective user, and may be anybody, to whom nothing was sent: the text says which uid
/// serves), FDBROKER_NOT_SUPPORTED (the value of an environment variable; no program to start a
/// broker with; or inside a callback),
/// FDBROKER_PROTOCOL, FDBROKER_NO_QUOTA, FDBROKER_TIMED_OUT (too many others of this user connect),
/// FDBROKER_LOCAL_FD_LIMIT, FDBROKER_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_open(
    options: *const fdbroker_options_t,
    out: *mut *mut fdbroker_t,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointer, as the header states.
        let out = unsafe { place(out, "out", std::ptr::null_mut()) }?;
        refuse_in_callback("open")?;
        logger::install();
        let options = if options.is_null() {
            fdbroker_options_t::absent()
        } else {
            // SAFETY: the caller's struct of struct_size bytes, as the header states.
            unsafe { read(options) }?
        };
        // SAFETY: its strings are the caller's, NUL-terminated, as the header states.
        *out = Box::into_raw(Box::new(unsafe { open(&options) }?));
        Ok(())
    })
}

/// # Safety
/// The strings of `options` are NULL or NUL-terminated.
unsafe fn open(options: &fdbroker_options_t) -> Result<fdbroker_t, Failure> {
    let known = FDBROKER_OPEN_DISPATCH
        | FDBROKER_OPEN_NO_RECONNECT
        | FDBROKER_OPEN_RECALL_THREAD
        | FDBROKER_OPEN_NOTICES
        | FDBROKER_OPEN_START;
    if options.flags & !known != 0 {
        let text = format!("open: flags {:#x}: only FDBROKER_OPEN_* are known", options.flags);
        return Err(Failure::argument(text));
    }
    let has_recall_thread = options.flags & FDBROKER_OPEN_RECALL_THREAD != 0;
    if has_recall_thread && options.flags & FDBROKER_OPEN_DISPATCH != 0 {
        let text = "open: FDBROKER_OPEN_RECALL_THREAD has a thread, FDBROKER_OPEN_DISPATCH has none; choose one";
        return Err(Failure::argument(text));
    }
    let are_read = options.flags & FDBROKER_OPEN_NOTICES != 0;
    let has_queue = has_recall_thread || are_read;
    let notices = has_queue.then(|| Notices::new(are_read)).transpose()?.map(Arc::new);
    let mut settings = cache_settings(options)?;
    // Printed here, with the context's other counters.
    let print_stats = std::mem::take(&mut settings.print_stats);
    let callbacks = Arc::new(Callbacks::default());
    let leases = Arc::new(Leases::default());
    let own_fds = if options.own_fds == 0 { DEFAULT_OWN_FDS } else { options.own_fds };
    let mut builder = Client::builder()
        .own_fds(own_fds)
        .reconnect(options.flags & FDBROKER_OPEN_NO_RECONNECT == 0)
        .dispatch(options.flags & FDBROKER_OPEN_DISPATCH != 0)
        .on_recall({
            let callbacks = Arc::clone(&callbacks);
            move |recall| deliver_recall(&callbacks, recall)
        })
        .on_notice({
            let (callbacks, leases) = (Arc::clone(&callbacks), Arc::clone(&leases));
            let queue = notices.clone();
            move |notice| {
                translate(&leases, &notice, |told| match &queue {
                    Some(queue) => queue.push(told),
                    None => callbacks.tell(&told),
                });
            }
        });
    if let Some(most) = limit("max_held_fds", options.max_held_fds)? {
        builder = builder.max_held_fds(u32::try_from(most).unwrap_or(u32::MAX));
    }
    if options.flags & FDBROKER_OPEN_START != 0 {
        builder = builder.start(true);
    }
    // SAFETY: the caller's promise.
    if let Some(socket) = unsafe { string(options.socket) } {
        builder = builder.socket(Path::new(OsStr::from_bytes(socket.to_bytes())));
    }
    // SAFETY: as above.
    if let Some(name) = unsafe { string(options.name) } {
        builder = builder.name(name.to_string_lossy());
    }
    let client = match limit("connect_timeout_ms", options.connect_timeout_ms)? {
        Some(ms) => builder.connect_within(Deadline::after(Duration::from_millis(ms)))?,
        None => builder.connect()?,
    };
    Ok(fdbroker_t {
        arenas: Arenas::new(options.arena_bytes),
        gpus: Arc::new(Gpus::new(&client)),
        exports: Exports::new(&client),
        cache: ImportCache::new(&client, settings),
        leases,
        object_table: Arc::default(),
        objects: client.objects(),
        job_objects: client.objects().of_job(),
        callbacks,
        notices,
        // A socket's path has no zero byte.
        socket: CString::new(client.socket().as_os_str().as_bytes()).unwrap_or_default(),
        client,
        print_stats,
        next_kept: AtomicPtr::default(),
    })
}

/// Each setting from the options, else from the environment, else its default.
fn cache_settings(options: &fdbroker_options_t) -> Result<CacheSettings, Failure> {
    let mut settings = CacheSettings::from_env()?;
    if let Some(entries) = limit("cache_max_entries", options.cache_max_entries)? {
        settings.max_entries = usize::try_from(entries).unwrap_or(usize::MAX);
    }
    if let Some(bytes) = limit("cache_max_bytes", options.cache_max_bytes)? {
        settings.max_bytes = bytes;
    }
    for (name, value, field) in [
        ("leave_pinned", options.leave_pinned, &mut settings.leave_pinned),
        ("empty_cache", options.empty_cache, &mut settings.empty_cache),
        ("cache_strict", options.cache_strict, &mut settings.strict),
        ("print_stats", options.print_stats, &mut settings.print_stats),
    ] {
        match value {
            -1 => {}
            0 | 1 => *field = value == 1,
            _ => {
                let text = format!("open: {name} is {value}; it is 0, 1 or -1 for the default");
                return Err(Failure::argument(text));
            }
        }
    }
    Ok(settings)
}

/// `None`: the default.
fn limit(name: &str, value: i64) -> Result<Option<u64>, Failure> {
    match (value, u64::try_from(value)) {
        (FDBROKER_DEFAULT, _) => Ok(None),
        (_, Ok(limit)) => Ok(Some(limit)),
        (_, Err(_)) => {
            let text = format!("open: {name} is {value}; it is 0 or more, or -1 for the default");
            Err(Failure::argument(text))
        }
    }
}

/// The arena's memfd, and one export on its way to the broker.
const DEFAULT_OWN_FDS: u32 = 2;

/// # Safety
/// `text` is NULL or NUL-terminated, and lives as long as the result is used.
unsafe fn string<'a>(text: *const c_char) -> Option<&'a CStr> {
    // SAFETY: the caller's promise.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}

/// Ends the connection: gives back all leases, unmaps all imports, frees all host and GPU memory,
/// and waits for a running callback and for the library thread. Afterwards the context's pointers,
/// leases, imports and requests must not be used; the fds of grants stay the caller's. No other
/// thread may use the context meanwhile. NULL: does nothing.
///
/// In a forked child it puts the child's copy aside; the parent notices nothing.
///
/// Errors: FDBROKER_NOT_SUPPORTED (inside a callback; nothing is closed).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_close(broker: *mut fdbroker_t) -> fdbroker_code_t {
    guard(|| {
        if broker.is_null() {
            return Ok(());
        }
        refuse_in_callback("close")?;
        // SAFETY: made by fdbroker_open, and the caller's last use of it.
        let context = unsafe { Box::from_raw(broker) };
        if context.client.is_forked_copy() {
            keep_copy(context)
        } else {
            close(*context)
        }
        Ok(())
    })
}

fn close(context: fdbroker_t) {
    // From here on no callback starts. One that hangs is reported and left alone.
    if let Err(failure) = context.callbacks.clear() {
        log::warn!("close: {failure}");
    }
    if context.print_stats {
        logger::say(stats::of(&context));
    }
    let fdbroker_t { arenas, gpus, exports, cache, leases, client, .. } = context;
    context.object_table.release_all();
    // Leases go before the connection, so that the broker need not find out what is left. All of
    // these hold the client.
    drop((cache, arenas, context.objects, context.job_objects));
    gpus.close();
    drop((gpus, exports));
    leases.release_all();
    // The library thread may be using the client, so a drop would not end it: this waits for the
    // thread.
    client.end();
    drop(client);
}

/// The path of the broker's socket: other processes find the same broker by it. NULL: "". Valid
/// until fdbroker_close(). Sends nothing. Also inside a callback and in a forked child.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_socket(broker: *const fdbroker_t) -> *const c_char {
    // SAFETY: NULL, or a context that nobody closes meanwhile, as the header states.
    let context = unsafe { broker.as_ref() };
    context.map_or(c"".as_ptr(), |context| context.socket.as_ptr())
}

/// 1 when the broker can be called now; 0 while it is away, in a forked child, and for NULL. Sends
/// nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_is_connected(broker: *const fdbroker_t) -> i32 {
    guard_value(0, || {
        // SAFETY: the caller's context, as the header states.
        let is_connected = unsafe { broker.as_ref() }.is_some_and(|it| it.client.is_connected());
        Ok(is_connected.into())
    })
}

/// Returns when the broker has carried out all earlier releases and fdbroker_host_free() calls of
/// this context, which do not wait for it themselves. From then on the old handle of freed memory
/// is FDBROKER_STALE in every process, without the delay of a message. Waits until the deadline at
/// most.
///
/// Errors: FDBROKER_TIMED_OUT, FDBROKER_NOT_CONNECTED, FDBROKER_NOT_SUPPORTED (inside a callback),
/// FDBROKER_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_flush(
    broker: *mut fdbroker_t,
    deadline_ms: u32,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's context, as the header states.
        let context = unsafe { context(broker, "flush") }?;
        Ok(context.client.flush(Deadline::from_ms(deadline_ms))?)
    })
}
