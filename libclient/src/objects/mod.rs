//! Named objects: memory with a name, sealed, which readers get without a copy and which can
//! outlive its maker. Must never show a byte before its group is sealed, nor close memory while an
//! [`Object`] of it is in use.

mod cached;
mod devices;
mod get;
mod group;
mod info;
mod list;
mod memory;
mod object;
mod options;
mod started;
mod watch;
mod wire;

pub use crate::backend::MakersWork;
pub use get::{GetProgress, GetRequest};
pub use group::{Group, SealError};
pub use info::ObjectInfo;
pub use list::ObjectList;
pub use object::Object;
pub use options::{NewObject, ObjectOptions, Place, PutObject, Touch};
pub use started::{CreateRequest, PutRequest, SealRequest};
pub use watch::{Watch, WatchEvent};

use crate::api::client::Client;
#[cfg(feature = "cuda")]
use crate::backend::cuda;
#[cfg(feature = "level-zero")]
use crate::backend::level_zero;
use crate::deadline::Deadline;
use crate::error::Error;
use cached::Cached;
use devices::Devices;
use fdbroker_protocol::ErrorCode;
use fdbroker_protocol::limits::MAX_GROUP;
use options::Whose;
use std::sync::Arc;

/// The named objects of this client's domain or job; clones share the cache of
/// [`Objects::get_cached`].
///
/// An object has a name (1 to 255 bytes of UTF-8 without NUL, `/` by habit), a version, metadata
/// (up to 4096 bytes, opaque) and memory. Objects are made in groups of up to 253, which can be had
/// from one moment on: [`Objects::create`], [`Group::seal`]. The group is the unit of memory: one
/// fd and, in a reader, one mapping and one lease. Deleting or replacing an object takes its name;
/// its bytes go with the last name and the last reader of its group.
#[derive(Clone, Debug)]
pub struct Objects {
    whose: Whose,
    cached: Arc<Cached>,
}

impl Client {
    /// The named objects of this client's domain: those of its user, on its listener.
    pub fn objects(&self) -> Objects {
        let whose = Whose { client: self.clone(), of_job: false, devices: Devices::default() };
        Objects { whose, cached: Arc::default() }
    }
}

impl Objects {
    /// The objects of this client's job (its cgroup) instead: two jobs may use the same name. They
    /// end with the job, and can be neither kept nor pinned.
    #[must_use]
    pub fn of_job(&self) -> Objects {
        let whose = Whose { of_job: true, ..self.whose.clone() };
        Objects { whose, cached: Arc::default() }
    }

    /// CUDA objects are opened for this device. Without one they are opened for the device that is
    /// the maker's GPU, whatever its ordinal here.
    #[cfg(feature = "cuda")]
    #[must_use]
    pub fn with_cuda(&self, device: &cuda::Device) -> Objects {
        let cuda = Arc::new(device.clone());
        self.with_devices(Devices { cuda: Some(cuda), ..self.whose.devices.clone() })
    }

    /// Level Zero objects are opened for this device. Without one they are mapped for the CPU, if
    /// their driver allows it.
    #[cfg(feature = "level-zero")]
    #[must_use]
    pub fn with_level_zero(&self, device: &level_zero::Device) -> Objects {
        let level_zero = Arc::new(device.clone());
        self.with_devices(Devices { level_zero: Some(level_zero), ..self.whose.devices.clone() })
    }

    #[cfg(any(feature = "cuda", feature = "level-zero"))]
    fn with_devices(&self, devices: Devices) -> Objects {
        Objects { whose: Whose { devices, ..self.whose.clone() }, cached: Arc::default() }
    }

