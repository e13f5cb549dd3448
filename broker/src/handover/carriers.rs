//! Carriers on their way to a successor: one end waits in the service manager's store, or goes to
//! the successor itself, which reads the fds. Measured: 8000 fds in 5 ms, where a store that takes
//! them one by one needs 20 s. Must never lose an fd unnoticed.

use crate::fds::carrier::{Carrier, take_out};
use crate::handover::RefusedState;
use crate::limits::{IN_FLIGHT_PATIENCE, MAX_CARRIERS};
use fdbroker_scm::{MAX_FDS, SendError};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Pause between two tries while too many fds are in flight: clients read theirs in microseconds.
const IN_FLIGHT_PAUSE: Duration = Duration::from_millis(2);

/// Why an fd is not carried.
#[derive(Debug)]
pub(crate) enum CarryError {
    /// No socket for it.
    Os(io::Error),
    /// The kernel's count of fds in flight is full.
    InFlight,
}

/// Fds on their way, in the order in which they were added.
pub(crate) struct Outgoing<'a> {
    carriers: Vec<Carrier>,
    waiting: Vec<BorrowedFd<'a>>,
    sent: u32,
    /// Fds that the kernel does not send: sockets nested too deep, or a rule of the system forbids
    /// it.
    unsendable: Vec<(u32, SendError)>,
}

impl<'a> Outgoing<'a> {
    pub fn new() -> io::Result<Self> {
        Ok(Outgoing {
            carriers: vec![Carrier::new()?],
            waiting: Vec::new(),
            sent: 0,
            unsendable: Vec::new(),
        })
    }

    /// Adds `fd`; its number.
    pub fn add(&mut self, fd: BorrowedFd<'a>) -> Result<u32, CarryError> {
        if self.waiting.len() == MAX_FDS {
            self.flush()?;
        }
        self.waiting.push(fd);
        Ok(self.count() - 1)
    }

    /// Sends what waits. To be called after the last [`add`](Self::add).
    pub fn flush(&mut self) -> Result<(), CarryError> {
        let count = self.count();
        let waiting = std::mem::take(&mut self.waiting);
        if waiting.is_empty() {
            return Ok(());
        }
        match self.send(self.sent, &waiting) {
            Ok(()) => {}
            Err(SendError::TooManyRefs) if !self.is_probe_sent()? => {
                return Err(CarryError::InFlight);
            }
            // One of them is at fault: each by itself.
            Err(SendError::TooManyRefs | SendError::Os(_)) => self.send_singly(&waiting)?,
            Err(error) => return Err(CarryError::Os(io::Error::other(error.to_string()))),
        }
        self.sent = count;
        Ok(())
    }

