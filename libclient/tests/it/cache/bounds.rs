//! What the cache keeps: limits, order, modes, and leases that the broker asks back.

use super::broker::*;
use crate::support::*;
use fdbroker_client::{Access, CacheSettings, ErrorCode, ImportMode};
use fdbroker_protocol::message::LeaseItem;
use fdbroker_protocol::{Kind, Writer};
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn import_when_over_three_entries_then_the_least_recent_goes() {
    let rig = rig(at_most(3));
    (1..=3).for_each(|slot| rig.touch(slot));
    rig.touch(1);
    rig.touch(4);
    assert_eq!(rig.granting.acquires(), 4);
    assert_eq!(rig.cached(1..10), [1, 3, 4]);
    // `cached` has used all of them: an entry used since the last look stays one more round, oldest
    // first.
    rig.touch(5);
    rig.touch(6);
    assert_eq!(rig.cached(1..10).len(), 3);
    assert!(rig.has(6));
    let stats = rig.cache.stats();
    assert_eq!((stats.entries, stats.evicted, stats.max_entries), (3, 3, 3));
    rig.assert_leases_match();
}

#[test]
fn import_when_never_used_again_then_evicted_in_the_order_of_import() {
    let rig = rig(at_most(3));
    let leases = |log: &Log| log.leases.values().map(|id| id.slot).collect::<Vec<_>>();
    for slot in 1..=9 {
        rig.touch(slot);
        let first = slot.saturating_sub(2).max(1);
        let expected: Vec<u32> = (first..=slot).collect();
        rig.granting.until(&format!("{expected:?} are leased"), |log| leases(log) == expected);
    }
}

#[test]
fn import_when_over_the_bytes_then_evicted_until_within() {
    let max_bytes = 2 * BYTES as u64;
    let rig = rig(CacheSettings::default().max_bytes(max_bytes));
    (1..=4).for_each(|slot| rig.touch(slot));
    let stats = rig.cache.stats();
    assert_eq!((stats.entries, stats.bytes, stats.evicted), (2, max_bytes, 2));
    assert_eq!(rig.cached(1..10), [3, 4]);
    rig.assert_leases_match();
}

#[test]
fn import_when_all_is_in_use_then_over_the_limit_and_releases_trim() {
    let rig = rig(at_most(1));
    let used: Vec<_> = (1..=100).map(|slot| rig.import(slot)).collect();
    assert_eq!(rig.cache.stats().entries, 100);
    for (import, slot) in used.iter().zip(1..) {
        assert_bytes(import, slot);
        assert!(import.is_current());
    }
    rig.granting.log(|log| assert!(log.released.is_empty(), "something in use was given back"));
    let mut left = 100;
    for import in used {
        drop(import);
        left = (left - 1).max(1);
        assert_eq!(rig.cache.stats().entries, left);
    }
    assert_eq!(rig.cache.stats().evicted, 99);
    rig.assert_leases_match();
}

#[test]
fn evict_when_many_are_in_use_then_an_unused_one_is_found_among_them() {
    let rig = rig(at_most(20));
    let used: Vec<_> = (1..=19).map(|slot| rig.import(slot)).collect();
    for slot in 100..200 {
        rig.touch(slot);
        assert_eq!(rig.cache.stats().entries, 20);
    }
    used.iter().zip(1..).for_each(|(import, slot)| assert_bytes(import, slot));
    assert_eq!(rig.cache.stats().evicted, 99);
}

#[test]
fn release_when_not_left_pinned_then_closed_with_the_last_user() {
    let rig = rig(CacheSettings::default().leave_pinned(false));
    let (one, two) = (rig.import(5), rig.import(5));
    assert_eq!((rig.granting.acquires(), one.as_ptr()), (1, two.as_ptr()));
    drop(one);
    assert_bytes(&two, 5);
    assert_eq!(rig.cache.stats().entries, 1);
    drop(two);
    assert_eq!(rig.cache.stats().entries, 0);
    rig.granting.until("it is given back", |log| log.released == [vec![1]]);
    rig.touch(5);
    assert_eq!(rig.granting.acquires(), 2);
    assert_eq!(rig.cache.stats().evicted, 0);
}

