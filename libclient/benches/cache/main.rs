//! The import cache against its targets, with a real daemon, real registrations, real leases and
//! its real generation page, through Rust and through C, beside a plain hash map, an LRU behind a
//! mutex and a bare mmap+munmap of the same size in the same run; and the life of a buffer in
//! batches. Must never assert a time.
//!
//! `cargo bench -p fdbroker-client`. Everything of one thread, daemon included, runs on one core;
//! the two threads of the contended case have a core each, and what is compared there is their CPU
//! time. Medians.
//!
//! The table of 1,000,000 entries is filled by `import_many_with`, whose opener hands out addresses
//! inside one shared mapping: a process may have 65,530 mappings (vm.max_map_count), and only the
//! memory behind an entry is spared by that. Registration, grant, fd, lease, entry and generation
//! are each entry's own. The miss and the batch map.

mod cpu;
mod daemon;
mod forks;
mod hits;
mod lives;
mod misses;
mod relay;
mod report;
mod rivals;
mod through_c;
mod world;

use daemon::Daemon;
use fdbroker_client::CacheSettings;
use report::Report;
use std::time::Instant;
use through_c::ThroughC;
use world::World;

/// Allocations of the large table.
const ENTRIES: usize = 1_000_000;

fn main() {
    if std::env::args().any(|arg| arg == lives::RAW_PEER) {
        return lives::answer_raw();
    }
    let begun = Instant::now();
    let mut report = Report::default();
    let core = cpu::pin_to(cpu::allowed()[0]);
    println!(
        "one thread and daemon on CPU {core}; CPUs here: {:?}; medians; hits in CPU time",
        cpu::allowed()
    );
    let daemon = Daemon::start(ENTRIES);
    let mut world = World::connect(&daemon, ENTRIES);

    let filled = Instant::now();
    let through_c = ThroughC::connect(&daemon);
    let cache = world.full_cache(&through_c);
    let stats = cache.stats();
    assert_eq!(stats.entries, ENTRIES as u64, "every allocation is open");
    println!(
        "{} entries registered and imported in {:.1} s (addresses inside one shared mapping: a process may \
         have 65,530 mappings); daemon and client hold {} fds of memory",
        stats.entries,
        filled.elapsed().as_secs_f64(),
        world.memory_fds(&daemon),
    );

    // `cargo bench ... -- hits`, or objects, misses, forks, lives: that part alone.
    let wants =
        |case: &str| std::env::args().nth(1).is_none_or(|arg| arg == "--bench" || arg == case);
    if wants("hits") {
        hits::measure(&mut world, &cache, &through_c, &mut report);
    }
    if wants("objects") {
        hits::measure_objects(&daemon, &mut report);
    }
    drop(cache);
    if wants("misses") {
        misses::measure(&mut world, CacheSettings::default(), &mut report);
    }
    if wants("forks") {
        forks::measure(&world, &mut report);
    }
    if wants("lives") {
        lives::measure(&daemon, &world, &mut report);
    }
    report.print();
    println!("took {:.0} s", begun.elapsed().as_secs_f64());
}
