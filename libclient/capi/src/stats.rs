//! The counters of a context, as a struct and as one line. Must never change a counter.

use crate::context::{context, fdbroker_t};
use crate::errors::fdbroker_code_t;
use crate::guard::guard;
use crate::sized::{Growable, write};

/// What fdbroker_stats() reports: uses of the import cache, and what the context holds.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct fdbroker_stats_t {
    /// sizeof(fdbroker_stats_t), set by the caller.
    pub struct_size: u64,
    /// Imports served from the cache, since open.
    pub hits: u64,
    /// Imports that had to ask the broker, since open.
    pub misses: u64,
    /// Imports that found their entry ended, since open.
    pub stale: u64,
    /// Entries closed to stay within the limits, since open.
    pub evicted: u64,
    /// Entries in the cache now.
    pub entries: u64,
    /// Entries in use now: imported, not yet released.
    pub pinned: u64,
    /// Bytes of memory of the entries in the cache now.
    pub bytes: u64,
    /// The limit of entries; 0: none.
    pub max_entries: u64,
    /// The limit of bytes; 0: none.
    pub max_bytes: u64,
    /// Registrations now: allocations with a base, host memory, and memory of fdbroker_gpu_alloc().
    pub registrations: u64,
    /// Address space of arenas, isolated and dma-heap memory, in bytes.
    pub host_bytes: u64,
    /// Bytes of it in buffers that are not freed.
    pub host_bytes_used: u64,
    /// Leases acquired and not released, imports not counted.
    pub leases: u64,
    /// Bytes of arenas that are freed and not used again yet: a consumer still has a lease, or
    /// could still declare one after the loss of a broker, until the next one's grace time is over;
    /// or no broker knows of them (fdbroker_host_reclaim()).
    pub host_bytes_held_back: u64,
}

// SAFETY: repr(C), struct_size first, no padding (8 each), integers only.
unsafe impl Growable for fdbroker_stats_t {
    const NAME: &'static str = "fdbroker_stats_t";
    const LEAST_BYTES: u64 = 16;
}

/// Reads the counters. Sends nothing and never waits; also inside a callback.
///
/// Errors: FDBROKER_NOT_CONNECTED (in a forked child), FDBROKER_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_stats(
    broker: *mut fdbroker_t,
    stats: *mut fdbroker_stats_t,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let context = unsafe { context(broker, "stats") }?;
        // SAFETY: as above.
        unsafe { write(stats, &of(context)) }
    })
}

pub(crate) fn of(context: &fdbroker_t) -> fdbroker_stats_t {
    let cache = context.cache.stats();
    let host = context.arenas.usage();
    let gpu = context.gpus.usage();
    fdbroker_stats_t {
        struct_size: 0,
        hits: cache.hits,
        misses: cache.misses,
        stale: cache.stale,
        evicted: cache.evicted,
        entries: cache.entries,
        pinned: cache.pinned,
        bytes: cache.bytes,
        max_entries: cache.max_entries,
        max_bytes: cache.max_bytes,
        registrations: context.exports.len() as u64 + host.registered + gpu.registered,
        host_bytes: host.bytes,
        host_bytes_used: host.used,
        leases: context.leases.len() as u64,
        host_bytes_held_back: host.held_back,
    }
}

/// The line of `print_stats`: NAME=NUMBER, in the order of the struct; later releases add at the
/// end.
impl std::fmt::Display for fdbroker_stats_t {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let fdbroker_stats_t { hits, misses, stale, evicted, entries, pinned, bytes, .. } = self;
        let fdbroker_stats_t { max_entries, max_bytes, registrations, .. } = self;
        let fdbroker_stats_t { host_bytes, host_bytes_used, leases, host_bytes_held_back, .. } =
            self;
        write!(f, "stats: hits={hits} misses={misses} stale={stale} evicted={evicted} ")?;
        write!(f, "entries={entries} pinned={pinned} bytes={bytes} ")?;
        write!(
            f,
            "max_entries={max_entries} max_bytes={max_bytes} registrations={registrations} "
        )?;
        write!(f, "host_bytes={host_bytes} host_bytes_used={host_bytes_used} leases={leases} ")?;
        write!(f, "host_bytes_held_back={host_bytes_held_back}")
    }
}