#[test]
fn import_when_full_and_empty_cache_then_all_unused_go() {
    let rig = rig(at_most(10).empty_cache(true));
    let used = rig.import(1);
    (2..=10).for_each(|slot| rig.touch(slot));
    assert_eq!(rig.cache.stats().entries, 10);
    let last = rig.import(11);
    assert_eq!((rig.cache.stats().entries, rig.cache.stats().evicted), (2, 9));
    assert_bytes(&used, 1);
    assert_bytes(&last, 11);
    rig.assert_leases_match();
}

#[test]
fn empty_when_some_are_in_use_then_the_others_are_closed() {
    let rig = rig(unbounded());
    let used: Vec<_> = [7, 300].map(|slot| rig.import(slot)).into();
    (10..200).for_each(|slot| rig.touch(slot));
    assert_eq!(rig.cache.empty(), 190);
    assert_eq!(rig.cache.empty(), 0);
    let stats = rig.cache.stats();
    assert_eq!((stats.entries, stats.pinned, stats.evicted), (2, 2, 0));
    used.iter().zip([7, 300]).for_each(|(import, slot)| assert_bytes(import, slot));
    rig.assert_leases_match();
    drop(used);
    assert_eq!(rig.cache.empty(), 2);
    rig.assert_leases_match();
}

#[test]
fn import_when_the_broker_is_slow_then_it_is_asked_once_and_what_is_unused_stays() {
    let rig = rig(unbounded());
    (1..=10).for_each(|slot| rig.touch(slot));
    rig.granting.hold_answers(true);
    std::thread::scope(|scope| {
        scope.spawn(|| rig.touch(11));
        rig.granting.until("it is asked", |log| log.acquires.len() == 11);
        // Longer than the first try of a miss at the broker's caps.
        std::thread::sleep(SILENCE);
        rig.granting.hold_answers(false);
    });
    assert_eq!((rig.granting.acquires(), rig.cache.stats().entries), (11, 11));
    rig.assert_leases_match();
}

#[test]
fn drop_when_the_cache_ends_then_every_lease_is_given_back() {
    let rig = rig(unbounded());
    (1..=300).for_each(|slot| rig.touch(slot));
    let never_released = rig.import(5).into_pin();
    let Rig { cache, client, granting, broker } = rig;
    let clone = cache.clone();
    drop(cache);
    assert_eq!(clone.stats().entries, 300);
    drop(clone);
    granting.until("no lease is left", |log| log.leases.is_empty() && log.released.len() == 2);
    assert_ne!(never_released.to_u64(), 0);
    drop((client, broker));
}

#[test]
fn reclaim_when_some_are_in_use_then_the_others_are_given_back() {
    let rig = rig(unbounded());
    let used = rig.import(1);
    (2..=4).for_each(|slot| rig.touch(slot));
    let wanted = [1, 2, 3, 99];
    let mut writer = Writer::new();
    writer.start(Kind::Reclaim, 0);
    for lease in wanted {
        writer.push(&LeaseItem { lease: u64::from(lease as u32).into() });
    }
    rig.granting.peer.send_event(writer.finish(wanted.len(), 0));
    rig.granting.until("two are given back", |log| log.released.concat() == [2, 3]);
    assert_eq!(rig.cached(1..10), [1, 4]);
    assert_bytes(&used, 1);
}

