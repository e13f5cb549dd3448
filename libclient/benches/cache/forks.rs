//! fork(3) of a process with many imports, beside one with as many bare mappings that are left out
//! of children, as the library did before: a child had a hole there. What the child closes is in
//! the time. Must never leave a child.

use crate::report::{Report, median};
use crate::world::{BYTES, World, deadline};
use fdbroker_client::{Access, Import};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use nix::sys::wait::waitpid;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{ForkResult, fork};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// vm.max_map_count is 65,530 by default, and the process has some of its own.
const IMPORTS: usize = 65_000;
/// Neighbours in addresses are no neighbours in the file, so that each is a mapping of its own.
const STRIDE: usize = 7919;
const FORKS: usize = 21;

pub fn measure(world: &World, report: &mut Report) {
    let count = IMPORTS.min(mappings_left());
    let places = (0..count).map(|index| index * STRIDE % world.handles.len());
    let length = NonZeroUsize::new(BYTES).expect("a page");
    let mut bare = Vec::with_capacity(count);
    let begun = Instant::now();
    for place in places.clone() {
        let offset = i64::try_from(place * BYTES).expect("inside");
        // SAFETY: a new mapping that nobody else knows.
        unsafe {
            let (protection, flags) = (ProtFlags::PROT_READ, MapFlags::MAP_SHARED);
            let at = mmap(None, length, protection, flags, &world.memfd, offset).expect("mmap");
            madvise(at, BYTES, MmapAdvise::MADV_DONTFORK).expect("madvise");
            bare.push(at);
        }
    }
    let mapped = per_one(begun, count);
    let before = forks();
    let begun = Instant::now();
    for at in bare {
        // SAFETY: mapped above.
        unsafe { munmap(at, BYTES) }.expect("munmap");
    }
    let unmapped = per_one(begun, count);
    let begun = Instant::now();
    let import = |place: usize| {
        let grant = world.consumer.acquire(&world.handles[place], deadline()).expect("granted");
        grant.import(Access::Read, 0).expect("mapped")
    };
    let imports: Vec<Import> = places.map(import).collect();
    let imported = per_one(begun, count);
    let now = forks();
    let begun = Instant::now();
    drop(imports);
    let released = per_one(begun, count);
    report.note("mappings for the rows of fork", count as f64, "");
    report.note("fork, bare, left out of children: CPU of the parent", before.0, "us");
    report.note("  and of the child until it has begun", before.1, "us");
    report.note("fork with as many imports: CPU of the parent", now.0, "us");
    report.note("  and of the child until it has closed them", now.1, "us");
    report.note("  over the bare, both", now.1 / before.1, "x");
    report.note("bare mmap and madvise, for each", mapped, "us");
    report.note("bare munmap, for each", unmapped, "us");
    report.note("acquire and import, for each", imported, "us");
    report.note("release, for each", released, "us");
}

fn mappings_left() -> usize {
    let read = |path| std::fs::read_to_string(path).expect("/proc");
    let most: usize = read("/proc/sys/vm/max_map_count").trim().parse().expect("a number");
    most - read("/proc/self/maps").lines().count() - 300
}

fn per_one(begun: Instant, count: usize) -> f64 {
    begun.elapsed().as_nanos() as f64 / count as f64 / 1000.0
}

/// Processor time of fork(3) in the parent, and with it that of the child until fork(3) returns
/// there, in us.
fn forks() -> (f64, f64) {
    let length = NonZeroUsize::new(BYTES).expect("a page");
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice, for an atomic alone.
    let began: &AtomicU64 = unsafe {
        let page = mmap_anonymous(None, length, protection, MapFlags::MAP_SHARED).expect("mmap");
        AtomicU64::from_ptr(page.as_ptr().cast())
    };
    let (mut parents, mut children) = (Vec::new(), Vec::new());
    for _ in 0..FORKS {
        let begun = cpu_ns();
        // SAFETY: the child reads the clock and leaves.
        let child = match unsafe { fork() }.expect("fork") {
            ForkResult::Child => {
                began.store(cpu_ns(), Ordering::Relaxed);
                // SAFETY: ends the child.
                unsafe { libc::_exit(0) };
            }
            ForkResult::Parent { child } => child,
        };
        let parent = cpu_ns() - begun;
        waitpid(child, None).expect("its end");
        parents.push(parent as f64 / 1000.0);
        children.push((parent + began.load(Ordering::Relaxed)) as f64 / 1000.0);
    }
    (median(parents), median(children))
}

/// Of this process: a child begins with 0.
fn cpu_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).expect("it is there");
    Duration::from(now).as_nanos() as u64
}
