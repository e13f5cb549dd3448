//! The bytes of heap that the daemon's tables take for each allocation and each lease. Must never
//! start a broker: its threads' memory would not be counted.

use fdbroker_core::{
    Arrived, Body, ClientId, Config, Core, Deposit, DomainKey, Effects, FileId, Input, Now, Peer,
    RequestId, Wanted,
};
use fdbroker_protocol::limits::FORMER_FILES;
use fdbroker_protocol::{AllocationId, Resource};
use files::{Files, FilesBySlot};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

// The daemon's own modules, which it does not export.
#[path = "../src/fds/files.rs"]
mod files;
#[path = "../core/tests/support/mod.rs"]
#[allow(dead_code)] // the core's own tests use the rest
mod support;

/// The figures of docs/figures.md without the fds and kinds (5 bytes), at a count that fills the
/// tables.
const ALLOCATION_BYTES: f64 = 121.0;
const LEASE_BYTES: f64 = 56.3;
const FILE_BYTES: f64 = 8.0;
const CHANGED_FILE_BYTES: f64 = 72.0;
/// The most items of one message.
const BATCH: u32 = 253;

thread_local! {
    /// The bytes that this thread has allocated, less those that it has freed.
    static HEAP: Cell<usize> = const { Cell::new(0) };
    /// The bytes that it has allocated, moved or freed since this was last set to 0.
    static TRAFFIC: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, with a count of the bytes.
struct Counted;

// SAFETY: all is the system's, called as this is called; a cell without a destructor takes no
// memory.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HEAP.set(HEAP.get().wrapping_add(layout.size()));
        TRAFFIC.set(TRAFFIC.get().wrapping_add(layout.size()));
        // SAFETY: see above.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        HEAP.set(HEAP.get().wrapping_sub(layout.size()));
        TRAFFIC.set(TRAFFIC.get().wrapping_add(layout.size()));
        // SAFETY: see above.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static COUNTED: Counted = Counted;

fn heap() -> usize {
    HEAP.get()
}

fn each(bytes: usize, count: u32) -> f64 {
    bytes as f64 / f64::from(count)
}

const CLIENT: ClientId = ClientId(0);

fn config(count: u32) -> Config {
    let table_fds = u64::from(count) * 4;
    Config { table_fds, max_slots: count, base_credits: BATCH, ..support::roomy() }
}

fn deposit(number: u32) -> Deposit {
    support::deposit(u64::from(number) + 1)
}

/// The bytes of heap for each allocation, and for each lease; and the most that a step allocated,
/// moved and freed.
fn of_core(count: u32, has_driver_data: bool) -> (f64, f64, usize) {
    let mut core = Core::new(config(count)).expect("sound");
    let mut fx = Effects::default();
    let (mut now, request, deadline) = (Now(0), RequestId(7), Now(u64::MAX));
    let mut most = 0;
    let mut step = |core: &mut Core, input: Input<'_>| {
        fx.clear();
        now.0 += 1;
        TRAFFIC.set(0);
        core.step(now, input, &mut fx);
        most = most.max(TRAFFIC.get());
        fx.registered.clone()
    };
    let domain = DomainKey::new(0, 1000);
    let peer = Peer { domain, job: None, pid: 1, gid: 100, groups: &[] };
    step(&mut core, Input::Connect { client: CLIENT, peer });
    step(&mut core, Body::Hello { own_fds: 0, deadline: Now(0) }.by(CLIENT, request));
    let mut ids: Vec<AllocationId> = Vec::with_capacity(count as usize);
    let before = heap();
    for first in (0..count).step_by(BATCH as usize) {
        let driver_data = has_driver_data.then_some((64, [7; 64]));
        let arrived = |number| support::arrived(Deposit { driver_data, ..deposit(number) });
        let deposits: Vec<Arrived> = (first..count.min(first + BATCH)).map(arrived).collect();
        let (client, deposits) = (CLIENT, &deposits[..]);
        let credits_wanted = BATCH;
        let input = Body::Register { deposits, credits_wanted, deadline }.by(client, request);
        ids.extend(step(&mut core, input).iter().map(|it| it.id));
    }
    assert_eq!(core.totals().node.now(Resource::Allocations), u64::from(count));
    let of_allocations = heap() - before;
    for ids in ids.chunks(BATCH as usize) {
        let wanted: Vec<Wanted> = ids.iter().copied().map(Ok).collect();
        let input = Body::Acquire { wanted: &wanted, deadline }.by(CLIENT, request);
        step(&mut core, input);
    }
    assert_eq!(core.totals().node.now(Resource::OpenLeases), u64::from(count));
    let of_leases = heap() - before - of_allocations;
    (each(of_allocations, count), each(of_leases, count), most)
}

/// The bytes of heap for each slot with its first file, and the most for each slot whose file has
/// changed.
fn of_files(count: u32) -> (f64, f64) {
    let before = heap();
    let mut files = FilesBySlot::with_capacity(count as usize);
    let file = |inode| FileId { device: 1, inode };
    (0..count).for_each(|slot| files.set(slot, Files::of(file(u64::from(slot) + 1))));
    let unchanged = heap() - before;
    let mut most = 0;
    for round in 1..=2 + FORMER_FILES as u64 {
        let inode = |slot| u64::from(slot) + round * u64::from(count);
        (0..count).for_each(|slot| files.add(slot, file(inode(slot)), Now(round)));
        most = most.max(heap() - before);
    }
    files.clear();
    (each(unchanged, count), each(most, count))
}

/// The entries of each table: a power of two, so that no table has grown beyond its need.
const COUNT: u32 = 1 << 17;

#[test]
fn tables_when_full_then_each_entry_takes_no_more_than_is_documented() {
    let (allocation, lease, _) = of_core(COUNT, false);
    let (file, changed) = of_files(COUNT);
    println!("{COUNT}: {allocation:.1} an allocation, {lease:.1} a lease;");
    println!("its file {file:.1}, once it has changed {changed:.1}");
    assert!(allocation <= ALLOCATION_BYTES, "{allocation}");
    assert!(lease <= LEASE_BYTES, "{lease}");
    assert!(file <= FILE_BYTES && changed <= CHANGED_FILE_BYTES, "{file} {changed}");
}

/// What a step may allocate, move and free: some us.
const STEP_BYTES: usize = 256 * 1024;

#[test]
fn tables_when_they_grow_to_a_million_then_no_step_moves_more_than_a_segment() {
    for has_driver_data in [false, true] {
        let (_, _, most) = of_core(1_000_000, has_driver_data);
        println!("most bytes allocated, moved and freed by a step: {most}");
        assert!(most <= STEP_BYTES, "{most}");
    }
}
