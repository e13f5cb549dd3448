//! The zones of addresses that the library has reserved for what must not be seen in a child, and
//! their closing there. Must never take a lock or allocate: a child of a threaded process looks
//! here first.

use crate::limits::{CLOSE_BYTES, CLOSE_STEPS, SMALLEST_HUGE_PAGE, ZONES};
use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use nix::unistd::{SysconfVar, sysconf};
use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Start and bytes of each zone.
static ALL: [[AtomicUsize; 2]; ZONES] =
    [const { [AtomicUsize::new(0), AtomicUsize::new(0)] }; ZONES];

/// How many there are. A zone counts before anything is mapped in it, so that a child knows it.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Reserves one more, at an address of the kernel's choice. The caller takes care that one thread
/// at a time does.
///
/// # Errors
/// ENOMEM, also when there are as many as can be.
pub(crate) fn reserve(len: NonZeroUsize) -> nix::Result<usize> {
    let count = COUNT.load(Ordering::Relaxed);
    let [at, size] = ALL.get(count).ok_or(Errno::ENOMEM)?;
    // What is mapped at a multiple of a huge page is asked whether it has huge pages, and the
    // lowest range is taken again and again: so the zone begins behind such an address.
    let page = NonZeroUsize::new(page_size()).ok_or(Errno::EINVAL)?;
    let both = len.checked_add(page.get()).ok_or(Errno::ENOMEM)?;
    let first = nothing_at(None, both, MapFlags::empty())?;
    let lead = if first.addr().get().is_multiple_of(SMALLEST_HUGE_PAGE) { page.get() } else { 0 };
    // SAFETY: inside the mapping just made: its first page, or what lies behind the zone.
    unsafe { munmap(if lead > 0 { first } else { first.add(len.get()) }, page.get()) }?;
    let start = first.addr().get() + lead;
    at.store(start, Ordering::Relaxed);
    size.store(len.get(), Ordering::Relaxed);
    COUNT.store(count + 1, Ordering::Release);
    Ok(start)
}

/// Bytes of a page, sysconf(3).
pub(crate) fn page_size() -> usize {
    let size = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
    size.and_then(|size| usize::try_from(size).ok()).filter(|size| *size > 0).unwrap_or(4096)
}

/// Bytes of all zones.
pub(crate) fn total_bytes() -> usize {
    let zones = &ALL[..COUNT.load(Ordering::Acquire)];
    zones.iter().map(|[_, size]| size.load(Ordering::Relaxed)).sum()
}

/// In a child: nothing is in the zones any more, and nothing else ever will be. From here on they
/// are like any memory of the child's, so that its own children find them closed. Ends a child that
/// cannot: it would see what it must not see.
pub(crate) fn close_in_child() {
    for [at, size] in &ALL[..COUNT.load(Ordering::Acquire)] {
        let (at, size) = (at.load(Ordering::Relaxed), size.load(Ordering::Relaxed));
        if !NonZeroUsize::new(size).is_none_or(|len| is_closed(at, len)) {
            // SAFETY: ends the process and runs nothing of it.
            unsafe { libc::_exit(libc::EXIT_FAILURE) };
        }
    }
    COUNT.store(0, Ordering::Release);
}

fn is_closed(at: usize, len: NonZeroUsize) -> bool {
    // In steps: what the kernel goes over more than once stays in the processor's caches.
    let step = (len.get() / CLOSE_STEPS).next_multiple_of(CLOSE_BYTES);
    let mut steps = (0..len.get()).step_by(step);
    let close = |begin| {
        let part = NonZeroUsize::new(step.min(len.get() - begin));
        part.is_none_or(|part| cover(at + begin, part).is_ok())
    };
    if steps.all(close) {
        return true;
    }
    // A process that has all the mappings that it may have gets no more. A child has one thread at
    // first: nobody takes the place meanwhile, and if somebody does it is refused.
    let start = std::ptr::without_provenance_mut::<c_void>(at);
    // SAFETY: a zone, in which nothing of the child's is.
    let _ = NonNull::new(start).map(|start| unsafe { munmap(start, len.get()) });
    fill(at, len).is_ok()
}

/// Unmaps what is in a range of a zone; the range stays reserved.
pub(crate) fn cover(at: usize, len: NonZeroUsize) -> nix::Result<()> {
    nothing_at(Some(at), len, MapFlags::MAP_FIXED).map(drop)
}

/// Reserves a range of a zone again if nothing is there; EEXIST: something is.
pub(crate) fn fill(at: usize, len: NonZeroUsize) -> nix::Result<()> {
    nothing_at(Some(at), len, MapFlags::MAP_FIXED_NOREPLACE).map(drop)
}

/// Addresses without memory, which take nothing of what a limit on memory counts.
fn nothing_at(at: Option<usize>, len: NonZeroUsize, how: MapFlags) -> nix::Result<NonNull<c_void>> {
    let flags = how | MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
    let at = at.and_then(NonZeroUsize::new);
    // SAFETY: a new mapping at the kernel's choice, or where only what a zone has is unmapped, of
    // which nobody has a pointer.
    unsafe { mmap_anonymous(at, len, ProtFlags::PROT_NONE, flags) }
}
