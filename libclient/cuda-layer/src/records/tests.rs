//! The records' rules, without driver and broker. Must never need either.

use super::*;

const SIZE: u64 = 65536;
const A: CuMemHandle = 11;
const B: CuMemHandle = 12;

type Of = Records<&'static str, &'static str, &'static str>;
type DoneOf = Done<&'static str, &'static str, &'static str>;

fn number(index: i32) -> VirtualFd {
    VirtualFd::new(VirtualFd::FIRST + index).unwrap()
}

fn released(handle: CuMemHandle) -> DoneOf {
    Done { handles: vec![handle], ..Done::default() }
}

/// The memory that goes now may be kept by an fd that the broker is closing.
fn closing() -> DoneOf {
    Done { is_closing: true, ..Done::default() }
}

fn given_back(lease: &'static str) -> DoneOf {
    Done { leases: vec![lease], ..Done::default() }
}

/// A new export, without an early registration; whether it is in a row.
fn begun(records: &mut Of, handle: CuMemHandle) -> (Id, bool) {
    match records.begin_export(handle, |_| true) {
        Begun::New(Ahead { memory, early: None, is_in_row }) => {
            assert_eq!((memory.handle, memory.size_bytes), (handle, SIZE));
            (memory.id, is_in_row)
        }
        other => panic!("not a new export: {other:?}"),
    }
}

fn exported(records: &mut Of, handle: CuMemHandle, index: i32) -> Id {
    let (id, _) = begun(records, handle);
    assert_eq!(records.enter_export(id, number(index), "one", |_| true), (number(index), None));
    assert_eq!(records.unpin(id), Done::default());
    id
}

fn really_released(records: &mut Of, handle: CuMemHandle) -> DoneOf {
    let Release::Real(id) = records.begin_release(handle) else { panic!("not the driver's") };
    records.end_release(id, handle, true)
}

fn close(records: &mut Of, index: i32) -> DoneOf {
    match records.begin_close(number(index)) {
        Close::Last(id, _) => records.end_close(id),
        Close::Counted => Done::default(),
        Close::Unknown => panic!("not known"),
    }
}

fn unmap(records: &mut Of, base: u64) -> DoneOf {
    let maps = records.take_maps(base, SIZE);
    records.end_maps(&maps)
}

fn is_empty(records: &Of) -> bool {
    records.by_id.is_empty()
        && records.by_handle.is_empty()
        && records.by_number.is_empty()
        && records.maps.is_empty()
}

#[test]
fn release_when_never_exported_then_at_once_though_mapped() {
    let mut records = Of::default();
    assert_eq!(records.create(A, SIZE), Done::default());
    assert_eq!(records.map(0x1000, SIZE, A), Done::default());
    assert_eq!(really_released(&mut records, A), Done::default());
    assert_eq!(records.begin_release(A), Release::Drivers);
    assert_eq!(unmap(&mut records, 0x1000), Done::default());
    assert!(is_empty(&records));
}

#[test]
fn release_when_exported_and_mapped_then_held_until_the_last_close() {
    let mut records = Of::default();
    records.create(A, SIZE);
    records.map(0, SIZE, A);
    let id = exported(&mut records, A, 0);
    assert_eq!(records.begin_export(A, |_| true), Begun::Known(number(0)));
    assert_eq!(records.begin_release(A), Release::Held);
    assert_eq!(records.begin_release(A), Release::Refused);
    assert_eq!(records.begin_recall(id), Some(A));
    assert_eq!(close(&mut records, 0), Done::default());
    assert_eq!(close(&mut records, 0), Done::default());
    // The recall is the last that needs it.
    assert_eq!(records.unpin(id), released(A));
    assert_eq!(records.begin_close(number(0)), Close::Unknown);
    assert_eq!(records.begin_recall(id), None);
    assert_eq!(unmap(&mut records, 0), closing());
    assert!(is_empty(&records));
}

#[test]
fn number_when_all_is_released_and_unmapped_then_it_keeps_the_memory() {
    let mut records = Of::default();
    records.create(A, SIZE);
    records.map(0, SIZE, A);
    let id = exported(&mut records, A, 0);
    assert_eq!(unmap(&mut records, 0), Done::default());
    assert_eq!(records.begin_release(A), Release::Held);
    assert_eq!(records.begin_recall(id), Some(A));
    assert_eq!(records.unpin(id), Done::default());
    assert_eq!(close(&mut records, 0), Done { handles: vec![A], ..closing() });
    assert!(is_empty(&records));
}

