//! A group in the making: memory that this process alone can write, and the names that are to lead
//! to it. Must never leave a group behind: one that is not sealed is given up, at its drop at the
//! latest.

use super::memory::{GroupMemory, Layout};
use super::options::{NewObject, ObjectOptions, Place, PutObject, Whose};
use super::wire::{self, Items, Made, Making};
use crate::backend::{MakersWork, closed_here};
use crate::books::one_way::OneWay;
use crate::deadline::Deadline;
use crate::deposit::Export;
use crate::error::Error;
use crate::map::check_range;
use crate::own_fds::OwnFd;
use crate::wire::connection::Connection;
use fdbroker_protocol::ErrorCode;
use fdbroker_protocol::object::ObjectCreateHead;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Up to 253 objects in the making; see [`crate::Objects::create`]. Dropping it gives it up, as
/// [`Group::abort`] does.
///
/// A host group keeps one fd open in this process until it is sealed. When the connection to the
/// broker is lost the group is, too: everything then answers NOT_CONNECTED, or ABORTED once there
/// is a broker again, and the memory stays writable here until the drop.
#[derive(Debug)]
#[must_use = "dropping a group gives it up"]
pub struct Group {
    whose: Whose,
    connection: Arc<Connection>,
    number: u64,
    ends_with_broker: bool,
    layout: Layout,
    memory: GroupMemory,
    expecting: wire::Expecting,
    /// Nothing is to be given up any more.
    is_over: bool,
}

/// Why a group is not sealed.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct SealError {
    /// Why it is not sealed; see [`Group::seal`].
    #[source]
    pub error: Error,
    /// The group, when it can be sealed again: after SEALED_BUSY it is as before; after EXISTS,
    /// VERSION and NO_QUOTA its host memory cannot be written any more.
    pub group: Option<Box<Group>>,
}

impl From<SealError> for Error {
    fn from(failure: SealError) -> Self {
        failure.error
    }
}