#[test]
fn import_when_the_broker_has_no_quota_then_unused_entries_are_closed_for_it() {
    let rig = rig(unbounded());
    let used = rig.import(1);
    rig.touch(2);
    rig.granting.refuse_until_released(3, 2);
    rig.touch(3);
    rig.granting
        .log(|log| assert_eq!((&log.released[..], log.acquires.len()), (&[vec![2]][..], 4)));
    assert_bytes(&used, 1);
    assert_eq!(rig.cached(1..10), [1, 3]);
    // The same for a call for many.
    rig.granting.refuse_until_released(4, 3);
    let outcomes = rig.cache.import_many(&handles([5, 4]), Access::Read, soon()).unwrap();
    outcomes.iter().zip([5, 4]).for_each(|(one, slot)| assert_bytes(one.as_ref().unwrap(), slot));
    assert_eq!(rig.cached(1..10), [1, 4, 5]);
}

#[test]
fn import_when_no_quota_and_nothing_is_unused_then_no_quota_at_the_deadline() {
    let rig = rig(unbounded());
    let used = rig.import(1);
    rig.granting.refuse(3, ErrorCode::NoQuota);
    let soon = fdbroker_client::Deadline::from_ms(50);
    let error = rig.cache.import(&handle(3), Access::Read, soon).unwrap_err();
    assert_eq!(error.code, ErrorCode::NoQuota, "{error}");
    let many = rig.cache.import_many(&handles([1, 3]), Access::Read, soon).unwrap();
    assert!(many[0].is_ok());
    assert_eq!(many[1].as_ref().unwrap_err().code, ErrorCode::NoQuota);
    drop((many, used));
    assert_eq!(rig.cache.stats().pinned, 0);
}

