//! The memory of groups: in the making, where this process writes it, and got, where it is read by
//! all objects of the group. Must never leave a writable mapping of what is sealed, nor call bytes
//! sealed that somebody may still write.

use super::devices::Devices;
use super::options::{NewObject, ObjectOptions, Place, PutObject};
use super::wire;
use crate::api::client::Client;
use crate::backend::{DeviceMemory, MakersWork, closed_here, object_file};
use crate::books::grant::Grant;
use crate::books::import::{Import, Imported};
use crate::books::lease::Lease;
use crate::deposit::{AllocationInfo, Export};
use crate::error::Error;
use crate::fork::Process;
use crate::inherited::Way;
use crate::limits::{OBJECT_ALIGN, OBJECT_DEVICE_ALIGN};
use crate::map::{Access, Mapping, page_size};
use crate::own_fds::OwnFd;
use fdbroker_protocol::object::ObjectCreateHead;
use fdbroker_protocol::{ErrorCode, Facts, MemoryKind};
use std::ops::Range;

// --- in the making -------------------------------------------------------------------------------

/// Where the objects of a group are in its memory.
#[derive(Debug)]
pub(super) struct Layout {
    pub size_bytes: u64,
    align: u64,
    /// Behind the last object.
    used: u64,
    pub members: Vec<Range<u64>>,
}

impl Layout {
    /// Of a group that begins with these objects and has room for so many bytes more.
    pub fn of(
        objects: &[NewObject<'_>],
        place: &Place<'_>,
        room_bytes: u64,
    ) -> Result<Self, Error> {
        let align = place.device().map_or(OBJECT_ALIGN, |_| OBJECT_DEVICE_ALIGN);
        let size_bytes = match place {
            Place::Fd(_, deposit) => {
                deposit.check("create")?;
                Some(deposit.facts.size_bytes)
            }
            _ => None,
        };
        let mut layout = Layout { size_bytes: u64::MAX, align, used: 0, members: Vec::new() };
        let placed = layout.plan(objects)?;
        layout.take(placed);
        let needed = layout.used.checked_add(room_bytes).map(|bytes| bytes.max(1));
        let needed = needed.and_then(|bytes| bytes.checked_next_multiple_of(page_size() as u64));
        layout.size_bytes = match (size_bytes, needed) {
            (Some(size), _) if layout.used <= size => size,
            (None, Some(needed)) if needed <= isize::MAX as u64 => needed,
            _ => return Err(does_not_fit(layout.used, size_bytes.unwrap_or(u64::MAX))),
        };
        Ok(layout)
    }

    /// Where these objects would be.
    pub fn plan(&self, objects: &[NewObject<'_>]) -> Result<Vec<Range<u64>>, Error> {
        let mut used = self.used;
        let place = |object: &NewObject<'_>| {
            let aligned = || used.checked_next_multiple_of(self.align);
            let start = object.offset.or_else(aligned).unwrap_or(u64::MAX);
            let end = start.checked_add(object.size_bytes).filter(|end| *end <= self.size_bytes);
            let end = end.ok_or_else(|| does_not_fit(object.size_bytes, self.size_bytes))?;
            used = used.max(end);
            Ok(start..end)
        };
        objects.iter().map(place).collect()
    }

    fn bytes(&self) -> Result<usize, Error> {
        let too_many = |_| does_not_fit(self.size_bytes, usize::MAX as u64);
        usize::try_from(self.size_bytes).map_err(too_many)
    }

    pub fn take(&mut self, placed: Vec<Range<u64>>) {
        let end = placed.iter().map(|range| range.end).max();
        self.used = self.used.max(end.unwrap_or(0));
        self.members.extend(placed);
    }
}

/// `size_bytes`: of the group's memory; u64::MAX: of any.
fn does_not_fit(bytes: u64, size_bytes: u64) -> Error {
    if size_bytes == u64::MAX {
        let context = format!("objects of {bytes} bytes, with their offsets and their room");
        return Error::new(ErrorCode::BadHandle, context).because("no memory is so large");
    }
    let context = format!("objects of {bytes} bytes in a group's memory of {size_bytes}");
    Error::new(ErrorCode::BadHandle, context)
        .because("stay inside the memory, or create the group with more room (room_bytes)")
}

/// The memory of a group that is not sealed.
#[derive(Debug)]
pub(super) struct GroupMemory {
    of: Of,
    process: Process,
}

#[derive(Debug)]
enum Of {
    Host {
        mapping: Mapping,
        fd: OwnFd,
    },
    Device {
        memory: Box<dyn DeviceMemory>,
        facts: Facts,
    },
    /// A memfd of the program's, to be sealed.
    ForeignFile(OwnFd),
    /// What cannot be sealed.
    Foreign,
    /// A host file that is sealed, and not mapped any more; or nothing.
    Sealed,
}

impl GroupMemory {
    /// Makes it, and says in the layout how large it is.
    pub fn new(client: &Client, place: &Place<'_>, layout: &mut Layout) -> Result<Self, Error> {
        let of = match (place, place.device()) {
            (_, Some(device)) => {
                let (memory, facts) = device.make(client, layout.bytes()?)?;
                layout.size_bytes = facts.size_bytes;
                Of::Device { memory, facts }
            }
            (Place::Fd(fd, deposit), _) if deposit.facts.kind == MemoryKind::Memfd => {
                let fd = fd.try_clone_to_owned().map_err(|error| {
                    Error::no_fd(ErrorCode::Internal, "duplicate the fd of a group", error)
                })?;
                Of::ForeignFile(OwnFd::raised(fd)?)
            }
            (Place::Fd(..), _) => Of::Foreign,
            _ => {
                let fd = object_file::allocated(layout.bytes()?)?;
                let file = fd.proved().ok_or_else(closed_here)?;
                let mapping = object_file::map(file, layout.bytes()?)?;
                Of::Host { mapping, fd }
            }
        };
        Ok(GroupMemory { of, process: Process::current() })
    }

