//! What a program says of objects that it makes or keeps, and whose names it means. Must never hold
//! memory, nor do IO.

use super::devices::Devices;
use crate::api::client::Client;
use crate::backend::ObjectDevice;
#[cfg(feature = "cuda")]
use crate::backend::cuda;
#[cfg(feature = "level-zero")]
use crate::backend::level_zero;
use crate::deposit::Deposit;
use crate::error::Error;
use fdbroker_protocol::ErrorCode;
use fdbroker_protocol::object::object_flags;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// An object of a group to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NewObject<'a> {
    /// 1 to 255 bytes without NUL.
    pub name: &'a str,
    /// In bytes; 0 is allowed.
    pub size_bytes: u64,
    /// Opaque, up to 4096 bytes.
    pub metadata: &'a [u8],
    /// The version that the name must have when the group is sealed, 0 = none: else the seal
    /// answers VERSION.
    pub expect: Option<u64>,
    /// Where in the group's memory it begins, in bytes; `None`: behind the one before, aligned.
    pub offset: Option<u64>,
}

impl<'a> NewObject<'a> {
    /// Without metadata, of whatever version, behind the one before.
    pub fn new(name: &'a str, size_bytes: u64) -> Self {
        NewObject { name, size_bytes, metadata: &[], expect: None, offset: None }
    }

    /// With other [`NewObject::metadata`](field@NewObject::metadata).
    #[must_use]
    pub fn metadata(self, metadata: &'a [u8]) -> Self {
        NewObject { metadata, ..self }
    }

    /// With another [`NewObject::expect`](field@NewObject::expect).
    #[must_use]
    pub fn expect(self, expect: impl Into<Option<u64>>) -> Self {
        NewObject { expect: expect.into(), ..self }
    }

    /// With another [`NewObject::offset`](field@NewObject::offset).
    #[must_use]
    pub fn offset(self, offset: impl Into<Option<u64>>) -> Self {
        NewObject { offset: offset.into(), ..self }
    }
}

/// An object to be made of bytes that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PutObject<'a> {
    /// 1 to 255 bytes without NUL.
    pub name: &'a str,
    /// What it is to be.
    pub bytes: &'a [u8],
    /// Opaque, up to 4096 bytes.
    pub metadata: &'a [u8],
    /// As [`NewObject::expect`].
    pub expect: Option<u64>,
}

impl<'a> PutObject<'a> {
    /// Without metadata, of whatever version.
    pub fn new(name: &'a str, bytes: &'a [u8]) -> Self {
        PutObject { name, bytes, metadata: &[], expect: None }
    }

    /// With other [`PutObject::metadata`](field@PutObject::metadata).
    #[must_use]
    pub fn metadata(self, metadata: &'a [u8]) -> Self {
        PutObject { metadata, ..self }
    }

    /// With another [`PutObject::expect`](field@PutObject::expect).
    #[must_use]
    pub fn expect(self, expect: impl Into<Option<u64>>) -> Self {
        PutObject { expect: expect.into(), ..self }
    }
}

impl<'a> From<&PutObject<'a>> for NewObject<'a> {
    fn from(put: &PutObject<'a>) -> Self {
        let PutObject { name, bytes, metadata, expect } = *put;
        NewObject { metadata, expect, ..NewObject::new(name, bytes.len() as u64) }
    }
}

/// How a group is made. The default: names must be free, and it ends with its creator.
///
/// Without `keep` or `pin` a version ends with the process that made it (what `fdbroker put` makes
/// is always kept). What replaces a version takes over, at the seal, the keep and the pin that the
/// old one has then, unless told otherwise; keep and pin are two things: a new time does not end a
/// pin. Of several it takes over the longest time, and the pin if one has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObjectOptions {
    /// Other objects may have the names; they lose them when this group is sealed.
    pub replace: bool,
    /// It outlives its creator, for so long after its last use, in whole ms; zero: as long as the
    /// broker allows. `None`: for the time of what it replaces, counted anew, else it ends with its
    /// creator. It outlives a broker only under a service manager that stores fds:
    /// [`crate::Group::ends_with_broker`].
    pub keep: Option<Duration>,
    /// It ends neither by time nor to make room, until it is unpinned. Implies that it outlives its
    /// creator. `None`: as what it replaces; `Some(false)`: not pinned, whatever that was.
    pub pin: Option<bool>,
    /// Without `keep`: no time is inherited.
    pub no_keep: bool,
    /// It outlives its creator in any case: as long as the broker allows, where nothing else says
    /// for how long.
    pub outlive: bool,
    /// It may end when bytes are short and nobody uses it.
    pub evictable: bool,
    /// Bytes of memory beside those of the objects that it is created with, for
    /// [`crate::Group::add`].
    pub room_bytes: u64,
}