#[test]
fn release_when_the_broker_has_closed_what_ended_before_then_nothing_is_waited_for() {
    let mut records = Of::default();
    for (index, handle) in (0..).zip([A, B, C]) {
        records.create(handle, SIZE);
        exported(&mut records, handle, index);
    }
    let ends = records.ends();
    assert_eq!(
        [close(&mut records, 0), close(&mut records, 1)],
        [Done::default(), Done::default()]
    );
    assert_eq!(records.ends(), ends + 2);
    assert_eq!(really_released(&mut records, A), closing());
    records.note_settled(records.ends());
    assert_eq!(close(&mut records, 2), Done::default());
    assert_eq!(really_released(&mut records, B), Done::default());
    // It has ended since.
    assert_eq!(really_released(&mut records, C), closing());
    assert!(is_empty(&records));
}

#[test]
fn release_when_the_program_has_other_references_then_the_driver_does_it() {
    let mut records = Of::default();
    records.create(A, SIZE);
    exported(&mut records, A, 0);
    records.map(0x1000, SIZE, A);
    records.retain(A, 0x1000);
    assert_eq!(really_released(&mut records, A), Done::default());
    assert_eq!(records.begin_release(A), Release::Held);
    // Retained once more and released: the layer has its one reference already.
    records.retain(A, 0x1fff);
    assert_eq!(really_released(&mut records, A), Done::default());
    assert_eq!(close(&mut records, 0), released(A));
    let maps = records.take_maps(0, u64::MAX);
    assert_eq!(records.end_maps(&maps), closing());
    assert!(is_empty(&records));
}

#[test]
fn release_when_the_driver_refuses_then_the_program_has_it_still() {
    let mut records = Of::default();
    records.create(A, SIZE);
    let Release::Real(id) = records.begin_release(A) else { panic!("not the driver's") };
    assert_eq!(records.end_release(id, A, false), Done::default());
    assert!(records.is_exportable(A));
    assert_eq!(really_released(&mut records, A), Done::default());
    assert!(is_empty(&records));
}

#[test]
fn retain_when_only_a_map_is_left_then_exportable_by_the_drivers_new_value() {
    let mut records = Of::default();
    records.create(A, SIZE);
    records.map(0x1000, SIZE, A);
    really_released(&mut records, A);
    records.retain(B, 0x1000 + SIZE - 1);
    let id = exported(&mut records, B, 0);
    // The first value is another allocation's by now.
    assert_eq!(records.create(A, SIZE), Done::default());
    assert_eq!(records.begin_recall(id), Some(B));
    // Not of the mapped memory.
    records.retain(13, 0x1000 + SIZE);
    assert!(!records.is_exportable(13));
}

#[test]
fn create_when_the_value_is_known_then_what_it_was_cannot_be_exported() {
    let mut records = Of::default();
    records.create(A, SIZE);
    let id = exported(&mut records, A, 0);
    assert_eq!(records.create(A, SIZE).registrations, ["one"]);
    assert_eq!(records.begin_recall(id), None);
    assert_eq!(records.begin_close(number(0)), Close::Unknown);
    assert!(matches!(records.begin_export(A, |_| true), Begun::New(Ahead { .. })));
}

#[test]
fn unmap_when_it_covers_several_then_all_and_put_back_when_refused() {
    let mut records = Of::default();
    records.create(A, SIZE);
    records.create(B, SIZE);
    records.map(0, SIZE, A);
    records.map(SIZE, SIZE, B);
    records.map(2 * SIZE, SIZE, B);
    let maps = records.take_maps(0, 2 * SIZE);
    assert_eq!(maps.len(), 2);
    records.put_maps(maps);
    let maps = records.take_maps(0, 3 * SIZE);
    assert_eq!(maps.len(), 3);
    really_released(&mut records, A);
    really_released(&mut records, B);
    assert_eq!(records.end_maps(&maps), Done::default());
    assert!(is_empty(&records));
}