    /// A host file of these bytes, sealed: its fd.
    pub fn written(layout: &Layout, puts: &[PutObject<'_>]) -> Result<(Self, OwnFd), Error> {
        let parts = layout.members.iter().zip(puts).map(|(range, put)| (range.start, put.bytes));
        let fd = object_file::written(layout.bytes()?, parts)?;
        object_file::seal(fd.proved().ok_or_else(closed_here)?)?;
        Ok((GroupMemory { of: Of::Sealed, process: Process::current() }, fd))
    }

    /// The fd to send.
    pub fn export<'a>(&'a self, place: &Place<'a>) -> Result<Export<'a>, Error> {
        match (&self.of, place) {
            (_, Place::Fd(fd, _)) => Ok(Export::Shared(*fd)),
            (Of::Host { fd, .. }, _) => fd.proved().map(Export::Shared).ok_or_else(closed_here),
            (Of::Device { memory, .. }, _) => memory.export().and_then(Export::fresh),
            (Of::ForeignFile(_) | Of::Foreign | Of::Sealed, _) => Err(sealed()),
        }
    }

    /// What the broker is told of it.
    pub fn head(
        &self,
        flags: u32,
        options: ObjectOptions,
        place: &Place<'_>,
        size_bytes: u64,
    ) -> ObjectCreateHead {
        let facts = match (&self.of, place) {
            (_, Place::Fd(_, deposit)) => return wire::head(flags, options, deposit),
            (Of::Device { facts, .. }, _) => *facts,
            _ => Facts::new(MemoryKind::Memfd, size_bytes),
        };
        wire::head(flags, options, &facts.into())
    }

    /// Bytes of host memory.
    pub fn bytes_mut(&mut self, range: Range<usize>) -> Result<&mut [u8], Error> {
        if !self.process.is_current() {
            return Err(Error::forked("write an object"));
        }
        match &mut self.of {
            // SAFETY: inside the mapping, whose pages are all allocated, so that no access can
            // fail. This process alone has the file until it is sealed, and this borrow ends before
            // that; the broker only holds its fd.
            Of::Host { mapping, .. } => Ok(unsafe {
                std::slice::from_raw_parts_mut(mapping.as_ptr().add(range.start), range.len())
            }),
            Of::Sealed => Err(sealed()),
            _ => Err(Error::new(ErrorCode::NotSupported, "bytes of a group")
                .because("only host memory can be had as bytes; copy into it with write_at")),
        }
    }

    /// Copies in, at an offset in the group's memory.
    pub fn write_at(&mut self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        match &self.of {
            Of::Host { .. } => {
                self.bytes_mut(offset..offset + bytes.len())?.copy_from_slice(bytes);
                Ok(())
            }
            Of::Device { memory, .. } => memory.write_at(offset, bytes),
            Of::Sealed => Err(sealed()),
            Of::ForeignFile(_) | Of::Foreign => {
                Err(Error::new(ErrorCode::NotSupported, "write to foreign memory")
                    .because("its program has it; write there"))
            }
        }
    }

    /// First byte of the group, a device address.
    pub fn device_ptr(&self) -> Result<u64, Error> {
        match &self.of {
            Of::Device { memory, .. } => Ok(memory.device_ptr()),
            Of::Sealed => Err(sealed()),
            _ => Err(Error::new(ErrorCode::NotSupported, "device address of a group")
                .because("it was not created on a device")),
        }
    }

    /// Waits for the device's work that writes it: this, or all of its context.
    pub fn settle(&self, work: Option<MakersWork>) -> Result<(), Error> {
        match (&self.of, work) {
            (Of::Device { memory, .. }, work) => memory.settle(work),
            (_, None) => Ok(()),
            (_, Some(_)) => Err(Error::new(ErrorCode::NotSupported, "seal after work of a device")
                .because("the group was not created on a device; seal it without")),
        }
    }

    /// Nobody can write it any more, this process included. SEALED_BUSY leaves it as it was.
    pub fn seal(&mut self) -> Result<(), Error> {
        match std::mem::replace(&mut self.of, Of::Sealed) {
            Of::Host { mapping, fd } => {
                let len = mapping.len();
                drop(mapping);
                let file = fd.proved().ok_or_else(closed_here)?;
                let Err(error) = object_file::seal_after_map(file) else { return Ok(()) };
                // It can be written again, and sealed later.
                let mapping = object_file::map(file, len)?;
                self.of = Of::Host { mapping, fd };
                Err(error)
            }
            Of::ForeignFile(fd) => {
                let file = fd.proved().ok_or_else(closed_here)?;
                let Err(error) = object_file::seal(file) else { return Ok(()) };
                self.of = Of::ForeignFile(fd);
                Err(error)
            }
            // The broker has an fd of it; what is mapped and allocated here is dropped.
            Of::Device { .. } | Of::Foreign | Of::Sealed => Ok(()),
        }
    }
}

fn sealed() -> Error {
    Error::new(ErrorCode::Sealed, "write to a group")
}

// --- got -----------------------------------------------------------------------------------------

/// Where in its group an object is, and its version.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    pub version: u64,
    pub offset: usize,
    pub len: usize,
}

/// The memory of a group, open here.
#[derive(Debug)]
pub(super) struct Shared {
    opened: Opened,
    /// The ordinal of the device that it is opened for.
    device: Option<u32>,
    process: Process,
}

/// How it is open.
#[derive(Debug)]
pub(super) enum Opened {
    Host(Import),
    Device(Imported<Box<dyn DeviceMemory>>),
}

impl Shared {
    /// Opens what was granted, for reading; closes its fd, and reports the lease as mapped.
    /// Children lease it anew in this way.
    pub fn open(grant: Grant, devices: &Devices, way: impl FnOnce() -> Way) -> Result<Self, Error> {
        let (opened, device) = match devices.choose(&grant.info.facts)? {
            Some(device) => {
                let memory = device.open(&grant)?;
                let Grant { fd, lease, info } = grant;
                let import = Imported::of_grant(memory, fd, lease, info);
                (Opened::Device(import), Some(device.ordinal()))
            }
            None => (Opened::Host(grant.import_by(Access::Read, 0, |_| Some(way()))?), None),
        };
        Ok(Shared { opened, device, process: Process::current() })
    }