impl Group {
    pub(super) fn create(
        whose: &Whose,
        members: &[NewObject<'_>],
        place: Place<'_>,
        options: ObjectOptions,
        deadline: Deadline,
    ) -> Result<Self, Error> {
        let connection = whose.client.connection("create", deadline)?;
        let (mut group, head, items) = Self::plan(whose, connection, members, &place, options)?;
        let create = Making::Create(&head, &items);
        let export = group.export(&place)?;
        let created = create.ask(&group.connection, Some(export.as_fd()), deadline)?;
        drop(export);
        group.add_rest(created, &items, create.end(), deadline)?;
        Ok(group)
    }

    pub(super) fn put(
        whose: &Whose,
        objects: &[PutObject<'_>],
        options: ObjectOptions,
        deadline: Deadline,
    ) -> Result<u64, Error> {
        let connection = whose.client.connection("put", deadline)?;
        let (mut group, head, items, fd) = Self::written(whose, connection, objects, options)?;
        let create = Making::Create(&head, &items);
        let file = fd.proved().ok_or_else(closed_here)?;
        let created = create.ask(&group.connection, Some(file), deadline)?;
        drop(fd);
        group.add_rest(created, &items, create.end(), deadline)?;
        Box::new(group).ask_to_seal(deadline).map_err(Error::from)
    }

    /// A group of which the broker knows nothing yet, and what it is to be told.
    pub(super) fn plan(
        whose: &Whose,
        connection: Arc<Connection>,
        members: &[NewObject<'_>],
        place: &Place<'_>,
        options: ObjectOptions,
    ) -> Result<(Self, ObjectCreateHead, Items), Error> {
        whose.check_lasting("create", options.outlives_maker())?;
        let mut layout = Layout::of(members, place, options.room_bytes)?;
        let items = Items::of(members, &layout.members)?;
        let memory = GroupMemory::new(&whose.client, place, &mut layout)?;
        let head = memory.head(whose.flags(), options, place, layout.size_bytes);
        Ok((Self::of(whose, connection, members, options, layout, memory), head, items))
    }

    /// The same of a host group of these bytes, with the fd of its memory, which is sealed.
    pub(super) fn written(
        whose: &Whose,
        connection: Arc<Connection>,
        objects: &[PutObject<'_>],
        options: ObjectOptions,
    ) -> Result<(Self, ObjectCreateHead, Items, OwnFd), Error> {
        whose.check_lasting("put", options.outlives_maker())?;
        let members: Vec<NewObject<'_>> = objects.iter().map(NewObject::from).collect();
        let layout = Layout::of(&members, &Place::Host, 0)?;
        let items = Items::of(&members, &layout.members)?;
        let (memory, fd) = GroupMemory::written(&layout, objects)?;
        let head = memory.head(whose.flags(), options, &Place::Host, layout.size_bytes);
        Ok((Self::of(whose, connection, &members, options, layout, memory), head, items, fd))
    }

    fn of(
        whose: &Whose,
        connection: Arc<Connection>,
        members: &[NewObject<'_>],
        options: ObjectOptions,
        layout: Layout,
        memory: GroupMemory,
    ) -> Self {
        let ends_with_broker = options.outlives_maker();
        let mut expecting = wire::Expecting::default();
        expecting.add(members);
        let (whose, number, is_over) = (whose.clone(), 0, true);
        Group { whose, connection, number, ends_with_broker, layout, memory, expecting, is_over }
    }

    /// Adds the items from this one on, which did not go with the create.
    fn add_rest(
        &mut self,
        created: Made,
        items: &Items,
        begin: usize,
        deadline: Deadline,
    ) -> Result<(), Error> {
        self.begun(created);
        wire::add(&self.connection, self.number, items, begin, deadline)
    }

    /// The broker knows of it. From here on its drop gives it up.
    pub(super) fn begun(&mut self, created: Made) {
        (self.number, self.is_over) = (created.number, false);
        self.ends_with_broker &= created.kept_ends_with_broker;
    }

    pub(super) fn export<'a>(&'a self, place: &Place<'a>) -> Result<Export<'a>, Error> {
        self.memory.export(place)
    }

    pub(super) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// The broker's number of it, as in [`crate::ObjectInfo::group`].
    pub fn number(&self) -> u64 {
        self.number
    }

    /// It was asked to outlive its maker, and ends with the broker all the same: a private broker,
    /// or one whose service manager stores no fds. [`crate::ObjectInfo::ends_with_broker`] says it
    /// later, too.
    pub fn ends_with_broker(&self) -> bool {
        self.ends_with_broker
    }

    /// Objects that it has.
    pub fn len(&self) -> usize {
        self.layout.members.len()
    }

    /// Whether it has no objects.
    pub fn is_empty(&self) -> bool {
        self.layout.members.is_empty()
    }

    /// Adds objects, all of them or none, in the room that was asked for; their indices.
    ///
    /// # Errors
    /// As [`crate::Objects::create`]. BAD_HANDLE: the room is too small. TOO_LONG: above 253.
    pub fn add(
        &mut self,
        objects: &[NewObject<'_>],
        deadline: Deadline,
    ) -> Result<Range<usize>, Error> {
        self.whose.client.check_may_wait("add")?;
        self.check_connection("add")?;
        let placed = self.layout.plan(objects)?;
        let items = wire::Items::of(objects, &placed)?;
        wire::add_all(&self.connection, self.number, &items, deadline)?;
        let begin = self.layout.members.len();
        self.layout.take(placed);
        self.expecting.add(objects);
        Ok(begin..self.layout.members.len())
    }

    /// The bytes of an object, all 0 at first: host memory alone.
    ///
    /// # Errors
    /// BAD_HANDLE: no such object. NOT_SUPPORTED: GPU or foreign memory. SEALED: a seal has failed
    /// after the memory was sealed. NOT_CONNECTED: in a child of fork(2).
    pub fn bytes_mut(&mut self, index: usize) -> Result<&mut [u8], Error> {
        let range = self.member(index)?;
        self.memory.bytes_mut(range)
    }

    /// Copies `bytes` into an object at `offset`, of whatever memory but foreign.
    ///
    /// # Errors
    /// As [`Group::bytes_mut`]. BAD_HANDLE: out of bounds. INTERNAL: the driver's words.
    pub fn write_at(&mut self, index: usize, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        let range = self.member(index)?;
        check_range(offset, bytes.len(), range.len())?;
        self.memory.write_at(range.start + offset, bytes)
    }

    /// First byte of an object, a device address: GPU memory alone. Good until the seal.
    ///
    /// # Errors
    /// BAD_HANDLE: no such object. NOT_SUPPORTED: it is no memory of a device.
    pub fn device_ptr(&self, index: usize) -> Result<u64, Error> {
        let range = self.member(index)?;
        Ok(self.memory.device_ptr()? + range.start as u64)
    }

    fn member(&self, index: usize) -> Result<Range<usize>, Error> {
        let range = self.layout.members.get(index).ok_or_else(|| {
            let context = format!("object {index} of a group of {}", self.layout.members.len());
            Error::new(ErrorCode::BadHandle, context)
                .because("count objects from 0, in their order")
        })?;
        let inside = |bytes| usize::try_from(bytes).expect("inside memory of this process");
        Ok(inside(range.start)..inside(range.end))
    }

    /// From one moment on all names lead to these objects, with one version: that is answered.
    /// Nobody can write them any more: host memory is unmapped here and sealed, of GPU memory the
    /// mapping here is dropped, after all work of the device's context is done (Level Zero: what
    /// was not given to [`Group::seal_after`] must be done).
    ///
    /// # Errors
    /// SEALED_BUSY: the memory is mapped by something else, in this process or a child, or used by
    /// a device. EXISTS, VERSION: of a name. NO_QUOTA (with the cap). These leave the group to be
    /// sealed again: [`SealError::group`]. ABORTED, NOT_CONNECTED: the broker that had it is gone.
    /// TIMED_OUT: it may be sealed all the same.
    pub fn seal(self, deadline: Deadline) -> Result<u64, SealError> {
        self.seal_when_done(None, deadline)
    }

    /// The same, waiting for this work alone.
    ///
    /// # Safety
    /// The handle in `work` is one of the driver of this group's device, and lives until this
    /// returns.
    ///
    /// # Errors
    /// As [`Group::seal`]; NOT_SUPPORTED: host memory, or the driver has no such wait.
    pub unsafe fn seal_after(self, work: MakersWork, deadline: Deadline) -> Result<u64, SealError> {
        self.seal_when_done(Some(work), deadline)
    }

    fn seal_when_done(
        self,
        work: Option<MakersWork>,
        deadline: Deadline,
    ) -> Result<u64, SealError> {
        if let Err(error) = self.whose.client.check_may_wait("seal") {
            return Err(SealError { error, group: None });
        }
        Box::new(self.seal_memory(work)?).ask_to_seal(deadline)
    }

    fn ask_to_seal(self: Box<Self>, deadline: Deadline) -> Result<u64, SealError> {
        let made = Making::Seal(self.number).ask(&self.connection, None, deadline);
        self.sealed(made.map(|it| it.number))
    }

    /// Seals its memory, which the broker does not hear of.
    pub(super) fn seal_memory(mut self, work: Option<MakersWork>) -> Result<Self, SealError> {
        if let Err(error) = self.check_connection("seal") {
            return Err(SealError { error, group: None });
        }
        match self.memory.settle(work).and_then(|()| self.memory.seal()) {
            Ok(()) => Ok(self),
            Err(error) => Err(SealError { error, group: Some(Box::new(self)) }),
        }
    }

    /// What the broker has answered to the seal: the version.
    pub(super) fn sealed(mut self: Box<Self>, made: Result<u64, Error>) -> Result<u64, SealError> {
        match made {
            Ok(version) => {
                self.is_over = true;
                Ok(version)
            }
            Err(error) => {
                use ErrorCode::{Aborted, NotConnected, Protocol, Sealed, TimedOut};
                let is_lost =
                    matches!(error.code, Aborted | NotConnected | Protocol | Sealed | TimedOut);
                let error = self.named(error);
                let group = (!is_lost).then_some(self);
                Err(SealError { error, group })
            }
        }
    }

    /// Gives it up: nobody ever sees its objects, and nothing of it is charged any more. By one
    /// message without an answer.
    pub fn abort(self) {}

    /// Its connection is the one of the moment.
    fn check_connection(&self, what: &str) -> Result<(), Error> {
        let now = self.whose.client.usable(what)?;
        if Arc::ptr_eq(&now, &self.connection) {
            Ok(())
        } else {
            Err(Error::new(ErrorCode::Aborted, what))
        }
    }

    fn named(&self, error: Error) -> Error {
        // It was lost meanwhile: the group ended with it.
        match self.check_connection("seal") {
            Err(lost) if error.code == ErrorCode::NotConnected => lost,
            _ => self.expecting.named(error),
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A connection that was lost takes nothing, nor does a child of fork(2).
        if !self.is_over {
            self.connection.post(OneWay::Abort(self.number));
        }
    }
}
