//! The leases of granted fds: shared by the duplicates of an fd in this process, ended on a thread
//! of their own when the last of these is closed. Must never end a lease inside close(2), which may
//! run in a signal handler or under a driver's lock, nor one of another process.

use crate::limits::ROW_PAUSE;
use crate::{process, raw};
use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow};
use std::any::Any;
use std::cell::UnsafeCell;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// What says that this process has an fd of the allocation. The crate keeps it with the fd, shares
/// it with the fd's duplicates, and drops it, on a thread of its own, soon after the last of them
/// is closed.
pub type Lease = Arc<dyn Any + Send + Sync>;

/// The record of one lease. Never freed, but used again: a thread that reads the table may look at
/// one that has just ended.
pub struct Record {
    /// The fds that share it, and uses under way.
    holders: AtomicU32,
    /// Whose process's it is; none for the placeholder.
    pool: Option<&'static Pool>,
    lease: UnsafeCell<Option<Lease>>,
    /// A duplicate of its last fd, which the program does not know; -1: none.
    hidden: AtomicI32,
    next: AtomicPtr<Record>,
}

/// What the thread that ends leases does.
pub struct Deal {
    /// With a lease whose last fd is closed, and with the hidden duplicate of that.
    pub ended: fn(Lease, Option<RawFd>),
    /// When nothing has ended. When it is to be called again.
    pub tend: fn() -> Option<Duration>,
}

// SAFETY: `lease` is written while nobody has the record (before it is handed out, and by the one
// thread that ends leases, when `holders` is 0), and read by those who count in `holders` alone. A
// lease is Send and Sync.
unsafe impl Sync for Record {}

/// What stands in the table for an fd that is not a grant, but the stand-in for a process of
/// another PID namespace.
static PLACEHOLDER: Record = Record::new(None);

