//! What a producer says of an allocation, what it gets, and what the broker says to consumers.
//! Plain data. Must never hold an fd.

use crate::error::Error;
use fdbroker_protocol::handle::TOKEN_BYTES;
use fdbroker_protocol::limits::DRIVER_DATA_BYTES;
use fdbroker_protocol::message::{RegisterItem, register_flags};
use fdbroker_protocol::{AllocationId, ErrorCode, Facts, Handle, MemoryKind, Share, VirtualFd};

/// The driver's handle bytes of an allocation, 0 to 64, kept by the broker and given with each
/// grant.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DriverData {
    len: u8,
    bytes: [u8; DRIVER_DATA_BYTES],
}

impl DriverData {
    /// What an allocation without driver data has.
    pub const EMPTY: DriverData = DriverData { len: 0, bytes: [0; DRIVER_DATA_BYTES] };

    /// A copy of `bytes`; BAD_HANDLE when there are more than 64.
    pub fn new(bytes: &[u8]) -> Result<Self, Error> {
        let mut data = Self::EMPTY;
        let room = data.bytes.get_mut(..bytes.len()).ok_or_else(|| {
            let context = format!("{} bytes of driver data, at most 64 travel", bytes.len());
            Error::new(ErrorCode::BadHandle, context)
        })?;
        room.copy_from_slice(bytes);
        data.len = u8::try_from(bytes.len()).expect("at most 64");
        Ok(data)
    }

    /// The first `len` bytes of a block off the wire.
    pub(crate) fn from_block(block: &[u8; DRIVER_DATA_BYTES], len: u8) -> Self {
        let mut data = Self::EMPTY;
        let used = usize::from(len).min(DRIVER_DATA_BYTES);
        data.len = u8::try_from(used).expect("at most 64");
        data.bytes[..used].copy_from_slice(&block[..used]);
        data
    }

    /// The block on the wire, and how much of it is in use.
    pub(crate) fn to_block(self) -> ([u8; DRIVER_DATA_BYTES], u8) {
        (self.bytes, self.len)
    }

    /// What the driver gave, without the padding of the block: 0 to [`DRIVER_DATA_BYTES`] bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl Default for DriverData {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl std::fmt::Debug for DriverData {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DriverData({} bytes)", self.len)
    }
}

/// What the broker says of an allocation granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AllocationInfo {
    /// Which it is, for [`crate::Client::is_current`].
    pub id: AllocationId,
    /// As its owner registered it, with the offset in the fd granted.
    pub facts: Facts,
    /// The driver's handle bytes.
    pub driver_data: DriverData,
}

/// An allocation to register; its fd travels beside it. A memfd needs the seals F_SEAL_SHRINK and
/// F_SEAL_SEAL, and F_SEAL_GROW for a [`Deposit::share`](field@Deposit::share) beyond the uid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Deposit {
    /// What it is. Its size is more than 0.
    pub facts: Facts,
    /// Its address in the owner; 0 = it has none and never counts as the same or overlapping.
    pub base: u64,
    /// The driver's handle bytes.
    pub driver_data: DriverData,
    /// The owner can export it again when recalled, so the broker may evict its fd. It goes on over
    /// a crash of the broker, too: the library names it to the next one.
    pub recallable: bool,
    /// It outlives its owner, for the broker's `limits.keep_ttl_ms`: its handle works on. So the
    /// broker never evicts it, and charges it to `kept_allocations`. Under a service manager that
    /// stores fds it also goes on over a crash of the broker.
    pub keep: bool,
    /// Its handle has a virtual fd ([`Registration::virtual_fd`]).
    pub virtual_fd: bool,
    /// Who may acquire it: the owner's user, clients of the same socket that have the owner's
    /// group, or whoever has the handle. What a client may have is decided when it asks.
    pub share: Share,
}

impl Deposit {
    /// `size_bytes` of `kind` from offset 0 of the fd: resident, for the same user, without an
    /// address.
    pub fn new(kind: MemoryKind, size_bytes: u64) -> Self {
        Facts::new(kind, size_bytes).into()
    }

    /// With other [`Deposit::facts`](field@Deposit::facts).
    #[must_use]
    pub fn facts(self, facts: Facts) -> Self {
        Deposit { facts, ..self }
    }

    /// With another [`Deposit::base`](field@Deposit::base).
    #[must_use]
    pub fn base(self, base: u64) -> Self {
        Deposit { base, ..self }
    }

    /// With another [`Deposit::driver_data`](field@Deposit::driver_data).
    #[must_use]
    pub fn driver_data(self, driver_data: DriverData) -> Self {
        Deposit { driver_data, ..self }
    }

    /// With another [`Deposit::recallable`](field@Deposit::recallable).
    #[must_use]
    pub fn recallable(self, recallable: bool) -> Self {
        Deposit { recallable, ..self }
    }

    /// With another [`Deposit::keep`](field@Deposit::keep).
    #[must_use]
    pub fn keep(self, keep: bool) -> Self {
        Deposit { keep, ..self }
    }

