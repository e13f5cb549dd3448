//! Imports that fail: no lease, no count and no mapping is left.

use super::broker::*;
use crate::support::*;
use fdbroker_client::{
    Access, Deadline, Error, ErrorCode, Grant, ImportMode, ImportOpener, MemoryKind, Opened,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A stand-in for memory, counted by the `Arc`.
#[derive(Debug)]
struct Counted(#[expect(dead_code, reason = "its count is what is looked at")] Arc<()>, usize);

impl Opened for Counted {
    fn as_ptr(&self) -> *mut u8 {
        std::ptr::without_provenance_mut(0x1000)
    }

    fn len(&self) -> usize {
        self.1
    }
}

#[track_caller]
fn assert_nothing_left(rig: &Rig) {
    let stats = rig.cache.stats();
    assert_eq!((stats.entries, stats.pinned, stats.bytes), (0, 0, 0));
    rig.granting.until("no lease is left", |log| log.leases.is_empty());
}

#[test]
fn import_when_the_offset_is_outside_then_bad_handle_and_nothing_is_left() {
    let rig = rig(unbounded());
    for offset in [BYTES as u64, BYTES as u64 + 1, u64::MAX] {
        let outside = handle(5).at(offset);
        let error = rig.cache.import(&outside, Access::Read, soon()).unwrap_err();
        assert_eq!(error.code, ErrorCode::BadHandle);
        assert_nothing_left(&rig);
        rig.touch(5);
        // The same for a cached entry.
        assert!(rig.cache.hit(&outside, Access::Read).is_none());
        let error = rig.cache.import(&outside, Access::Read, soon()).unwrap_err();
        assert_eq!(error.code, ErrorCode::BadHandle);
        assert_eq!(rig.cache.stats().pinned, 0);
        assert_eq!(rig.cache.empty(), 1);
    }
}

#[test]
fn import_with_when_open_fails_then_its_error_and_nothing_is_left() {
    let rig = rig(unbounded());
    let open = |_: &Grant| Err(Error::new(ErrorCode::NotSupported, "no driver here"));
    let error = rig.cache.import_with(&handle(5), Access::Read, soon(), open).unwrap_err();
    assert!(error.to_string().contains("no driver here"), "{error}");
    assert_nothing_left(&rig);
    rig.granting.log(|log| assert!(log.mapped.is_empty(), "reported though it failed"));
    rig.touch(5);
}

#[test]
fn import_with_when_open_panics_then_nothing_is_left_and_others_can() {
    let rig = rig(unbounded());
    let open = |_: &Grant| panic!("expected: the test's panic");
    let imported = catch_unwind(AssertUnwindSafe(|| {
        rig.cache.import_with(&handle(5), Access::Read, soon(), open).map(drop)
    }));
    assert!(imported.is_err());
    assert_nothing_left(&rig);
    rig.touch(5);
}

#[test]
fn import_with_when_opened_then_the_openers_memory_and_closed_when_evicted() {
    let rig = rig(at_most(1));
    let alive = Arc::new(());
    let mut granted = Vec::new();
    let mut open = |grant: &Grant| {
        granted.push(grant.info.id);
        Ok(Box::new(Counted(Arc::clone(&alive), 2 * BYTES)) as Box<dyn Opened>)
    };
    let import = rig.cache.import_with(&handle(5), Access::Read, soon(), &mut open).unwrap();
    // The grant's size is the bound, whatever the opener answers.
    assert_eq!((import.as_ptr().addr(), import.len()), (0x1000, BYTES));
    let error = import.read_at(0, &mut [0]).unwrap_err();
    assert_eq!(error.code, ErrorCode::NotSupported, "not the CPU's to read");
    drop(import);
    drop(rig.cache.import_with(&handle(5), Access::Read, soon(), &mut open).unwrap());
    assert_eq!(granted, [handle(5).id()]);
    assert_eq!(Arc::strong_count(&alive), 2);
    rig.touch(6);
    assert_eq!(Arc::strong_count(&alive), 1, "evicted and not closed");
}

/// Opens stand-ins, or ranges that are not mapped.
#[derive(Debug)]
struct StandIns {
    alive: Arc<()>,
    are_ranges: bool,
}

#[derive(Debug)]
struct Nowhere(#[expect(dead_code, reason = "its count is what is looked at")] Arc<()>);

impl Opened for Nowhere {
    fn as_ptr(&self) -> *mut u8 {
        std::ptr::without_provenance_mut(0x1000)
    }

    fn len(&self) -> usize {
        BYTES
    }

    fn is_range(&self) -> bool {
        true
    }
}

impl ImportOpener for StandIns {
    fn open(&self, _: &Grant, access: Access) -> Result<Box<dyn Opened>, Error> {
        assert_eq!(access, Access::Read);
        let alive = Arc::clone(&self.alive);
        if self.are_ranges {
            Ok(Box::new(Nowhere(alive)))
        } else {
            Ok(Box::new(Counted(alive, BYTES)))
        }
    }
}

#[test]
fn import_when_its_kind_has_an_opener_then_opened_by_it_and_closed_when_evicted() {
    let rig = rig(at_most(3));
    let alive = Arc::new(());
    let opener = |are_ranges| {
        let opener = StandIns { alive: Arc::clone(&alive), are_ranges };
        Some(Arc::new(opener) as Arc<dyn ImportOpener>)
    };
    rig.cache.set_opener(MemoryKind::CudaVmm, opener(false)).unwrap();
    rig.touch(1);
    rig.cache.set_opener(MemoryKind::Memfd, opener(false)).unwrap();
    let many = rig.cache.import_many(&handles(2..=3), Access::Read, soon()).unwrap();
    assert!(many.iter().all(|one| one.as_ref().unwrap().as_ptr().addr() == 0x1000));
    assert_eq!(Arc::strong_count(&alive), 5, "two openers, two stand-ins");
    drop(many);
    let mode = ImportMode::from(Access::Read).keep(false);
    drop(rig.cache.import(&handle(4), mode, soon()).unwrap());
    assert_eq!(rig.cache.empty(), 2);
    assert_eq!(Arc::strong_count(&alive), 3, "not closed");
    // A range that is not mapped cannot be left out of children.
    rig.cache.set_opener(MemoryKind::Memfd, opener(true)).unwrap();
    let error = rig.try_import(5).unwrap_err();
    assert_eq!(error.code, ErrorCode::Internal);
    assert!(error.to_string().contains("must be mapped"), "{error}");
    assert_nothing_left(&rig);
    assert_eq!(Arc::strong_count(&alive), 3);
    rig.cache.set_opener(MemoryKind::Memfd, None).unwrap();
    rig.touch(6);
}

#[test]
fn import_when_it_ends_before_it_is_kept_then_stale_and_nothing_is_left() {
    let rig = rig(unbounded());
    rig.granting.end_at_grant(5);
    let alive = Arc::new(());
    let open = |_: &Grant| Ok(Box::new(Counted(Arc::clone(&alive), BYTES)) as Box<dyn Opened>);
    let error = rig.cache.import_with(&handle(5), Access::Read, soon(), open).unwrap_err();
    assert_eq!(error.code, ErrorCode::Stale, "{error}");
    assert_eq!(Arc::strong_count(&alive), 1, "opened and not closed");
    assert_nothing_left(&rig);
    rig.granting.log(|log| assert_eq!(log.next_lease, 1, "it was granted"));
}

#[test]
fn import_when_refused_then_the_brokers_code_and_nothing_is_left() {
    let rig = rig(unbounded());
    use ErrorCode::{NotPermitted, OwnerGone, OwnerSilent, Stale};
    for code in [Stale, OwnerGone, OwnerSilent, NotPermitted] {
        rig.granting.refuse(5, code);
        assert_eq!(rig.try_import(5).unwrap_err().code, code);
        assert_nothing_left(&rig);
    }
    let at_once = Deadline::from_ms(0);
    rig.granting.refuse(5, ErrorCode::Again);
    let error = rig.cache.import(&handle(5), Access::Read, at_once).unwrap_err();
    assert_eq!(error.code, ErrorCode::TimedOut, "{error}");
    assert_nothing_left(&rig);
}

#[test]
fn import_when_on_the_library_thread_then_hits_only() {
    let (sender, answers) = std::sync::mpsc::channel();
    let (give, take) = std::sync::mpsc::channel::<fdbroker_client::ImportCache>();
    let take = std::sync::Mutex::new(take);
    let builder = fdbroker_client::Client::builder().reconnect(false);
    let rig = rig_of(
        builder.on_notice(move |_| {
            let cache = take.lock().unwrap().recv().unwrap();
            let code = |slot| {
                let imported = cache.import(&handle(slot), Access::Read, soon());
                imported.map(drop).map_err(|error| error.code)
            };
            sender.send([code(1), code(2)]).unwrap();
        }),
        unbounded(),
    );
    rig.touch(1);
    give.send(rig.cache.clone()).unwrap();
    rig.granting.peer.drained(handle(900).id(), 0, 0);
    let expected = [Ok(()), Err(ErrorCode::NotSupported)];
    assert_eq!(answers.recv_timeout(PATIENCE).unwrap(), expected);
}