/// One fd's share of a record, or a use of it. Dropping it gives it up.
pub struct Mark(&'static Record);

/// The records of one process. A child of fork(2) makes its own: locks of its parent's may be held
/// by threads that it does not have.
struct Pool {
    process: i32,
    free: Mutex<Vec<&'static Record>>,
    /// Those without holders, to be ended.
    ended: AtomicPtr<Record>,
    /// One of them, or one that follows in a moment, has a hidden duplicate.
    has_hidden: AtomicBool,
    /// Counts what was put there; the thread sleeps on it.
    bell: AtomicU32,
    /// The thread has to be woken.
    is_asleep: AtomicBool,
    /// The thread sleeps for a moment only, or is about to.
    looks_soon: AtomicBool,
    has_thread: OnceLock<bool>,
}

impl Record {
    const fn new(pool: Option<&'static Pool>) -> Self {
        let (holders, next) = (AtomicU32::new(0), AtomicPtr::new(null_mut()));
        let hidden = AtomicI32::new(-1);
        Record { holders, pool, lease: UnsafeCell::new(None), hidden, next }
    }
}

impl Mark {
    /// The first share of a new lease.
    ///
    /// # Errors
    /// EAGAIN: the thread that ends leases cannot be started.
    pub fn of_lease(lease: Lease, deal: &'static Deal) -> Result<Mark, Errno> {
        let pool = Pool::of_this_process();
        if !pool.has_thread(deal) {
            return Err(Errno::EAGAIN);
        }
        let free = pool.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let record = free.unwrap_or_else(|| Box::leak(Box::new(Record::new(Some(pool)))));
        // SAFETY: it comes from the free ones, or is new: nobody else reads or writes the lease.
        unsafe { *record.lease.get() = Some(lease) };
        record.holders.store(1, Ordering::Release);
        Ok(Mark(record))
    }

    pub fn placeholder() -> Mark {
        Mark(&PLACEHOLDER)
    }

    pub fn is_placeholder(&self) -> bool {
        std::ptr::eq(self.0, &PLACEHOLDER)
    }

    /// The lease; none of a placeholder.
    pub fn lease(&self) -> Option<Lease> {
        // SAFETY: this share keeps the lease in place, and it was written before the share was
        // made.
        unsafe { (*self.0.lease.get()).clone() }
    }

    /// The lease, if it is this process's and nobody else shares it: this fd is its last. No
    /// memory.
    pub fn sole_lease(&self) -> Option<&Lease> {
        let is_ours = self.0.pool.is_some_and(|pool| pool.process == process::of_memory());
        let is_sole = is_ours && self.0.holders.load(Ordering::Acquire) == 1;
        // SAFETY: this share keeps the lease in place, and it was written before the share was
        // made.
        if is_sole { unsafe { (*self.0.lease.get()).as_ref() } } else { None }
    }

    /// A duplicate of the last fd goes with the lease to the thread that ends it.
    pub fn hide(&self, duplicate: RawFd) {
        self.0.hidden.store(duplicate, Ordering::Release);
        self.0.pool.inspect(|pool| pool.has_hidden.store(true, Ordering::Release));
    }

    /// For the table: the share as a pointer, to be made a share again once.
    pub fn into_raw(self) -> *mut Record {
        let record = std::ptr::from_ref(self.0).cast_mut();
        std::mem::forget(self);
        record
    }

    /// # Safety
    /// Null, or a pointer of `into_raw` that nobody else has.
    pub unsafe fn from_raw(record: *mut Record) -> Option<Mark> {
        // SAFETY: records are never freed.
        unsafe { record.as_ref() }.map(Mark)
    }

    /// A share of a record that the table shows, if it has holders still.
    ///
    /// # Safety
    /// Null, or a pointer of `into_raw`.
    pub unsafe fn share_of(record: *mut Record) -> Option<Mark> {
        // SAFETY: records are never freed.
        let record = unsafe { record.as_ref() }?;
        if record.pool.is_none() {
            return Some(Mark(record));
        }
        let add = |holders: u32| (holders > 0).then(|| holders + 1);
        let shared = record.holders.fetch_update(Ordering::AcqRel, Ordering::Relaxed, add);
        shared.is_ok().then_some(Mark(record))
    }
}

/// Ends on this thread what waits for the thread that does it.
pub fn end_all(deal: &Deal) {
    Pool::of_this_process().end_all(deal);
}

/// The same, if a hidden duplicate may be among them.
pub fn end_hidden(deal: &Deal) {
    let pool = Pool::of_this_process();
    if pool.has_hidden.swap(false, Ordering::AcqRel) {
        pool.end_all(deal);
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // What a child has of its parent's leases is nothing to end.
        let Some(pool) = self.0.pool.filter(|pool| pool.process == process::of_memory()) else {
            return;
        };
        if self.0.holders.fetch_sub(1, Ordering::AcqRel) == 1 {
            pool.end(self.0);
        }
    }
}

impl Pool {
    fn of_this_process() -> &'static Pool {
        static CURRENT: AtomicPtr<Pool> = AtomicPtr::new(null_mut());
        let process = process::of_memory();
        let current = CURRENT.load(Ordering::Acquire);
        // SAFETY: null, or a pool that is never freed.
        if let Some(pool) = unsafe { current.as_ref() }.filter(|pool| pool.process == process) {
            return pool;
        }
        let made: &'static Pool = Box::leak(Box::new(Pool {
            process,
            free: Mutex::default(),
            ended: AtomicPtr::new(null_mut()),
            has_hidden: AtomicBool::new(false),
            bell: AtomicU32::new(0),
            is_asleep: AtomicBool::new(false),
            looks_soon: AtomicBool::new(false),
            has_thread: OnceLock::new(),
        }));
        let pointer = std::ptr::from_ref(made).cast_mut();
        match CURRENT.compare_exchange(current, pointer, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => made,
            // SAFETY: what is there is never freed. The one just made is lost, once in a process's
            // life.
            Err(faster) => unsafe { &*faster },
        }
    }

    /// Whether the thread runs; starts it the first time, all signals blocked: handlers are for the
    /// program's threads.
    fn has_thread(&'static self, deal: &'static Deal) -> bool {
        *self.has_thread.get_or_init(|| {
            let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK);
            let named = std::thread::Builder::new().name("fdbroker-leases".into());
            let is_started = named.spawn(move || self.run(deal)).is_ok();
            if let Ok(before) = before {
                // The mask came from the kernel a moment ago: setting it again cannot fail.
                let _ = before.thread_set_mask();
            }
            is_started
        })
    }

    /// Hands a record without holders to the thread. A lease that another holds, too, does not end
    /// yet: it can wait until the thread looks, which saves each use of a kept fd a wake-up. No
    /// lock, no memory.
    fn end(&self, record: &'static Record) {
        let pointer = std::ptr::from_ref(record).cast_mut();
        // SAFETY: without holders it is this caller's until it is in the list.
        let lease = unsafe { (*record.lease.get()).as_ref() };
        let is_shared = lease.is_some_and(|lease| Arc::strong_count(lease) > 1);
        let push = |first: *mut Record| {
            record.next.store(first, Ordering::Relaxed);
            Some(pointer)
        };
        // It never fails: `push` always has an answer.
        let _ = self.ended.fetch_update(Ordering::SeqCst, Ordering::Relaxed, push);
        // It takes that back before it looks again.
        if is_shared && self.looks_soon.load(Ordering::SeqCst) {
            return;
        }
        // SeqCst, as in `run`: either this sees that the thread is asleep, or the thread sees the
        // bell before it sleeps.
        self.bell.fetch_add(1, Ordering::SeqCst);
        if self.is_asleep.load(Ordering::SeqCst) {
            raw::wake(&self.bell);
        }
    }

    fn run(&self, deal: &Deal) {
        loop {
            let heard = self.bell.load(Ordering::Acquire);
            if self.end_all(deal) {
                // A program closes a tensor's fds in a row: one of them has woken this thread, and
                // the others need not.
                std::thread::sleep(ROW_PAUSE);
                continue;
            }
            let due = catch_unwind(AssertUnwindSafe(deal.tend)).unwrap_or_default();
            self.looks_soon.store(due.is_some(), Ordering::SeqCst);
            self.is_asleep.store(true, Ordering::SeqCst);
            raw::wait(&self.bell, heard, due);
            self.is_asleep.store(false, Ordering::SeqCst);
            self.looks_soon.store(false, Ordering::SeqCst);
        }
    }

    /// Ends the leases of those without holders. `false`: there are none.
    fn end_all(&self, deal: &Deal) -> bool {
        let first = self.ended.swap(null_mut(), Ordering::SeqCst);
        let mut next = first;
        // SAFETY: records are never freed, and this thread alone has taken the list.
        while let Some(record) = unsafe { next.as_ref() } {
            next = record.next.load(Ordering::Relaxed);
            // SAFETY: no holders are left, and none come before it is among the free ones.
            let lease = unsafe { (*record.lease.get()).take() };
            let hidden = Some(record.hidden.swap(-1, Ordering::AcqRel)).filter(|fd| *fd >= 0);
            let end = || lease.map(|lease| (deal.ended)(lease, hidden));
            // A fault in the layer must not end the thread; its words are on stderr already.
            let _ = catch_unwind(AssertUnwindSafe(end));
            self.free.lock().unwrap_or_else(PoisonError::into_inner).push(record);
        }
        !first.is_null()
    }
}
