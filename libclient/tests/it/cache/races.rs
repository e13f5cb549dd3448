//! Hits and closes at the same time, as fast as possible: pinned memory must be open.

use super::broker::*;
use crate::support::*;
use fdbroker_client::{Access, CacheSettings, ErrorCode, Grant, Opened};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Long enough for thousands of closes.
const TIME: Duration = Duration::from_millis(1500);
/// Least number of looks at imported memory, however long they take.
const LOOKS: u64 = 100;

/// A word that says whether it is open. It is never freed, so that a read after the close shows the
/// fault.
#[derive(Debug)]
struct Flag(&'static AtomicU32);

const OPEN: u32 = 1;

impl Flag {
    fn open() -> Box<dyn Opened> {
        Box::new(Flag(Box::leak(Box::new(AtomicU32::new(OPEN)))))
    }
}

impl Opened for Flag {
    fn as_ptr(&self) -> *mut u8 {
        self.0.as_ptr().cast()
    }

    fn len(&self) -> usize {
        BYTES
    }
}

impl Drop for Flag {
    fn drop(&mut self) {
        self.0.store(0, Ordering::SeqCst);
    }
}

fn is_open(ptr: *mut u8) -> bool {
    // SAFETY: the word of a flag, which is never freed.
    unsafe { AtomicU32::from_ptr(ptr.cast()) }.load(Ordering::SeqCst) == OPEN
}

/// Three threads import and read, while `disturb` closes.
fn race(settings: CacheSettings, slots: u32, mut disturb: impl FnMut(&Rig)) {
    let rig = rig(settings);
    let (is_over, looks) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (rig, is_over, looks) = (&rig, &is_over, &looks);
            scope.spawn(move || {
                let mut slot = thread;
                while !is_over.load(Ordering::Relaxed) {
                    slot = (slot + 1) % slots;
                    let open = |_: &Grant| Ok(Flag::open());
                    let wanted = handle(1 + slot);
                    match rig.cache.import_with(&wanted, Access::Read, soon(), open) {
                        Ok(import) => {
                            for _ in 0..20 {
                                assert!(is_open(import.as_ptr()), "closed while pinned");
                            }
                            looks.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => assert_eq!(error.code, ErrorCode::Stale, "{error}"),
                    }
                }
            });
        }
        let begin = Instant::now();
        while begin.elapsed() < TIME
            || (looks.load(Ordering::Relaxed) <= LOOKS && begin.elapsed() < PATIENCE)
        {
            disturb(&rig);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(looks.into_inner() > LOOKS, "nothing happened");
    assert_eq!(rig.cache.stats().pinned, 0);
    rig.assert_leases_match();
    rig.cache.empty();
    rig.assert_leases_match();
}

#[test]
fn hit_when_another_thread_empties_the_cache_then_never_closed_memory() {
    race(unbounded(), 1, |rig| {
        rig.cache.empty();
    });
}

#[test]
fn hit_when_others_evict_then_never_closed_memory() {
    race(at_most(1), 3, |rig| {
        rig.cache.stats();
    });
}

#[test]
fn hit_when_not_left_pinned_then_never_closed_memory() {
    race(unbounded().leave_pinned(false), 2, |_| std::thread::yield_now());
}

#[test]
fn hit_when_the_allocation_ends_and_lives_again_then_never_closed_memory() {
    race(unbounded(), 1, |rig| {
        let id = handle(1).id();
        rig.granting.peer.page.end(id);
        rig.granting.peer.page.set(id);
    });
}

/// Rounds, each of which closes the memory under the hits once. A cache that read the address
/// before the state failed within 10,000 rounds on two cores.
const REOPENINGS: usize = 60_000;

#[test]
fn hit_when_closed_and_opened_anew_between_its_steps_then_never_the_closed_memory() {
    let rig = rig(unbounded());
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    if let Some(import) = rig.cache.hit(&handle(1), Access::Read) {
                        assert!(is_open(import.as_ptr()), "a hit on closed memory");
                    }
                }
            });
        }
        let open = |_: &Grant| Ok(Flag::open());
        for _ in 0..REOPENINGS {
            let imported = rig.cache.import_with(&handle(1), Access::Read, soon(), open);
            assert!(is_open(imported.unwrap().as_ptr()));
            rig.cache.empty();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(rig.cache.stats().pinned, 0);
}