    /// Where an object of it is, if it is inside.
    pub fn place(&self, version: u64, offset: u64, size_bytes: u64) -> Result<Placed, Error> {
        let end = offset.checked_add(size_bytes);
        if end.is_none_or(|end| end > self.info().facts.size_bytes) {
            let context = format!("get: {size_bytes} bytes at {offset} are not in their group");
            return Err(Error::new(ErrorCode::Protocol, context));
        }
        let inside = |bytes| usize::try_from(bytes).expect("inside memory that is open here");
        Ok(Placed { version, offset: inside(offset), len: inside(size_bytes) })
    }

    pub fn opened(&self) -> &Opened {
        &self.opened
    }

    pub fn device(&self) -> Option<u32> {
        self.device
    }

    pub fn lease(&self) -> &Lease {
        match &self.opened {
            Opened::Host(import) => import.lease(),
            Opened::Device(import) => import.lease(),
        }
    }

    pub fn info(&self) -> &AllocationInfo {
        match &self.opened {
            Opened::Host(import) => import.info(),
            Opened::Device(import) => import.info(),
        }
    }

    pub fn check_process(&self) -> Result<(), Error> {
        if self.process.is_current() {
            Ok(())
        } else {
            Err(Error::forked("use memory imported before"))
        }
    }

    /// All of it, also in a child.
    pub fn sealed_bytes(&self) -> Option<&[u8]> {
        match &self.opened {
            // SAFETY: mapped as long as `self` lives, in children, too; the kernel lets nobody
            // write or shrink the file any more, and reads of pages that were never written give
            // zeros.
            Opened::Host(import) if import.is_final() => Some(unsafe { import.as_slice() }),
            _ => None,
        }
    }

    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), Error> {
        match &self.opened {
            Opened::Host(import) => import.read_at(offset, into),
            Opened::Device(import) => import.memory.read_at(offset, into),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deposit::Deposit;

    fn new(size_bytes: u64) -> NewObject<'static> {
        NewObject::new("name", size_bytes)
    }

    #[test]
    fn layout_when_objects_are_small_then_each_begins_at_a_line_and_the_memory_is_whole_pages() {
        let layout = Layout::of(&[new(0), new(1), new(65), new(3)], &Place::Host, 0).unwrap();
        assert_eq!(layout.members, [0..0, 0..1, 64..129, 192..195]);
        assert_eq!(layout.size_bytes, page_size() as u64);
        assert!(Layout::of(&[], &Place::Host, 0).unwrap().size_bytes > 0);
    }

    #[test]
    fn plan_when_the_room_is_used_up_then_bad_handle_and_nothing_is_taken() {
        let mut layout = Layout::of(&[new(64)], &Place::Host, 0).unwrap();
        let room = layout.size_bytes - 64;
        let error = layout.plan(&[new(room), new(1)]).unwrap_err();
        assert_eq!(error.code, ErrorCode::BadHandle);
        let placed = layout.plan(&[new(room)]).unwrap();
        layout.take(placed);
        assert_eq!(layout.members.len(), 2);
        assert!(layout.plan(&[new(1)]).is_err());
    }

    #[test]
    fn layout_when_sizes_overflow_then_bad_handle() {
        for objects in [vec![new(u64::MAX)], vec![new(u64::MAX - 64), new(65)]] {
            let error = Layout::of(&objects, &Place::Host, 0).unwrap_err();
            assert_eq!(error.code, ErrorCode::BadHandle);
        }
        assert!(Layout::of(&[new(1)], &Place::Host, u64::MAX).is_err());
    }

    #[test]
    fn layout_when_offsets_are_given_then_they_stand_and_stay_inside_foreign_memory() {
        let deposit = Deposit::new(MemoryKind::DmaBuf, 4096);
        let fd = object_file::allocated(4096).unwrap();
        let place = Place::Fd(fd.polled(), &deposit);
        let at = |offset, size_bytes| NewObject { offset: Some(offset), ..new(size_bytes) };
        let layout = Layout::of(&[at(100, 10), new(6)], &place, 0).unwrap();
        assert_eq!(layout.members, [100..110, 128..134]);
        assert_eq!(layout.size_bytes, 4096);
        assert!(Layout::of(&[at(4090, 10)], &place, 0).is_err());
    }
}
