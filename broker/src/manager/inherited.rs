//! The fds that the service manager hands to a new process (sd_listen_fds(3)): sockets that it has
//! bound (known by what they are bound to, whatever their unit calls them), and what an earlier
//! process gave to its store. Must never close an fd of the store on the calling thread: a client's
//! may hang.

use crate::kernel;
use nix::sys::socket::{SockType, UnixAddr, getsockname, getsockopt, sockopt};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

/// Names of what this daemon stores: short, since all names together travel in one variable.
pub mod names {
    /// The state of a broker that was asked to end, in a memfd.
    pub const LEDGER: &str = "ledger";
    /// A socket in whose queue its fds lie.
    pub const CARRIER: &str = "carrier";
    /// The list of kept allocations of brokers that had no log of these.
    pub const FORMER_BOOK: &str = "book";
    /// The log of what is kept.
    pub const KEPT_LOG: &str = "objects";
    /// Begins the name of an end of a carrier of what is kept; its number follows, and which end it
    /// is.
    pub const KEPT_CARRIER_PREFIX: &str = "o";
}

/// See the module.
#[derive(Debug, Default)]
pub struct Inherited {
    /// Listening sockets with the paths they are bound to.
    pub listeners: Vec<(PathBuf, OwnedFd)>,
    /// The state of a broker that was asked to end.
    pub ledger: Option<OwnedFd>,
    /// The sockets in which its fds lie.
    pub carriers: Vec<OwnedFd>,
    /// What is kept over a crash: its log and its carriers, by name.
    pub kept: BTreeMap<String, OwnedFd>,
    /// Fds of no known use, and second ones of a name.
    pub others: Vec<OwnedFd>,
    /// The names of these in the store, which has more under them than is of use.
    pub strays: BTreeSet<String>,
}

impl Inherited {
    /// Takes over what the environment names. Once per process.
    ///
    /// # Errors
    /// When the environment contradicts itself.
    pub fn take() -> io::Result<Self> {
        let mut this = Self::default();
        for (number, name) in sd_notify::listen_fds_with_names()? {
            this.add(name, kernel::adopt(number)?);
        }
        Ok(this)
    }

    pub(crate) fn add(&mut self, name: String, fd: OwnedFd) {
        match name.as_str() {
            // The store drops all that has this name once it is taken.
            names::LEDGER => self.others.extend(self.ledger.replace(fd)),
            names::CARRIER => self.carriers.push(fd),
            kept if is_kept(kept) => {
                if let Some(double) = self.kept.insert(name.clone(), fd) {
                    self.others.push(double);
                    self.strays.insert(name);
                }
            }
            // Whatever the unit calls it: what it is bound to says what it is for.
            _ => match bound_path(fd.as_fd()) {
                Some(path) => self.listeners.push((path, fd)),
                None => {
                    self.others.push(fd);
                    self.strays.insert(name);
                }
            },
        }
    }

    /// The fds that nothing has claimed.
    pub fn unused(self) -> impl Iterator<Item = OwnedFd> {
        let Self { listeners: _, ledger, carriers, kept, others, strays: _ } = self;
        ledger.into_iter().chain(carriers).chain(kept.into_values()).chain(others)
    }

    /// Number of fds that came, the listening sockets not counted: none of them stays as it is.
    pub fn count_to_the_environment() -> u64 {
        let fds = sd_notify::listen_fds_with_names();
        let is_stored =
            |name: &str| matches!(name, names::LEDGER | names::CARRIER) || is_kept(name);
        fds.map_or(0, |fds| fds.filter(|(_, name)| is_stored(name)).count() as u64)
    }
}

/// Where the listening sockets of the environment are bound, which stay as they are.
pub fn bound_paths() -> Vec<PathBuf> {
    let fds = sd_notify::listen_fds_with_names();
    let numbers = fds.into_iter().flatten().map(|(number, _)| number);
    // SAFETY: the service manager has opened these fds for this process, and nobody closes them
    // before `Inherited::take`.
    let borrowed = numbers.map(|number| unsafe { BorrowedFd::borrow_raw(number) });
    borrowed.filter_map(bound_path).collect()
}

fn is_kept(name: &str) -> bool {
    let number = name.strip_prefix(names::KEPT_CARRIER_PREFIX);
    matches!(name, names::FORMER_BOOK | names::KEPT_LOG)
        || number.is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
}

/// Where a listening SEQPACKET socket of the file system is bound.
fn bound_path(fd: BorrowedFd<'_>) -> Option<PathBuf> {
    let is_listening = getsockopt(&fd, sockopt::AcceptConn).ok()?;
    let is_seqpacket = getsockopt(&fd, sockopt::SockType).ok()? == SockType::SeqPacket;
    let address: UnixAddr = getsockname(fd.as_raw_fd()).ok()?;
    address.path().filter(|_| is_listening && is_seqpacket).map(Into::into)
}