#[test]
fn import_when_a_cache_of_one_and_64_threads_then_each_sees_its_own_bytes() {
    const ROUNDS: usize = 30;
    let rig = rig(at_most(1));
    let failed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..64 {
            let (rig, failed) = (&rig, &failed);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let slot = 1 + ((thread + round * 7) % 16) as u32;
                    let import = rig.import(slot);
                    let mut bytes = [0; 64];
                    import.read_at(BYTES - 64, &mut bytes).unwrap();
                    if bytes != [slot as u8; 64] {
                        failed.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert!(!failed.load(Ordering::Relaxed), "other bytes than the slot's");
    let stats = rig.cache.stats();
    assert_eq!((stats.entries, stats.pinned), (1, 0));
    assert_eq!(stats.hits + stats.misses, 64 * ROUNDS as u64);
    rig.assert_leases_match();
}

fn strict(settings: CacheSettings) -> CacheSettings {
    settings.strict(true)
}

#[test]
fn import_when_strict_and_all_is_in_use_then_refused_without_asking_the_broker() {
    let rig = rig(strict(at_most(3)));
    (1..=5).for_each(|slot| rig.touch(slot));
    let mut used: Vec<_> = (11..=13).map(|slot| rig.import(slot)).collect();
    let asked = rig.granting.acquires();
    let error = rig.try_import(14).unwrap_err();
    assert_eq!(error.code, ErrorCode::NoQuota);
    let text = error.to_string();
    for part in
        ["limit of 3 entries", "in use", "FDBROKER_CACHE_MAX_ENTRIES", "FDBROKER_CACHE_STRICT=0"]
    {
        assert!(text.contains(part), "no {part} in: {text}");
    }
    assert_eq!(rig.granting.acquires(), asked);
    // What is open already is a hit all the same, and room that a release makes is used.
    let again = rig.import(12);
    assert_eq!(rig.try_import(14).unwrap_err().code, ErrorCode::NoQuota);
    drop(used.remove(0));
    assert_bytes(&rig.import(14), 14);
    assert_bytes(&again, 12);
    assert_eq!(rig.cache.stats().entries, 3);
    rig.assert_leases_match();
}

#[test]
fn import_many_when_strict_and_more_than_fit_then_each_of_the_others_is_refused() {
    let rig = rig(strict(at_most(5)));
    let outcomes = rig.cache.import_many(&handles(1..=9), Access::Read, soon()).unwrap();
    for (outcome, slot) in outcomes.iter().zip(1..) {
        match outcome {
            Ok(import) if slot <= 5 => assert_bytes(import, slot),
            Err(error) if slot > 5 => assert_eq!(error.code, ErrorCode::NoQuota),
            other => panic!("slot {slot}: {other:?}"),
        }
    }
    assert_eq!(rig.cache.stats().pinned, 5);
    rig.assert_leases_match();
}

#[test]
fn import_when_strict_and_too_many_bytes_are_in_use_then_refused_and_idle_ones_make_room() {
    let max_bytes = 3 * BYTES as u64;
    let rig = rig(strict(CacheSettings::default().max_bytes(max_bytes)));
    (1..=4).for_each(|slot| rig.touch(slot));
    let used: Vec<_> = (11..=13).map(|slot| rig.import(slot)).collect();
    let error = rig.try_import(14).unwrap_err();
    assert_eq!(error.code, ErrorCode::NoQuota);
    assert!(error.to_string().contains("FDBROKER_CACHE_MAX_BYTES"), "{error}");
    drop(used);
    rig.touch(14);
    assert_eq!((rig.cache.stats().entries, rig.cache.stats().bytes), (3, max_bytes));
}

#[test]
fn import_when_strict_and_one_of_many_is_unused_then_it_is_found_and_closed() {
    // More than an eviction looks at.
    let rig = rig(strict(at_most(200)));
    let mut used: Vec<_> = (1..=200).map(|slot| rig.import(slot)).collect();
    drop(used.remove(150));
    assert_bytes(&rig.import(300), 300 % 256);
    assert_eq!(rig.cache.stats().entries, 200);
    assert_eq!(rig.cache.stats().evicted, 1);
}

#[test]
fn import_when_strict_and_empty_cache_then_a_full_one_closes_all_that_is_unused() {
    let rig = rig(strict(at_most(10).empty_cache(true)));
    let used = rig.import(1);
    (2..=10).for_each(|slot| rig.touch(slot));
    rig.touch(11);
    assert_eq!((rig.cache.stats().entries, rig.cache.stats().evicted), (2, 9));
    assert_bytes(&used, 1);
}

#[test]
fn import_when_strict_and_many_threads_then_never_over_the_limit() {
    let rig = rig(strict(at_most(4)));
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let rig = &rig;
            scope.spawn(move || {
                for round in 0..50 {
                    let slot = 1 + (thread * 3 + round) % 12;
                    match rig.try_import(slot) {
                        Ok(import) => assert_bytes(&import, slot),
                        Err(error) => assert_eq!(error.code, ErrorCode::NoQuota, "{error}"),
                    }
                    assert!(rig.cache.stats().entries <= 4);
                }
            });
        }
    });
    assert_eq!(rig.cache.stats().pinned, 0);
    rig.assert_leases_match();
}

#[test]
fn import_when_not_to_be_kept_then_closed_by_the_last_release() {
    let rig = rig(unbounded());
    let passing = |slot| {
        let mode = ImportMode::from(Access::Read).keep(false);
        rig.cache.import(&handle(slot), mode, soon()).unwrap()
    };
    let (one, two, three) = (passing(5), passing(5), rig.import(5));
    assert_eq!((one.as_ptr(), two.as_ptr()), (two.as_ptr(), three.as_ptr()));
    assert!(one.is_current());
    drop((one, two));
    assert_bytes(&three, 5);
    drop(three);
    assert_eq!(rig.cache.stats().entries, 0);
    rig.granting.until("it is given back", |log| log.released == [vec![1]]);
    // What is in the cache already serves it, and stays.
    rig.touch(6);
    drop(passing(6));
    assert_eq!(rig.cached(1..10), [6]);
    let mode = ImportMode::from(Access::Read).keep(false);
    drop(rig.cache.import_many(&handles(5..=9), mode, soon()).unwrap());
    assert_eq!(rig.cached(1..10), [6]);
    assert_eq!(rig.cache.stats().evicted, 0);
    rig.assert_leases_match();
}
