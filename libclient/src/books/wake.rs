//! Wakes the thread that serves, from any other thread, without writing into anything: a socket of
//! the library's that is always writable is asked for in an epoll instance of the library's, or is
//! not. Must never wait, nor use either when the program has closed them: then they are lost, and
//! whoever serves makes others.

use crate::error::Error;
use crate::fork::Process;
use crate::own_fds::{Entry, OwnFd, off_stdio, raised};
use crate::sync::lock;
use fdbroker_protocol::ErrorCode;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex};

/// Makes an fd readable, and not any more, for libraries over this one that have such an fd of
/// their own. Clones share it.
#[derive(Clone, Debug)]
pub struct Wake(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    process: Process,
    /// The program is given the epoll's fd, to be polled.
    is_given_away: bool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    bell: Arc<Bell>,
    rings: bool,
    is_lost: bool,
}

/// What one waits for, by poll(2) alone: an epoll instance with the socket that rings it, and
/// whatever else is to wake the one that waits.
#[derive(Debug)]
pub struct Bell {
    entry: Option<Entry>,
    epoll: ManuallyDrop<Epoll>,
    clapper: OwnFd,
    is_given_away: bool,
}

impl Wake {
    /// `is_given_away`: the program gets the fd, to poll it.
    ///
    /// # Errors
    /// LOCAL_FD_LIMIT.
    pub fn new(is_given_away: bool) -> Result<Self, Error> {
        let bell = Arc::new(Bell::new(is_given_away)?);
        let state = Mutex::new(State { bell, rings: false, is_lost: false });
        Ok(Wake(Arc::new(Shared { process: Process::current(), is_given_away, state })))
    }

    /// Makes the thread that serves look around.
    pub fn kick(&self) {
        // Not in a forked child: the lock may be held by a thread it does not have, and the bell is
        // its parent's.
        if self.0.process.is_current() {
            self.set(true);
        }
    }

    /// Takes all kicks; whether there was one.
    pub fn take_kicks(&self) -> bool {
        self.set(false)
    }

    fn set(&self, rings: bool) -> bool {
        let mut state = lock(&self.0.state);
        let changes = state.rings != rings;
        if changes {
            state.is_lost |= !state.bell.set(rings);
            state.rings = rings;
        }
        changes
    }

    /// The bell of the moment.
    pub fn bell(&self) -> Arc<Bell> {
        Arc::clone(&lock(&self.0.state).bell)
    }

    /// The bell of the moment; another one where the program has closed it.
    ///
    /// # Errors
    /// LOCAL_FD_LIMIT.
    pub fn mended(&self) -> Result<Arc<Bell>, Error> {
        let bell = self.bell();
        Ok(if self.is_lost() { self.renew(&bell)?.unwrap_or_else(|| self.bell()) } else { bell })
    }

    /// Whether another bell has taken the place of this one.
    pub(crate) fn is_over(&self, bell: &Arc<Bell>) -> bool {
        !Arc::ptr_eq(&lock(&self.0.state).bell, bell)
    }

    /// Whether the bell of the moment was found to be gone.
    pub(crate) fn is_known_as_lost(&self) -> bool {
        lock(&self.0.state).is_lost
    }

    /// Looks whether the bell of the moment is there.
    pub(crate) fn is_lost(&self) -> bool {
        let mut state = lock(&self.0.state);
        state.is_lost = state.is_lost || !state.bell.set(state.rings);
        state.is_lost
    }

    /// A bell cannot be used any more, though it is there.
    pub(crate) fn lose(&self, bell: &Arc<Bell>) {
        let mut state = lock(&self.0.state);
        state.is_lost |= Arc::ptr_eq(&state.bell, bell);
    }

    /// Puts another in the place of this bell, which is lost; `None`: that was done before.
    pub(crate) fn renew(&self, lost: &Arc<Bell>) -> Result<Option<Arc<Bell>>, Error> {
        let mut state = lock(&self.0.state);
        if !Arc::ptr_eq(&state.bell, lost) {
            return Ok(None);
        }
        let bell = Arc::new(Bell::new(self.0.is_given_away)?);
        *state = State { bell: Arc::clone(&bell), rings: false, is_lost: false };
        Ok(Some(bell))
    }
}