    /// With another [`Deposit::virtual_fd`](field@Deposit::virtual_fd).
    #[must_use]
    pub fn virtual_fd(self, virtual_fd: bool) -> Self {
        Deposit { virtual_fd, ..self }
    }

    /// With another [`Deposit::share`](field@Deposit::share).
    #[must_use]
    pub fn share(self, share: Share) -> Self {
        Deposit { share, ..self }
    }

    /// Refuses what is no allocation, whatever its fd is.
    pub(crate) fn check(&self, what: &str) -> Result<(), Error> {
        let Facts { fd_offset, size_bytes, device, .. } = self.facts;
        let has_end = |at: u64| at.checked_add(size_bytes).is_some();
        let why = if size_bytes == 0 {
            "its size is 0; an allocation has bytes"
        } else if !has_end(self.base) || !has_end(fd_offset) {
            "its address or its offset in the fd, with its size behind it, passes the last number"
        } else if u16::try_from(device).is_err() {
            "the number of its device is above 65535"
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorCode::BadHandle, what).because(why))
    }

    /// Whether it is the same allocation of its owner.
    pub(crate) fn is_same(&self, other: &Deposit) -> bool {
        let Facts { kind, fd_offset, .. } = self.facts;
        self.base == other.base && self.facts == other.facts.kind(kind).fd_offset(fd_offset)
    }

    pub(crate) fn to_item(self) -> RegisterItem {
        let recallable = if self.recallable { register_flags::RECALLABLE } else { 0 };
        let keep = if self.keep { register_flags::KEEP } else { 0 };
        let virtual_fd = if self.virtual_fd { register_flags::VIRTUAL_FD } else { 0 };
        RegisterItem {
            facts: self.facts.into(),
            flags: recallable | keep | virtual_fd,
            share: self.share as u8,
            driver_data_len: self.driver_data.len,
            base: self.base.into(),
            driver_data: self.driver_data.bytes,
        }
    }
}

impl From<Facts> for Deposit {
    /// Resident, for the same user, without an address.
    fn from(facts: Facts) -> Self {
        Deposit {
            facts,
            base: 0,
            driver_data: DriverData::EMPTY,
            recallable: false,
            keep: false,
            virtual_fd: false,
            share: Share::Uid,
        }
    }
}

/// An allocation registered. It lives until it is unregistered or the client ends; one that cannot
/// be exported again ([`Deposit::recallable`]) and is not kept ([`Deposit::keep`]) also ends when
/// the broker is lost. Dropping this value does nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The handle to pass on, 64 bytes.
    pub handle: Handle,
    pub(crate) token: [u8; TOKEN_BYTES],
    pub(crate) epoch: u64,
}

impl Registration {
    /// Slot and generation, by which administrators' commands and notices name it.
    pub fn id(&self) -> AllocationId {
        self.handle.id()
    }

    /// The fd number that names it in its owner's domain, for programs that pass fd numbers;
    /// [`crate::Client::resolve`] takes one. `None`: it was not asked for
    /// ([`Deposit::virtual_fd`]), or the broker has more slots than virtual fds.
    pub fn virtual_fd(&self) -> Option<VirtualFd> {
        self.handle.virtual_fd()
    }

    /// Proves ownership at re-deposit; never pass it on.
    pub fn owner_token(&self) -> [u8; TOKEN_BYTES] {
        self.token
    }
}

/// What to unregister: a registration, or an allocation by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegistrationRef {
    pub(crate) id: AllocationId,
    pub(crate) epoch: Option<u64>,
}

impl From<AllocationId> for RegistrationRef {
    fn from(id: AllocationId) -> Self {
        RegistrationRef { id, epoch: None }
    }
}

impl From<&Registration> for RegistrationRef {
    fn from(registration: &Registration) -> Self {
        RegistrationRef { id: registration.id(), epoch: Some(registration.epoch) }
    }
}

impl From<Registration> for RegistrationRef {
    fn from(registration: Registration) -> Self {
        (&registration).into()
    }
}

/// Whether no lease was left when an allocation ended: its memory may be used anew at once. If
/// `false`, wait for [`crate::Notice::Drained`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained(pub bool);

/// An fd for a deposit, made when it is about to be sent.
#[derive(Debug)]
pub(crate) enum Export<'a> {
    /// One that the process holds anyway.
    Shared(std::os::fd::BorrowedFd<'a>),
    /// A new one; closed when sent.
    Fresh(crate::own_fds::OwnFd),
}

impl Export<'_> {
    pub fn fresh(fd: std::os::fd::OwnedFd) -> Result<Self, crate::error::Error> {
        crate::own_fds::OwnFd::kept(fd).map(Export::Fresh)
    }

    /// For a request that goes on after this call: a duplicate of what the process holds anyway.
    pub fn kept(self) -> Result<crate::own_fds::OwnFd, crate::error::Error> {
        match self {
            Export::Shared(fd) => crate::own_fds::OwnFd::duplicate(fd, "create: duplicate the fd"),
            Export::Fresh(fd) => Ok(fd),
        }
    }
}

impl std::os::fd::AsFd for Export<'_> {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        match self {
            Export::Shared(fd) => *fd,
            Export::Fresh(fd) => fd.polled(),
        }
    }
}
