//! Hits, which cost the broker nothing.

use super::broker::*;
use crate::support::*;
use fdbroker_client::{Access, ErrorCode, Pin};
use std::sync::Barrier;

#[test]
fn import_when_cached_then_the_same_pointer_and_no_message() {
    let rig = rig(unbounded());
    let first = rig.import(5);
    assert_bytes(&first, 5);
    rig.granting.until("mapped", |log| log.mapped == [vec![1]]);
    let second = rig.import(5);
    assert_eq!(second.as_ptr(), first.as_ptr());
    let address = first.as_ptr();
    drop((first, second));
    for _ in 0..1000 {
        let again = rig.import(5);
        assert_eq!((again.as_ptr(), again.len()), (address, BYTES));
        assert!(again.is_current());
    }
    rig.granting.log(|log| {
        assert_eq!((log.acquires.len(), log.mapped.len(), log.released.len()), (1, 1, 0));
    });
    let stats = rig.cache.stats();
    assert_eq!((stats.hits, stats.misses, stats.entries, stats.pinned), (1001, 1, 1, 0));
    assert_eq!((stats.bytes, stats.stale, stats.evicted), (BYTES as u64, 0, 0));
}

#[test]
fn import_when_the_handle_has_an_offset_then_the_same_memory_from_there() {
    let rig = rig(unbounded());
    let whole = rig.import(5);
    let at = |offset| rig.cache.import(&handle(5).at(offset), Access::Read, soon());
    let part = at(100).unwrap();
    assert_eq!(part.as_ptr(), whole.as_ptr().wrapping_add(100));
    assert_eq!(part.len(), BYTES - 100);
    assert_eq!(part.read_at(BYTES - 100, &mut [0]).unwrap_err().code, ErrorCode::BadHandle);
    assert_eq!(at(BYTES as u64 - 1).unwrap().len(), 1);
    assert_eq!(rig.granting.acquires(), 1);
}

#[test]
fn hit_when_only_the_hints_of_the_handle_differ_then_still_a_hit() {
    let rig = rig(unbounded());
    rig.touch(5);
    let mut hinted = handle(5);
    hinted.size_bytes = 1;
    hinted.owner_allocation_id = 12345;
    assert!(rig.cache.hit(&hinted, Access::Read).is_some());
}

#[test]
fn hit_when_any_bit_of_the_handle_is_forged_then_none() {
    let rig = rig(unbounded());
    rig.touch(5);
    rig.touch(4);
    for bit in 0..32 * 8 {
        let mut bytes = handle(5).to_bytes();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let forged = fdbroker_client::Handle::from_bytes(bytes);
        assert!(rig.cache.hit(&forged, Access::Read).is_none(), "bit {bit}");
    }
    assert!(rig.has(5));
    assert_eq!(rig.cache.stats().pinned, 0);
}

#[test]
fn import_when_wanted_for_writing_then_anew_and_it_serves_readers() {
    let rig = rig(unbounded());
    let reader = rig.import(5);
    assert_eq!(reader.write_at(0, b"x").unwrap_err().code, ErrorCode::NotSupported);
    assert!(rig.cache.hit(&handle(5), Access::ReadWrite).is_none());
    let writer = rig.cache.import(&handle(5), Access::ReadWrite, soon()).unwrap();
    writer.write_at(0, b"x").unwrap();
    assert_ne!(writer.as_ptr(), reader.as_ptr());
    assert_bytes(&reader, 5);
    // Both are open while both are in use; a new import gets the writable one.
    assert_eq!(rig.cache.stats().entries, 2);
    let another = rig.import(5);
    assert_eq!(another.as_ptr(), writer.as_ptr());
    another.write_at(1, b"y").unwrap();
    drop(reader);
    assert_eq!(rig.cache.stats().entries, 1);
    rig.granting.until("the first lease is back", |log| log.released == [vec![1]]);
    drop((writer, another));
    assert!(rig.cache.hit(&handle(5), Access::ReadWrite).is_some());
    assert_eq!(rig.granting.acquires(), 2);
}

#[test]
fn import_when_64_threads_miss_at_once_then_one_acquire() {
    let rig = rig(unbounded());
    rig.granting.hold_answers(true);
    let start = Barrier::new(65);
    std::thread::scope(|scope| {
        for _ in 0..64 {
            scope.spawn(|| {
                start.wait();
                let import = rig.import(9);
                assert_bytes(&import, 9);
            });
        }
        start.wait();
        // All imports have begun, or will; the broker answers the one that asked when all others
        // wait.
        eventually("63 wait", || rig.cache.stats().misses == 64);
        rig.granting.hold_answers(false);
    });
    assert_eq!(rig.granting.acquires(), 1);
    let stats = rig.cache.stats();
    assert_eq!((stats.hits, stats.misses, stats.entries, stats.pinned), (0, 64, 1, 0));
    rig.assert_leases_match();
}