impl Bell {
    fn new(is_given_away: bool) -> Result<Self, Error> {
        let failed = |errno| Error::no_fd(ErrorCode::Internal, "epoll", errno);
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        // Of a kind that does not hang up for want of a peer.
        let clapper = socket(AddressFamily::Unix, SockType::Datagram, flags, None);
        let clapper = OwnFd::guarded(clapper.map_err(failed)?)?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed)?.0;
        let epoll = if is_given_away { off_stdio(epoll)? } else { raised(epoll)? };
        let (entry, epoll) = (Entry::of(epoll.as_raw_fd()), ManuallyDrop::new(Epoll(epoll)));
        epoll.add(clapper.polled(), event(EpollFlags::empty())).map_err(failed)?;
        Ok(Bell { entry, epoll, clapper, is_given_away })
    }

    /// `false`: it is not ours. A foreign epoll does not have the socket, and does nothing.
    fn set(&self, rings: bool) -> bool {
        let wanted = if rings { EpollFlags::EPOLLOUT } else { EpollFlags::empty() };
        let clapper = self.clapper.proved();
        let is_ours = |clapper| self.epoll.modify(clapper, &mut event(wanted)).is_ok();
        let is_set = clapper.is_some_and(is_ours);
        if is_set && !rings && self.is_given_away {
            // The socket is among what is ready until somebody looks, and would wake nobody the
            // next time whose epoll tells of edges alone.
            let _ = self.epoll.wait(&mut [EpollEvent::empty()], EpollTimeout::ZERO);
        }
        is_set
    }

    /// Looks whether it is there, and rings.
    pub(crate) fn is_here(&self) -> bool {
        self.set(true)
    }

    /// Has an fd wake the one that waits. The bell was looked at.
    pub(crate) fn add(&self, fd: BorrowedFd<'_>, wanted: EpollFlags) -> nix::Result<()> {
        self.epoll.add(fd, event(wanted))
    }

    /// The same of one that is in it. ENOENT: it is not, under this number; so the fd is not what
    /// was added.
    pub(crate) fn modify(&self, fd: BorrowedFd<'_>, wanted: EpollFlags) -> nix::Result<()> {
        self.epoll.modify(fd, &mut event(wanted))
    }

    pub(crate) fn delete(&self, fd: BorrowedFd<'_>) -> nix::Result<()> {
        self.epoll.delete(fd)
    }

    /// The number, to be polled.
    pub fn polled(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        self.entry = None;
        // It rings: a forked child that closes its copy must take no kick of its parent's.
        if self.is_here() {
            // SAFETY: not used any more; dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.epoll) };
        }
    }
}

fn event(wanted: EpollFlags) -> EpollEvent {
    EpollEvent::new(wanted, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::os::fd::AsFd;

    fn rings(bell: &Bell) -> bool {
        poll(&mut [PollFd::new(bell.polled(), PollFlags::POLLIN)], PollTimeout::ZERO).unwrap() == 1
    }

    #[test]
    fn kick_when_many_then_it_rings_until_they_are_taken() {
        let wake = Wake::new(false).unwrap();
        let bell = wake.bell();
        assert!(!rings(&bell));
        wake.kick();
        wake.kick();
        assert!(rings(&bell) && rings(&bell));
        assert!(wake.take_kicks() && !wake.take_kicks());
        assert!(!rings(&bell));
    }

    #[test]
    fn kick_when_an_epoll_tells_of_edges_alone_then_it_tells_of_each_after_the_kicks_were_taken() {
        let wake = Wake::new(true).unwrap();
        let programs = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
        programs
            .add(wake.bell().polled(), event(EpollFlags::EPOLLIN | EpollFlags::EPOLLET))
            .unwrap();
        let told = || programs.wait(&mut [EpollEvent::empty()], EpollTimeout::ZERO).unwrap();
        for _ in 0..3 {
            assert_eq!(told(), 0);
            wake.kick();
            assert_eq!(told(), 1);
            assert!(wake.take_kicks());
        }
    }

    #[test]
    fn kick_when_its_numbers_are_anothers_then_they_are_not_touched_and_another_bell_rings() {
        let wake = Wake::new(false).unwrap();
        let bell = wake.bell();
        let (_other, watched) = fdbroker_scm::seqpacket_pair().unwrap();
        let foreign = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
        foreign.add(&watched, event(EpollFlags::EPOLLOUT)).unwrap();
        let (epoll, clapper) = (bell.polled().as_raw_fd(), bell.clapper.polled().as_raw_fd());
        for (own, number) in [(foreign.0.as_fd(), epoll), (watched.as_fd(), clapper)] {
            // SAFETY: what is closed so is the bell's, which is what is tested.
            let done = unsafe { libc::dup3(own.as_raw_fd(), number, libc::O_CLOEXEC) };
            assert_eq!(done, number);
        }
        wake.kick();
        assert!(wake.is_lost());
        let other = wake.renew(&bell).unwrap().unwrap();
        assert!(wake.renew(&bell).unwrap().is_none() && wake.is_over(&bell));
        wake.kick();
        assert!(rings(&other) && !wake.is_lost());
        drop(bell);
        // Both are open, and what the foreign one waits for is what it was.
        for number in [epoll, clapper] {
            // SAFETY: takes a number, which is this test's own.
            assert_eq!(unsafe { libc::close(number) }, 0);
        }
        let mut events = [EpollEvent::empty(); 2];
        assert_eq!(foreign.wait(&mut events, PollTimeout::ZERO).unwrap(), 1);
        assert_eq!(events[0].events(), EpollFlags::EPOLLOUT);
    }
}