    /// Begins a group: memory for these objects and for [`ObjectOptions::room_bytes`] more,
    /// writable by this process alone, charged from now on. Others see that the names are in the
    /// making. Dropping the group ends it.
    ///
    /// Host memory is a memfd which this call makes, sizes and allocates, so that this process's
    /// cgroup pays for its pages. What is 64 MiB or more and does not fit into what the machine and
    /// the process's cgroups (v2) have left is not allocated: the system would end other processes.
    ///
    /// # Errors
    /// EXISTS: a name is in use or in the making, without [`ObjectOptions::replace`] or
    /// [`NewObject::expect`]. TOO_LONG: a name, a metadata, or more than 253 objects. BAD_HANDLE: a
    /// name that cannot be, two of one name, or memory that the objects do not fit into. NO_QUOTA
    /// (with the cap). NOT_SUPPORTED: the place is absent here, the broker has no objects, or
    /// objects of a job are to be kept or pinned. INTERNAL: no memory (how much was asked
    /// for, and how much is left). LOCAL_FD_LIMIT, UNSUPPORTED_FD (a foreign fd), TIMED_OUT,
    /// NOT_CONNECTED.
    pub fn create(
        &self,
        objects: &[NewObject<'_>],
        place: Place<'_>,
        options: ObjectOptions,
        deadline: Deadline,
    ) -> Result<Group, Error> {
        Group::create(&self.whose, objects, place, options, deadline)
    }

    /// Starts to begin a group, without waiting for the broker: see [`CreateRequest`]. The memory
    /// is made inside this call. Its fd, or the caller's, is duplicated until the broker has it.
    /// May be called in a callback.
    ///
    /// # Errors
    /// When nothing was started: TOO_LONG, BAD_HANDLE, NOT_SUPPORTED, INTERNAL, LOCAL_FD_LIMIT,
    /// NOT_CONNECTED, as [`Objects::create`]. All else is said by [`crate::Request::test`].
    pub fn create_start(
        &self,
        objects: &[NewObject<'_>],
        place: Place<'_>,
        options: ObjectOptions,
        deadline: Deadline,
    ) -> Result<CreateRequest, Error> {
        started::create(&self.whose, objects, place, options, deadline)
    }

    /// Makes one host object of these bytes, sealed; its version. Memory that is not there is not
    /// allocated, as with [`Objects::create`].
    ///
    /// # Errors
    /// As [`Objects::create`] and [`Group::seal`].
    pub fn put(
        &self,
        name: &str,
        bytes: &[u8],
        options: ObjectOptions,
        deadline: Deadline,
    ) -> Result<u64, Error> {
        self.put_group(&[PutObject::new(name, bytes)], options, deadline)
    }

    /// Makes up to 253 host objects that can be had from one moment on, with one version.
    ///
    /// # Errors
    /// As [`Objects::create`] and [`Group::seal`]. Nothing was made then.
    pub fn put_group(
        &self,
        objects: &[PutObject<'_>],
        options: ObjectOptions,
        deadline: Deadline,
    ) -> Result<u64, Error> {
        Group::put(&self.whose, objects, options, deadline)
    }

    /// Starts to put up to 253 host objects, without waiting for the broker: see [`PutRequest`].
    /// The bytes are copied inside this call. May be called in a callback.
    ///
    /// # Errors
    /// When nothing was started: TOO_LONG, BAD_HANDLE, NOT_SUPPORTED, INTERNAL, LOCAL_FD_LIMIT,
    /// NOT_CONNECTED, as [`Objects::put_group`]. All else is said by [`crate::Request::test`].
    pub fn put_start(
        &self,
        objects: &[PutObject<'_>],
        options: ObjectOptions,
        deadline: Deadline,
    ) -> Result<PutRequest, Error> {
        started::put(&self.whose, objects, options, deadline)
    }

    /// Makes any number, in groups of 253: the version of each, in their order.
    ///
    /// # Errors
    /// As [`Objects::put_group`]; the groups before the one that failed are made.
    pub fn put_many(
        &self,
        objects: &[PutObject<'_>],
        options: ObjectOptions,
        deadline: Deadline,
    ) -> Result<Vec<u64>, Error> {
        let mut versions = Vec::with_capacity(objects.len());
        for group in objects.chunks(MAX_GROUP) {
            let version = self.put_group(group, options, deadline)?;
            versions.resize(versions.len() + group.len(), version);
        }
        Ok(versions)
    }

    /// Gets one object, waiting until it is sealed: mapped for reading, or opened for a device.
    ///
    /// # Errors
    /// NOT_FOUND, NOT_SEALED (with the maker's pid) when the deadline allows no wait; else
    /// TIMED_OUT, which says whether the name is unknown or which process makes it. NO_QUOTA (with
    /// the cap), LOCAL_FD_LIMIT (nothing lost: retry), NOT_SUPPORTED (GPU memory, and no driver),
    /// INTERNAL (no addresses), NOT_CONNECTED; NOT_SUPPORTED in a callback.
    pub fn get(&self, name: &str, deadline: Deadline) -> Result<Object, Error> {
        let objects = self.get_many(&[name], deadline)?;
        objects.into_iter().next().ok_or_else(|| self.wrong_answer("get"))
    }

    /// Gets up to 253 objects of one moment, in the order of the names: never two versions of a
    /// group mixed, and all or none. A name may be there twice.
    ///
    /// # Errors
    /// As [`Objects::get`]. TOO_LONG: the names, or their answer, are more than one message has.
    /// AGAIN: they are in more groups than one answer may have fds (the status says how many).
    pub fn get_many<N: AsRef<str>>(
        &self,
        names: &[N],
        deadline: Deadline,
    ) -> Result<Vec<Object>, Error> {
        get::get(&self.whose, names, deadline)
    }

    /// Starts to get, without waiting for anything: see [`GetRequest`]. May be called in a
    /// callback.
    ///
    /// # Errors
    /// When nothing was started: NOT_CONNECTED, TOO_LONG, BAD_HANDLE. All else is said by
    /// [`crate::Request::test`].
    pub fn get_start<N: AsRef<str>>(
        &self,
        names: &[N],
        deadline: Deadline,
    ) -> Result<GetRequest, Error> {
        get::start(&self.whose, names, deadline)
    }

    /// The same as [`Objects::get`] for objects that are asked for again and again: memory stays
    /// mapped between uses, and an object that still has its name is had without asking the broker,
    /// if it is the only one of its group; else the broker is asked, and memory that is still
    /// mapped is used again. What it keeps is bounded, given back when the broker is short of
    /// leases, and by [`Objects::empty`].
    ///
    /// # Errors
    /// As [`Objects::get`].
    pub fn get_cached(&self, name: &str, deadline: Deadline) -> Result<Object, Error> {
        cached::get(&self.cached, &self.whose, name, deadline)
    }

    /// Gives up what [`Objects::get_cached`] keeps and nobody uses; how many names.
    pub fn empty(&self) -> usize {
        self.cached.empty()
    }

    /// Takes the name from an object. Readers keep the memory; it goes with the last of them and
    /// the last name of its group.
    ///
    /// # Errors
    /// NOT_FOUND. NOT_SEALED: its maker can abort it. VERSION: it has not the version that is asked
    /// for; `None`: any. TIMED_OUT, NOT_CONNECTED.
    pub fn delete(
        &self,
        name: &str,
        version: Option<u64>,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let outcomes = self.delete_many(&[(name, version)], deadline)?;
        outcomes.into_iter().next().unwrap_or_else(|| Err(self.wrong_answer("delete")))
    }

    /// Deletes any number, one outcome each, in their order.
    ///
    /// # Errors
    /// When nothing was tried: NOT_CONNECTED, TOO_LONG, BAD_HANDLE. The outcomes: as
    /// [`Objects::delete`].
    pub fn delete_many(
        &self,
        objects: &[(&str, Option<u64>)],
        deadline: Deadline,
    ) -> Result<Vec<Result<(), Error>>, Error> {
        let connection = self.whose.client.connection("delete", deadline)?;
        wire::delete(&connection, self.whose.flags(), objects, deadline)
    }

    /// What is known of the names that begin so, in the order of their bytes, those in the making
    /// included; page by page, so that names which come or go meanwhile may be in it or not.
    /// Without metadata: [`Objects::stat`] has it.
    ///
    /// The deadline is for all pages. TOO_LONG: the prefix has more than 255 bytes.
    pub fn list(&self, prefix: &str, deadline: Deadline) -> ObjectList {
        ObjectList::new(&self.whose, prefix, deadline)
    }

    /// What is known of a name, with all metadata.
    ///
    /// # Errors
    /// NOT_FOUND, TIMED_OUT, NOT_CONNECTED, TOO_LONG, BAD_HANDLE.
    pub fn stat(&self, name: &str, deadline: Deadline) -> Result<ObjectInfo, Error> {
        let found = self.stat_many(&[name], deadline)?.into_iter().next().flatten();
        found.ok_or_else(|| Error::new(ErrorCode::NotFound, format!("stat {name}")))
    }

    /// What is known of any number of names, in their order; `None`: nothing. Not all of one moment
    /// when they are many.
    ///
    /// # Errors
    /// As [`Objects::stat`].
    pub fn stat_many<N: AsRef<str>>(
        &self,
        names: &[N],
        deadline: Deadline,
    ) -> Result<Vec<Option<ObjectInfo>>, Error> {
        let connection = self.whose.client.connection("stat", deadline)?;
        wire::stat(&connection, self.whose.flags(), names, deadline)
    }

    /// Counts as a use of the groups of these names, and sets what keeps them; one outcome each, in
    /// their order. A new process of the same user takes over kept objects so, by name.
    ///
    /// # Errors
    /// When nothing was tried: NOT_CONNECTED, TOO_LONG, BAD_HANDLE, NOT_SUPPORTED (a job's are to
    /// be kept or pinned). The outcomes: NOT_FOUND, NOT_SEALED, NO_QUOTA (with the cap),
    /// NOT_SUPPORTED (this client has no job), NOT_PERMITTED.
    pub fn touch<N: AsRef<str>>(
        &self,
        names: &[N],
        touch: Touch,
        deadline: Deadline,
    ) -> Result<Vec<Result<(), Error>>, Error> {
        let connection = self.whose.client.connection("touch", deadline)?;
        self.whose.check_lasting("touch", touch.keep.is_some() || touch.pin == Some(true))?;
        wire::touch(&connection, self.whose.flags(), names, touch, deadline)
    }

    /// From now on tells what happens to names that begin so: see [`Watch`].
    ///
    /// # Errors
    /// NO_QUOTA: too many watches. TOO_LONG, TIMED_OUT, NOT_CONNECTED.
    pub fn watch(&self, prefix: &str, deadline: Deadline) -> Result<Watch, Error> {
        Watch::start(&self.whose, prefix, deadline)
    }

    fn wrong_answer(&self, what: &str) -> Error {
        Error::new(ErrorCode::Protocol, format!("{what}: the answer has nothing of the name"))
    }
}
