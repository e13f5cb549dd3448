//! The open fds that are grants or placeholders. A look is two loads, for any number. Must never
//! take a lock; memory only for the first grant of 32,768 numbers.

use crate::held::{Mark, Record};
use crate::limits::SEGMENT_SHIFT;
use fdbroker_protocol::VirtualFd;
use std::ops::RangeInclusive;
use std::os::fd::RawFd;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

const MARKS: usize = 1 << SEGMENT_SHIFT;
const SEGMENTS: usize = VirtualFd::FIRST as usize >> SEGMENT_SHIFT;

type Segment = [AtomicPtr<Record>; MARKS];

static TABLE: [AtomicPtr<Segment>; SEGMENTS] = [const { AtomicPtr::new(null_mut()) }; SEGMENTS];

/// Whether the fd has a mark.
#[inline]
pub fn is_marked(fd: RawFd) -> bool {
    place(fd).is_some_and(|place| !place.load(Ordering::Acquire).is_null())
}

/// A share of the fd's mark.
pub fn share(fd: RawFd) -> Option<Mark> {
    let place = place(fd)?;
    loop {
        let record = place.load(Ordering::Acquire);
        // SAFETY: the table has pointers of `into_raw` alone.
        let mark = unsafe { Mark::share_of(record) };
        // The record may have ended and be another fd's meanwhile.
        if place.load(Ordering::Acquire) == record {
            return mark;
        }
    }
}

/// Takes the fd's mark out: before the fd is closed, since its number may be another thread's right
/// after.
pub fn take(fd: RawFd) -> Option<Mark> {
    let record = place(fd)?.swap(null_mut(), Ordering::AcqRel);
    // SAFETY: it was put there by `put`, and the swap gave it to this caller alone.
    unsafe { Mark::from_raw(record) }
}

/// Marks an fd. What stood there is of an fd that was closed in a way that nobody saw.
pub fn put(fd: RawFd, mark: Mark) {
    let Some(place) = place_made(fd) else { return };
    let before = place.swap(mark.into_raw(), Ordering::AcqRel);
    // SAFETY: as in `take`.
    drop(unsafe { Mark::from_raw(before) });
}

/// Takes out all marks of a range. Numbers near which no fd was ever granted are passed over 32,768
/// at a time.
pub fn take_all(range: RangeInclusive<u32>) {
    let last = (*range.end()).min(VirtualFd::FIRST as u32 - 1);
    let mut fd = *range.start();
    while fd <= last {
        if segment(fd as usize).is_none() {
            fd = (fd | (MARKS as u32 - 1)) + 1;
            continue;
        }
        drop(take(fd as RawFd));
        fd += 1;
    }
}

fn segment(fd: usize) -> Option<&'static Segment> {
    let segment = TABLE.get(fd >> SEGMENT_SHIFT)?.load(Ordering::Acquire);
    // SAFETY: null, or a segment that is never freed.
    unsafe { segment.as_ref() }
}

/// Where the fd's mark would be; `None`: no fd near it was granted, or it is no fd.
#[inline]
fn place(fd: RawFd) -> Option<&'static AtomicPtr<Record>> {
    let fd = usize::try_from(fd).ok()?;
    Some(&segment(fd)?[fd % MARKS])
}

/// The same, with memory for it.
fn place_made(fd: RawFd) -> Option<&'static AtomicPtr<Record>> {
    let index = usize::try_from(fd).ok()? >> SEGMENT_SHIFT;
    let first = TABLE.get(index)?;
    if first.load(Ordering::Acquire).is_null() {
        let marks: Box<[AtomicPtr<Record>]> = (0..MARKS).map(|_| AtomicPtr::default()).collect();
        let made = Box::into_raw(marks).cast::<Segment>();
        if first.compare_exchange(null_mut(), made, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            // SAFETY: made above with this layout, and nobody has seen it.
            drop(unsafe { Box::from_raw(made) });
        }
    }
    place(fd)
}