    fn send_singly(&mut self, fds: &[BorrowedFd<'a>]) -> Result<(), CarryError> {
        for (number, fd) in (self.sent..).zip(fds) {
            match self.send(number, &[*fd]) {
                Ok(()) => {}
                Err(SendError::TooManyRefs) if !self.is_probe_sent()? => {
                    return Err(CarryError::InFlight);
                }
                Err(error) => self.unsendable.push((number, error)),
            }
        }
        Ok(())
    }

    /// Whether an fd that is no socket can be sent, now or within the time there is: if it cannot,
    /// no fd can.
    fn is_probe_sent(&self) -> Result<bool, CarryError> {
        let carrier = Carrier::new().map_err(CarryError::Os)?;
        let probe = nix::sys::eventfd::EventFd::new().map_err(|it| CarryError::Os(it.into()))?;
        let until = Instant::now() + IN_FLIGHT_PATIENCE;
        loop {
            match carrier.send(0, &[probe.as_fd()]) {
                Ok(()) => return Ok(true),
                Err(_) if Instant::now() < until => std::thread::sleep(IN_FLIGHT_PAUSE),
                Err(_) => return Ok(false),
            }
        }
    }

    fn send(&mut self, first: u32, fds: &[BorrowedFd<'a>]) -> Result<(), SendError> {
        let last = self.carriers.last().expect("there is one from the start");
        match last.send(first.into(), fds) {
            Err(SendError::WouldBlock) if self.carriers.len() < MAX_CARRIERS => {
                let next = Carrier::new()
                    .map_err(|error| SendError::Os(error.raw_os_error().unwrap_or(libc::EMFILE)))?;
                let sent = next.send(first.into(), fds);
                self.carriers.push(next);
                sent
            }
            sent => sent,
        }
    }

    /// Fds added so far.
    pub fn count(&self) -> u32 {
        self.sent + u32::try_from(self.waiting.len()).expect("a message's at most")
    }

    /// Numbers of the fds that the kernel does not send.
    pub fn unsendable(&self) -> &[(u32, SendError)] {
        &self.unsendable
    }

    /// The ends for the successor.
    pub fn into_ends(self) -> Vec<OwnedFd> {
        self.carriers.into_iter().map(|carrier| carrier.far).collect()
    }
}

/// Takes the fds out of `ends`: each at its number, `wanted` in all. What was taken comes back in
/// any case, so that its owner can say where it is closed.
pub(crate) fn receive(
    ends: &[OwnedFd],
    wanted: usize,
) -> (Vec<Option<OwnedFd>>, Result<(), RefusedState>) {
    let mut fds: Vec<Option<OwnedFd>> = Vec::new();
    fds.resize_with(wanted, || None);
    let mut beyond = Vec::new();
    let mut found = 0;
    let mut result = Ok(());
    for end in ends {
        let taken = take_out(end.as_fd(), |first, message, received| {
            if message.fds_truncated {
                result = Err(RefusedState::TableFull { wanted });
            }
            let first = first.and_then(|first| usize::try_from(first).ok()).unwrap_or(wanted);
            for (number, fd) in (first..).zip(received.drain()) {
                found += 1;
                match fds.get_mut(number) {
                    Some(place @ None) => *place = Some(fd),
                    _ => beyond.push(Some(fd)),
                }
            }
        });
        if let Err(error) = taken {
            result = Err(RefusedState::Read(io::Error::other(error.to_string())));
        }
    }
    if result.is_ok() && (found != wanted || !beyond.is_empty()) {
        result = Err(RefusedState::Fds { found, wanted });
    }
    fds.append(&mut beyond);
    (fds, result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel;
    use nix::sys::socket::sockopt::SndBuf;

    fn memfds(count: usize) -> Vec<OwnedFd> {
        let flags = nix::sys::memfd::MFdFlags::MFD_CLOEXEC;
        (0..count).map(|_| nix::sys::memfd::memfd_create("test", flags).unwrap()).collect()
    }

    fn carry(fds: &[BorrowedFd<'_>]) -> Vec<OwnedFd> {
        let mut outgoing = Outgoing::new().unwrap();
        for (number, fd) in fds.iter().enumerate() {
            assert_eq!(outgoing.add(*fd).unwrap() as usize, number);
        }
        outgoing.flush().unwrap();
        assert_eq!(outgoing.count() as usize, fds.len());
        assert!(outgoing.unsendable().is_empty());
        outgoing.into_ends()
    }

    /// Needs 610 fds at most: the usual limit is 1,024, and other tests run beside it.
    #[test]
    fn receive_when_carried_then_each_at_its_number() {
        let inode = |fd: BorrowedFd<'_>| kernel::stat(fd).unwrap().inode;
        let files = memfds(101);
        // 101 files in turn: with 253 fds a message, none is at its number when a message is lost
        // or comes out of turn.
        for count in [0, 1, 253, 254, 507] {
            let sent: Vec<_> = files.iter().cycle().take(count).map(AsFd::as_fd).collect();
            let (got, result) = receive(&carry(&sent), count);
            result.unwrap();
            for (file, got) in files.iter().cycle().zip(&got) {
                assert_eq!(inode(file.as_fd()), inode(got.as_ref().unwrap().as_fd()));
            }
        }
    }

    #[test]
    fn add_when_a_carrier_is_full_then_another_one_is_taken() {
        let fds = memfds(2);
        let mut outgoing = Outgoing::new().unwrap();
        // Small queues and small messages: the queue is full long before anything else is.
        let mut sent = 0;
        while outgoing.carriers.len() < 3 {
            let near = &outgoing.carriers.last().unwrap().near;
            nix::sys::socket::setsockopt(near, SndBuf, &0).unwrap();
            outgoing.add(fds[sent % 2].as_fd()).unwrap();
            outgoing.flush().unwrap();
            sent += 1;
        }
        let (got, result) = receive(&outgoing.into_ends(), sent);
        result.unwrap();
        assert!(got.iter().all(Option::is_some));
    }

    #[test]
    fn receive_when_some_are_missing_then_refused_and_the_others_come_back() {
        let fds = memfds(3);
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let ends = carry(&fds);
        let (got, result) = receive(&ends, 4);
        assert!(matches!(result, Err(RefusedState::Fds { found: 3, wanted: 4 })));
        assert_eq!(got.iter().flatten().count(), 3);
        let (got, result) = receive(&carry(&fds), 2);
        assert!(matches!(result, Err(RefusedState::Fds { found: 3, wanted: 2 })));
        assert_eq!(got.iter().flatten().count(), 3);
    }
}
