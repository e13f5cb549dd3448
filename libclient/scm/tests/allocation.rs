//! That sending and receiving take nothing from the heap once the buffers exist.
//! Must never share its program with other tests: it replaces the allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::os::fd::AsFd;

use fdbroker_scm::{MAX_FDS, ReceivedFds, recv, send, seqpacket_pair};

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn send_and_recv_when_buffers_exist_then_nothing_is_allocated() {
    let (a, b) = seqpacket_pair().unwrap();
    let many = [a.as_fd(); MAX_FDS];
    let mut fds = ReceivedFds::new();
    let mut buf = [0; 64];
    let before = ALLOCATIONS.get();
    for count in [0, 1, 2, 16, MAX_FDS, 1, MAX_FDS] {
        send(a.as_fd(), b"message", &many[..count]).unwrap();
        let message = recv(b.as_fd(), &mut buf, &mut fds).unwrap();
        assert_eq!((message.len, fds.drain().count()), (7, count));
    }
    assert_eq!(ALLOCATIONS.get(), before);
    assert!(before > 0, "the counter counts");
}