#[test]
fn import_when_the_one_that_fetches_fails_then_the_others_try_themselves() {
    let rig = rig(unbounded());
    rig.granting.hold_answers(true);
    rig.granting.refuse(9, ErrorCode::OwnerSilent);
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..8).map(|_| scope.spawn(|| rig.try_import(9).map(drop).unwrap_err().code)).collect();
        eventually("7 wait", || rig.cache.stats().misses == 8);
        rig.granting.hold_answers(false);
        for thread in threads {
            assert_eq!(thread.join().unwrap(), ErrorCode::OwnerSilent);
        }
    });
    rig.granting.refuse_no_more(9);
    rig.touch(9);
    assert_eq!(rig.cache.stats().pinned, 0);
}

#[test]
fn import_when_another_thread_fetches_beyond_the_deadline_then_timed_out_and_its_pin_is_not_lost() {
    let rig = rig(unbounded());
    rig.granting.hold_answers(true);
    std::thread::scope(|scope| {
        let fetcher = scope.spawn(|| drop(rig.import(9)));
        eventually("it fetches", || rig.granting.acquires() == 1);
        let at_once = fdbroker_client::Deadline::from_ms(0);
        let error = rig.cache.import(&handle(9), Access::Read, at_once).unwrap_err();
        assert_eq!(error.code, ErrorCode::TimedOut, "{error}");
        rig.granting.hold_answers(false);
        fetcher.join().unwrap();
    });
    assert_eq!(rig.cache.stats().pinned, 0);
    assert_eq!(rig.cache.empty(), 1, "nobody uses it");
}

#[test]
fn release_when_twice_then_bad_handle_and_counters_untouched() {
    let rig = rig(unbounded());
    let pin = rig.import(5).into_pin();
    assert_eq!(rig.cache.stats().pinned, 1);
    assert!(rig.cache.is_current(pin, handle(5).id()));
    let pin = Pin::from_u64(pin.to_u64()).unwrap();
    rig.cache.release(pin).unwrap();
    let before = rig.cache.stats();
    assert_eq!(rig.cache.release(pin).unwrap_err().code, ErrorCode::BadHandle);
    assert_eq!(rig.cache.stats(), before);
    assert_eq!((before.pinned, before.entries), (0, 1));
    // Closed and opened again: an earlier pin is not valid any more.
    assert_eq!(rig.cache.empty(), 1);
    assert_eq!(rig.cache.release(pin).unwrap_err().code, ErrorCode::BadHandle);
    let again = rig.import(5).into_pin();
    assert_ne!(again, pin);
    assert_eq!(rig.cache.release(pin).unwrap_err().code, ErrorCode::BadHandle);
    assert!(!rig.cache.is_current(pin, handle(5).id()));
    assert_eq!(rig.cache.stats().pinned, 1);
    rig.cache.release(again).unwrap();
}

#[test]
fn release_when_no_pin_at_all_then_bad_handle() {
    let rig = rig(unbounded());
    rig.touch(5);
    assert_eq!(Pin::from_u64(0), None);
    for number in [1, 5, u64::MAX, 1 << 32, 5 | 1 << 32, 5 | 3 << 25 | 1 << 32, 6 | 1 << 32] {
        let pin = Pin::from_u64(number).unwrap();
        assert_eq!(rig.cache.release(pin).unwrap_err().code, ErrorCode::BadHandle, "{number:#x}");
        assert!(!rig.cache.is_current(pin, handle(6).id()));
    }
    assert_eq!(rig.cache.stats().pinned, 0);
    assert_eq!(rig.cache.empty(), 1);
}

#[test]
fn release_when_on_another_thread_then_unused() {
    let rig = rig(unbounded());
    let import = rig.import(5);
    std::thread::scope(|scope| scope.spawn(|| drop(import)).join().unwrap());
    let pin = rig.import(5).into_pin();
    std::thread::scope(|scope| scope.spawn(|| rig.cache.release(pin).unwrap()).join().unwrap());
    assert_eq!(rig.cache.stats().pinned, 0);
    assert_eq!(rig.cache.empty(), 1);
}
