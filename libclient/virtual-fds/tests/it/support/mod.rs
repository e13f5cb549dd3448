//! A stand-in for the layer: memfds by number, with counted leases. Must never answer for a number
//! of another test.

use fdbroker_virtual_fds::{Granted, Lease, OWN_FDS_MOST, Source, VirtualFd, install};
use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Condvar, Mutex, Once};
use std::time::Duration;

/// A wait that only a hang exceeds.
const SOON: Duration = Duration::from_secs(20);

/// Fds of the layer at once, over all tests.
const OWN: usize = 8;

/// What grants of a number answer.
#[derive(Clone, Copy)]
pub enum Mood {
    Granting,
    Failing(Errno),
    Panicking,
}

struct Allocation {
    memory: OwnedFd,
    registrations: usize,
    mood: Mood,
    leases: Arc<Leases>,
}

/// How many leases of a number there are.
#[derive(Default)]
struct Leases {
    open: Mutex<usize>,
    changed: Condvar,
}

struct OneLease(Arc<Leases>);

impl Drop for OneLease {
    fn drop(&mut self) {
        *self.0.open.lock().unwrap() -= 1;
        self.0.changed.notify_all();
    }
}

#[derive(Default)]
struct StandIn {
    allocations: Mutex<HashMap<RawFd, Allocation>>,
    minted: AtomicI32,
    own: [AtomicI32; OWN],
}

fn stand_in() -> &'static StandIn {
    static STAND_IN: std::sync::LazyLock<StandIn> = std::sync::LazyLock::new(StandIn::default);
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| assert!(install(&*STAND_IN)));
    &STAND_IN
}

/// A virtual fd with this content.
pub struct Exported(pub RawFd);

pub fn export(content: &[u8]) -> Exported {
    export_in_mood(content, Mood::Granting)
}

pub fn export_in_mood(content: &[u8], mood: Mood) -> Exported {
    let memory = memfd_create(c"test", MFdFlags::MFD_CLOEXEC).unwrap();
    nix::sys::uio::pwrite(&memory, content, 0).unwrap();
    let number = (1 << 30) + 1000 + stand_in().minted.fetch_add(1, Ordering::Relaxed);
    let allocation = Allocation { memory, registrations: 1, mood, leases: Arc::default() };
    stand_in().allocations.lock().unwrap().insert(number, allocation);
    Exported(number)
}

impl Exported {
    /// As a second export of the same memory.
    pub fn again(&self) {
        stand_in().allocations.lock().unwrap().get_mut(&self.0).unwrap().registrations += 1;
    }

    fn leases(&self) -> Arc<Leases> {
        Arc::clone(&stand_in().allocations.lock().unwrap()[&self.0].leases)
    }

    pub fn open_leases(&self) -> usize {
        *self.leases().open.lock().unwrap()
    }

    /// Waits until it has so many leases.
    pub fn wait_for_leases(&self, count: usize) {
        let leases = self.leases();
        let open = leases.open.lock().unwrap();
        let (open, _) =
            leases.changed.wait_timeout_while(open, SOON, |open| *open != count).unwrap();
        assert_eq!(*open, count);
    }
}

/// Makes an fd the layer's own, or the program's again.
pub fn set_own(fd: RawFd, is_own: bool) {
    let (from, to) = if is_own { (0, fd) } else { (fd, 0) };
    let set = |slot: &AtomicI32| {
        slot.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    };
    assert!(stand_in().own.iter().any(set));
}

impl Source for StandIn {
    fn grant(&self, number: VirtualFd) -> Result<Granted, Errno> {
        let allocations = self.allocations.lock().unwrap();
        let allocation = allocations.get(&number.number()).ok_or(Errno::EBADF)?;
        let mood = allocation.mood;
        if let Mood::Failing(errno) = mood {
            return Err(errno);
        }
        let fd = allocation.memory.try_clone().unwrap();
        let leases = Arc::clone(&allocation.leases);
        drop(allocations);
        assert!(!matches!(mood, Mood::Panicking), "as the test wants");
        *leases.open.lock().unwrap() += 1;
        let lease: Lease = Arc::new(OneLease(leases));
        Ok(Granted { fd, lease })
    }

    fn end(&self, number: VirtualFd) -> Result<(), Errno> {
        let mut allocations = self.allocations.lock().unwrap();
        let allocation = allocations.get_mut(&number.number()).ok_or(Errno::EBADF)?;
        allocation.registrations -= 1;
        if allocation.registrations == 0 {
            allocations.remove(&number.number());
        }
        Ok(())
    }

    fn end_range(&self, numbers: &RangeInclusive<u32>) {
        let is_within = |number: &RawFd| numbers.contains(&number.cast_unsigned());
        self.allocations.lock().unwrap().retain(|number, _| !is_within(number));
    }

    fn is_own(&self, fd: RawFd) -> bool {
        fd > 0 && self.own.iter().any(|slot| slot.load(Ordering::Relaxed) == fd)
    }

    fn own_fds(&self, fds: &mut [RawFd; OWN_FDS_MOST]) -> usize {
        let own = self.own.iter().map(|slot| slot.load(Ordering::Relaxed)).filter(|fd| *fd > 0);
        own.zip(fds).map(|(fd, room)| *room = fd).count()
    }

    fn has_used_driver(&self) -> bool {
        true
    }
}

/// What the memory behind an fd holds, of `count` bytes.
pub fn content(fd: RawFd, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    // SAFETY: live bytes and their count.
    let read = unsafe { libc::pread(fd, bytes.as_mut_ptr().cast(), count, 0) };
    assert_eq!(usize::try_from(read), Ok(count));
    bytes
}

pub fn is_open(fd: RawFd) -> bool {
    // SAFETY: no argument.
    unsafe { libc::fcntl(fd, libc::F_GETFD) != -1 }
}

/// The errno of a call that answered -1.
#[track_caller]
pub fn errno_of(answer: impl TryInto<i64>) -> Errno {
    let errno = Errno::last();
    assert_eq!(answer.try_into().ok(), Some(-1), "it did not fail");
    errno
}

/// Runs `body` in a child of fork(2), which may make system calls alone, and answers what it
/// answers.
pub fn in_child(body: impl FnOnce() -> u8) -> i32 {
    // A thread that installs it now would leave the child a lock that nobody opens.
    stand_in();
    // SAFETY: the child makes system calls and leaves.
    match unsafe { nix::unistd::fork() }.unwrap() {
        nix::unistd::ForkResult::Child => {
            let status = body();
            // SAFETY: it runs nothing else.
            unsafe { libc::_exit(status.into()) }
        }
        nix::unistd::ForkResult::Parent { child } => {
            let status = nix::sys::wait::waitpid(child, None).unwrap();
            let nix::sys::wait::WaitStatus::Exited(_, status) = status else {
                panic!("{status:?}")
            };
            status
        }
    }
}

/// A new fd of this process.
pub fn eventfd() -> OwnedFd {
    nix::sys::eventfd::EventFd::from_flags(nix::sys::eventfd::EfdFlags::EFD_CLOEXEC).unwrap().into()
}

pub fn raw(fd: &OwnedFd) -> RawFd {
    fd.as_raw_fd()
}