#[test]
fn import_when_released_and_unmapped_in_any_order_then_its_lease_after_both() {
    for is_unmapped_first in [false, true] {
        let mut records = Of::default();
        records.import(A, Some("lease"));
        assert!(!records.is_exportable(A));
        records.map(0, SIZE, A);
        let unmap = |records: &mut Of| unmap(records, 0);
        let release = |records: &mut Of| really_released(records, A);
        let (first, second) = if is_unmapped_first {
            (unmap(&mut records), release(&mut records))
        } else {
            (release(&mut records), unmap(&mut records))
        };
        assert_eq!((first, second), (Done::default(), given_back("lease")));
        assert!(is_empty(&records));
    }
}

#[test]
fn import_when_it_has_no_lease_then_it_is_nobodys_matter() {
    let mut records = Of::default();
    records.import(A, None);
    assert_eq!(records.begin_release(A), Release::Drivers);
    assert!(is_empty(&records));
}

#[test]
fn import_when_the_driver_gives_the_known_value_then_it_is_counted() {
    let mut records = Of::default();
    records.create(A, SIZE);
    records.import(A, Some("lease"));
    assert_eq!(really_released(&mut records, A), Done::default());
    assert_eq!(really_released(&mut records, A), given_back("lease"));
    assert!(is_empty(&records));
}

#[test]
fn export_when_the_registration_has_ended_then_a_new_number_beside_it() {
    let mut records = Of::default();
    records.create(A, SIZE);
    records.map(0, SIZE, A);
    exported(&mut records, A, 0);
    let Begun::New(Ahead { memory: Pinned { id, .. }, .. }) = records.begin_export(A, |_| false)
    else {
        panic!("not new")
    };
    records.enter_export(id, number(1), "two", |registration| *registration == "two");
    records.unpin(id);
    assert_eq!(close(&mut records, 0), Done::default());
    assert_eq!(records.begin_release(A), Release::Held);
    assert_eq!(close(&mut records, 1), released(A));
    assert_eq!(unmap(&mut records, 0), closing());
    assert!(is_empty(&records));
}

#[test]
fn export_when_two_threads_make_one_then_one_number() {
    let mut records = Of::default();
    records.create(A, SIZE);
    let [(id, _), (other, _)] = [begun(&mut records, A), begun(&mut records, A)];
    assert_eq!(id, other);
    assert_eq!(records.enter_export(id, number(0), "one", |_| true), (number(0), None));
    assert_eq!(records.unpin(id), Done::default());
    assert_eq!(records.enter_export(id, number(1), "two", |_| true), (number(0), Some("two")));
    assert_eq!(records.unpin(id), Done::default());
    assert_eq!(close(&mut records, 0), Done::default());
    assert_eq!(close(&mut records, 0), Done::default());
    assert_eq!(really_released(&mut records, A), closing());
    assert!(is_empty(&records));
}

#[test]
fn export_when_it_fails_after_the_last_release_then_the_release_is_done() {
    let mut records = Of::default();
    records.create(A, SIZE);
    let (id, _) = begun(&mut records, A);
    assert_eq!(records.begin_release(A), Release::Held);
    assert_eq!(records.unpin(id), released(A));
    assert!(is_empty(&records));
}

/// Memory mapped side by side, with these handles.
fn side_by_side(handles: &[CuMemHandle]) -> Of {
    let mut records = Of::default();
    for (place, handle) in (0..).zip(handles) {
        records.create(*handle, SIZE);
        records.map(0x10000 + place * SIZE, SIZE, *handle);
    }
    records
}

/// The export of B after that of A, and the early registration of what is mapped next.
fn in_a_row(records: &mut Of, next: CuMemHandle) -> Id {
    exported(records, A, 0);
    let (id, is_in_row) = begun(records, B);
    assert!(is_in_row);
    records.enter_export(id, number(1), "two", |_| true);
    let pinned = records.begin_early(id);
    let [one] = pinned[..] else { panic!("a row begins with one: {pinned:?}") };
    assert_eq!((one.handle, one.size_bytes), (next, SIZE));
    assert_eq!(records.end_early(&pinned, vec!["early"]), DoneOf::default());
    assert_eq!(records.unpin(id), DoneOf::default());
    one.id
}

fn with_early() -> DoneOf {
    Done { early: vec!["early"], ..Done::default() }
}

const C: CuMemHandle = 13;