impl ObjectOptions {
    /// Whether it is asked to.
    pub(super) fn outlives_maker(&self) -> bool {
        self.keep.is_some() || self.pin == Some(true) || self.outlive
    }

    /// With another [`ObjectOptions::replace`](field@ObjectOptions::replace).
    #[must_use]
    pub fn replace(self, replace: bool) -> Self {
        ObjectOptions { replace, ..self }
    }

    /// With another [`ObjectOptions::keep`](field@ObjectOptions::keep).
    #[must_use]
    pub fn keep(self, keep: impl Into<Option<Duration>>) -> Self {
        ObjectOptions { keep: keep.into(), ..self }
    }

    /// With another [`ObjectOptions::pin`](field@ObjectOptions::pin).
    #[must_use]
    pub fn pin(self, pin: impl Into<Option<bool>>) -> Self {
        ObjectOptions { pin: pin.into(), ..self }
    }

    /// With another [`ObjectOptions::no_keep`](field@ObjectOptions::no_keep).
    #[must_use]
    pub fn no_keep(self, no_keep: bool) -> Self {
        ObjectOptions { no_keep, ..self }
    }

    /// With another [`ObjectOptions::outlive`](field@ObjectOptions::outlive).
    #[must_use]
    pub fn outlive(self, outlive: bool) -> Self {
        ObjectOptions { outlive, ..self }
    }

    /// With another [`ObjectOptions::evictable`](field@ObjectOptions::evictable).
    #[must_use]
    pub fn evictable(self, evictable: bool) -> Self {
        ObjectOptions { evictable, ..self }
    }

    /// With another [`ObjectOptions::room_bytes`](field@ObjectOptions::room_bytes).
    #[must_use]
    pub fn room_bytes(self, room_bytes: u64) -> Self {
        ObjectOptions { room_bytes, ..self }
    }
}

/// Where the memory of a group is: the host, a device of the library's drivers, or an fd. Devices
/// of other kinds hold no named objects.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Place<'a> {
    /// A memfd of its own, mapped here for writing.
    Host,
    /// One VMM allocation on this device.
    #[cfg(feature = "cuda")]
    Cuda(&'a cuda::Device),
    /// One allocation on this device.
    #[cfg(feature = "level-zero")]
    LevelZero(&'a level_zero::Device),
    /// Memory behind an fd that the program has: kind, size, offset, device and driver data as the
    /// deposit says (the rest of it means nothing here). A memfd must have the
    /// seals F_SEAL_SHRINK and F_SEAL_GROW, but not F_SEAL_SEAL, and is sealed against writing when
    /// the group is.
    Fd(BorrowedFd<'a>, &'a Deposit),
}

impl Place<'_> {
    /// The device that it is on.
    pub(super) fn device(&self) -> Option<&dyn ObjectDevice> {
        match *self {
            Place::Host | Place::Fd(..) => None,
            #[cfg(feature = "cuda")]
            Place::Cuda(device) => Some(device),
            #[cfg(feature = "level-zero")]
            Place::LevelZero(device) => Some(device),
        }
    }
}

/// What keeps the groups from a touch on. The default: as before; the touch only counts as a use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Touch {
    /// As [`ObjectOptions::keep`]; `None`: as before.
    pub keep: Option<Duration>,
    /// Pins (`Some(true)`) or unpins the groups; `None`: as before.
    pub pin: Option<bool>,
}

impl Touch {
    /// With another [`Touch::keep`](field@Touch::keep).
    #[must_use]
    pub fn keep(self, keep: impl Into<Option<Duration>>) -> Self {
        Touch { keep: keep.into(), ..self }
    }

    /// With another [`Touch::pin`](field@Touch::pin).
    #[must_use]
    pub fn pin(self, pin: impl Into<Option<bool>>) -> Self {
        Touch { pin: pin.into(), ..self }
    }
}

/// Whose names a program means, and for which devices it opens memory.
#[derive(Clone, Debug)]
pub(super) struct Whose {
    pub client: Client,
    /// Those of the client's job, not of its domain.
    pub of_job: bool,
    pub devices: Devices,
}

impl Whose {
    /// Bits of the `flags` in the heads of requests.
    pub fn flags(&self) -> u32 {
        if self.of_job { object_flags::JOB } else { 0 }
    }

    /// Refuses what is to outlive a job that it ends with.
    pub fn check_lasting(&self, what: &str, outlives_maker: bool) -> Result<(), Error> {
        if self.of_job && outlives_maker {
            let why = "objects of a job can be neither kept nor pinned: they end with it; make them without, or as the user's";
            return Err(Error::new(ErrorCode::NotSupported, what).because(why));
        }
        Ok(())
    }
}
