//! The miss, one by one and in batches, beside the mmap and munmap that are in it.

use crate::report::{Report, median};
use crate::world::{BYTES, World, deadline};
use fdbroker_client::{Access, CacheSettings, ImportCache};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use std::num::NonZeroUsize;
use std::time::Instant;

/// Handles of one batch: as many as a message carries.
const BATCH: usize = 253;
/// The cases take turns, so that all see the machine's good and bad moments.
const TURNS: usize = 41;
const MISSES: usize = 500;
const BATCHES: usize = 4;

pub fn measure(world: &mut World, settings: CacheSettings, report: &mut Report) {
    // The last registered: the daemon holds them, so no recall is in the time.
    let held = world.handles.len() - 4 * BATCH..world.handles.len();
    let handles = world.handles[held].to_vec();
    let one = ImportCache::new(&world.consumer, settings.max_entries(1));
    let many = ImportCache::new(&world.consumer, settings.max_entries(BATCH));
    let (mut bare, mut miss, mut batch) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..TURNS {
        bare.push(per_call(MISSES, |index| map_and_unmap(world, index)));
        miss.push(per_call(MISSES, |index| {
            let import = one.import(&handles[index % handles.len()], Access::Read, deadline());
            drop(import.expect("imported"));
        }));
        batch.push(per_call(BATCHES, |index| {
            let first = index % 4 * BATCH;
            let imports =
                many.import_many(&handles[first..first + BATCH], Access::Read, deadline());
            imports.expect("connected").into_iter().for_each(|one| drop(one.expect("imported")));
        }));
    }
    for cache in [&one, &many] {
        assert_eq!(cache.stats().hits, 0, "each was a miss");
    }
    let (bare, miss, batch) = (median(bare), median(miss), median(batch) / BATCH as f64);
    report.note("bare mmap + munmap of 4 KiB", bare / 1000.0, "us");
    report.note("miss: acquire, mmap, close, evict munmap, release", miss / 1000.0, "us");
    report.note("  over the bare", miss / bare, "x");
    report.note("batch of 253 misses, per fd", batch / 1000.0, "us");
    report.note("  over the bare", batch / bare, "x");
}

/// Time of one call in ns.
pub fn per_call(calls: usize, mut call: impl FnMut(usize)) -> f64 {
    let begun = Instant::now();
    (0..calls).for_each(&mut call);
    begun.elapsed().as_nanos() as f64 / calls as f64
}

fn map_and_unmap(world: &World, index: usize) {
    let length = NonZeroUsize::new(BYTES).expect("a page");
    let offset = i64::try_from(index * BYTES).expect("inside");
    // SAFETY: a new mapping, unmapped at once, that nobody else knows.
    unsafe {
        let at =
            mmap(None, length, ProtFlags::PROT_READ, MapFlags::MAP_SHARED, &world.memfd, offset);
        munmap(at.expect("mmap"), BYTES).expect("munmap");
    }
}