#[test]
fn early_when_the_program_goes_on_then_it_is_that_export() {
    let mut records = side_by_side(&[A, B, C]);
    let id = in_a_row(&mut records, C);
    let Begun::New(Ahead { memory, early: Some("early"), is_in_row: true }) =
        records.begin_export(C, |_| true)
    else {
        panic!("not the early one")
    };
    assert_eq!(memory, Pinned { id, handle: C, size_bytes: SIZE, asked_bytes: 0 });
    // Nothing is mapped behind it.
    assert_eq!(records.begin_early(id), []);
    assert_eq!(records.leave_row(), DoneOf::default());
}

#[test]
fn early_when_the_row_is_long_then_twice_as_many_up_to_the_most() {
    let handles: Vec<CuMemHandle> = (A..A + 20).collect();
    let mut records = side_by_side(&handles);
    in_a_row(&mut records, A + 2);
    let mut counts = Vec::new();
    for handle in A + 2..A + 20 {
        let Begun::New(Ahead { memory, early: Some(_), is_in_row: true }) =
            records.begin_export(handle, |_| true)
        else {
            panic!("not registered early: {handle}")
        };
        assert_eq!(memory.handle, handle);
        let next = records.begin_early(memory.id);
        counts.push(next.len());
        // The broker has a place less than they are, once.
        let places = next.len() - usize::from(counts.len() == 8);
        let follows = records.end_early(&next, vec!["early"; places]);
        assert_eq!(follows, DoneOf::default());
        records.unpin(memory.id);
    }
    assert_eq!(counts, [2, 4, 0, 4, 0, 0, 0, 4, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(records.leave_row(), DoneOf::default());
}

#[test]
fn early_when_the_program_goes_on_elsewhere_then_given_up() {
    let mut records = side_by_side(&[A, B, C]);
    in_a_row(&mut records, C);
    records.create(14, SIZE);
    let (id, is_in_row) = begun(&mut records, 14);
    assert!(!is_in_row);
    assert_eq!(records.leave_row(), with_early());
    assert_eq!(records.begin_early(id), [], "it is not mapped");
    // Its fd may be on its way to be closed.
    assert_eq!(really_released(&mut records, C), DoneOf::default());
    assert_eq!(unmap(&mut records, 0x10000 + 2 * SIZE), closing());
}

#[test]
fn early_when_the_memory_is_released_then_it_keeps_nothing() {
    let mut records = side_by_side(&[A, B, C]);
    in_a_row(&mut records, C);
    assert_eq!(unmap(&mut records, 0x10000 + 2 * SIZE), DoneOf::default());
    assert_eq!(really_released(&mut records, C), Done { is_closing: true, ..with_early() });
    assert_eq!(records.leave_row(), DoneOf::default());
    // The value is another allocation's now.
    assert_eq!(records.create(C, SIZE), DoneOf::default());
    assert!(matches!(records.begin_export(C, |_| true), Begun::New(Ahead { early: None, .. })));
}

#[test]
fn early_when_the_memory_is_released_while_it_is_sent_then_given_up_after() {
    let mut records = side_by_side(&[A, B]);
    let id = exported(&mut records, A, 0);
    let pinned = records.begin_early(id);
    assert_eq!(pinned.len(), 1);
    assert_eq!(records.begin_early(id), [], "it is under way");
    assert_eq!(records.begin_release(B), Release::Held);
    let after = Done { handles: vec![B], ..with_early() };
    assert_eq!(records.end_early(&pinned, vec!["early"]), after);
    assert_eq!(records.leave_row(), DoneOf::default());
}

#[test]
fn early_when_other_threads_have_rows_too_then_the_oldest_are_given_up() {
    let handles: Vec<CuMemHandle> = (A..A + 40).collect();
    let mut records = side_by_side(&handles);
    let threads: Vec<_> = (0..10)
        .zip((A..).step_by(4))
        .map(|(thread, handle)| {
            let id = exported(&mut records, handle, thread);
            records.begin_early(id)
        })
        .collect();
    let given_up = threads.iter().map(|next| {
        assert_eq!(next.len(), 1);
        records.end_early(next, vec!["early"]).early.len()
    });
    assert_eq!(given_up.collect::<Vec<_>>(), [0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
    assert_eq!(records.leave_row().early.len(), 2 * EARLY_MOST);
}

#[test]
fn early_when_what_is_behind_is_exported_or_imported_then_none() {
    let mut records = side_by_side(&[A, B]);
    exported(&mut records, B, 1);
    let id = exported(&mut records, A, 0);
    assert_eq!(records.begin_early(id), []);
    records.import(C, Some("lease"));
    records.map(0x10000 + SIZE, SIZE, C);
    assert_eq!(records.begin_early(id), []);
}

#[test]
fn share_when_begun_again_then_the_same_while_it_is_current() {
    let mut records = Of::default();
    records.create(A, SIZE);
    assert_eq!(records.begin_share(B, |_| true), None);
    let Some(Share::New(Ahead { memory, .. })) = records.begin_share(A, |_| true) else {
        panic!("not new")
    };
    assert_eq!((memory.handle, memory.size_bytes), (A, SIZE));
    let Some(Share::New(Ahead { memory: late, .. })) = records.begin_share(A, |_| true) else {
        panic!("not new")
    };
    assert_eq!(records.enter_share(memory.id, "one", |_| true), ("one", None));
    // Another thread was faster.
    assert_eq!(records.enter_share(late.id, "late", |_| true), ("one", Some("late")));
    assert_eq!(records.unpin(memory.id), Done::default());
    assert_eq!(records.unpin(late.id), Done::default());
    assert_eq!(records.begin_share(A, |_| true), Some(Share::Known("one")));
    assert!(records.is_shared(memory.id, |it| *it == "one"));
    assert!(!records.is_shared(memory.id + 1, |_| true));
    // The broker has ended it.
    assert!(matches!(records.begin_share(A, |_| false), Some(Share::New(_))));
}

/// A new share; what of it was registered early, and what is to be registered early after it.
fn shared(records: &mut Of, handle: CuMemHandle) -> (Option<&'static str>, Vec<CuMemHandle>) {
    let Some(Share::New(Ahead { memory, early, is_in_row })) =
        records.begin_share(handle, |_| true)
    else {
        panic!("not new")
    };
    assert_eq!((memory.handle, memory.asked_bytes), (handle, SIZE - 1));
    let next = if is_in_row { records.begin_early(memory.id) } else { Vec::new() };
    assert_eq!(records.end_early(&next, vec!["early"; next.len()]), DoneOf::default());
    records.enter_share(memory.id, "one", |_| true);
    assert_eq!(records.unpin(memory.id), DoneOf::default());
    (early, next.iter().map(|it| it.handle).collect())
}

#[test]
fn early_when_blocks_are_shared_as_they_were_made_then_those_made_after_them() {
    let mut records = Of::default();
    let make = |records: &mut Of, handle| {
        records.create(handle, SIZE);
        records.note_block(handle, SIZE - 1);
    };
    (A..A + 6).for_each(|handle| make(&mut records, handle));
    // No block, and mapped nowhere.
    records.create(A + 6, SIZE);
    make(&mut records, A + 7);
    assert_eq!(shared(&mut records, A), (None, vec![]));
    assert_eq!(shared(&mut records, A + 1), (None, vec![A + 2]));
    assert!(matches!(records.begin_share(A + 1, |_| true), Some(Share::Known("one"))));
    assert_eq!(shared(&mut records, A + 2), (Some("early"), vec![A + 3, A + 4]));
    assert_eq!(shared(&mut records, A + 3), (Some("early"), vec![A + 5]));
    // What is freed takes its early registration along.
    let freed = Done { is_closing: true, ..with_early() };
    assert_eq!(really_released(&mut records, A + 5), freed);
    assert_eq!(shared(&mut records, A + 4), (Some("early"), vec![]));
    assert_eq!(shared(&mut records, A + 7), (None, vec![]), "elsewhere");
    assert_eq!(records.leave_row(), DoneOf::default());
}

#[test]
fn share_when_its_memory_is_released_then_it_is_closing() {
    let mut records = Of::default();
    records.create(A, SIZE);
    assert_eq!(records.begin_unshare(A), None);
    let Some(Share::New(Ahead { memory, .. })) = records.begin_share(A, |_| true) else {
        panic!("not new")
    };
    records.enter_share(memory.id, "one", |_| true);
    records.unpin(memory.id);
    assert_eq!(records.begin_unshare(A), Some((memory.id, "one")));
    assert_eq!(records.begin_unshare(A), None);
    assert_eq!(records.end_close(memory.id), Done::default());
    // A recall has it meanwhile: its handle lives on until that ends.
    assert_eq!(records.begin_recall(memory.id), Some(A));
    assert_eq!(records.begin_release(A), Release::Held);
    assert_eq!(records.unpin(memory.id), Done { handles: vec![A], ..closing() });
}
