//! Hits beside evictions: what a hit gives is open, whatever is closed and opened anew around it.

use crate::broker::*;
use crate::support::*;
use fdbroker_client::{Access, Error, Grant, Opened};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const OPEN: u64 = 0x6f70_656e;
const CLOSED: u64 = 0x636c_6f73;
/// Each closes the memory under the hits once. Reading an address before the state showed within 10,000 on two cores.
const ROUNDS: usize = 60_000;
const HITTERS: usize = 3;

/// Memory that says of itself whether it is open. It is never unmapped, so that a fault is read, not crashed on.
#[derive(Debug)]
struct Canary(&'static AtomicU64);

impl Canary {
    fn open(_: &Grant) -> Result<Box<dyn Opened>, Error> {
        Ok(Box::new(Canary(Box::leak(Box::new(AtomicU64::new(OPEN))))))
    }
}

impl Opened for Canary {
    fn as_ptr(&self) -> *mut u8 {
        self.0.as_ptr().cast()
    }

    fn len(&self) -> usize {
        size_of::<AtomicU64>()
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        self.0.store(CLOSED, Ordering::SeqCst);
    }
}

/// What the memory of an import says.
fn read(ptr: *const u8) -> u64 {
    // SAFETY: canaries are leaked, so the address of any of them stays readable.
    unsafe { (*ptr.cast::<AtomicU64>()).load(Ordering::SeqCst) }
}

#[test]
fn hit_when_the_same_allocation_is_closed_and_opened_anew_then_never_the_closed_memory() {
    let rig = rig(unbounded());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..HITTERS {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    if let Some(import) = rig.cache.hit(&handle(5), Access::Read) {
                        assert_eq!(read(import.as_ptr()), OPEN, "a hit on closed memory");
                    }
                }
            });
        }
        let mut open = Canary::open;
        for _ in 0..ROUNDS {
            let imported = rig.cache.import_with(&handle(5), Access::Read, soon(), &mut open);
            assert_eq!(read(imported.unwrap().as_ptr()), OPEN);
            rig.cache.empty();
        }
        stop.store(true, Ordering::Relaxed);
    });
    rig.cache.empty();
    assert_eq!(rig.cache.stats().pinned, 0);
}
