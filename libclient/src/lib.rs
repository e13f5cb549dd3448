//! fdbroker's library for ranks: share memory between the processes of a node without holding its
//! fds. It uses no signal, ptrace or prctl, leaves no fd unowned, and no call waits without a
//! deadline.
//!
//! A producer registers an allocation and gets a 64-byte [`Handle`], which it passes on by value as
//! it likes. A consumer acquires the handle and gets a [`Grant`]: a duplicate fd and a [`Lease`].
//! It imports the memory, the fd is closed at once, and the lease says that this process uses it
//! until the [`Import`] is dropped.
//!
//! ```no_run
//! use fdbroker_client::{Access, Arena, Client, Deadline, HostMemory};
//!
//! # fn main() -> Result<(), fdbroker_client::Error> {
//! let client = Client::connect()?;
//!
//! // The producer: an arena, a buffer, its handle.
//! let arena = Arena::new(&client, HostMemory::Memfd, 1 << 20)?;
//! let buffer = arena.alloc(4096)?;
//! buffer.write_at(0, b"hello")?;
//! let handle = buffer.register(Deadline::from_ms(1000))?;
//!
//! // A consumer, in another process of this node:
//! let import = client.acquire(&handle, Deadline::from_ms(1000))?.import(Access::Read, 0)?;
//! let mut bytes = [0; 5];
//! import.read_at(0, &mut bytes)?;
//! assert!(import.is_current());
//! # Ok(())
//! # }
//! ```
//!
//! **Importing again and again.** An [`ImportCache`] keeps memory mapped between uses, closes what
//! has not been used for long, and never hands out what has ended: [`ImportCache::import`] instead
//! of the two calls above, one cache for all threads of a process.
//!
//! **Threads.** A [`Client`] is shared by all threads, clones included. One library thread per
//! client serves recalls and tells [`Notice`]s; callbacks run on it and must not block: a blocking
//! call there answers NOT_SUPPORTED. It has all signals blocked. In dispatch mode
//! ([`ClientBuilder::dispatch`]) there is no such thread: the application polls
//! [`Client::event_fd`] and calls [`Client::dispatch`], and calls that wait serve meanwhile.
//!
//! **Progress engines** that must not block start a [`Request`] and test it:
//! [`Client::acquire_start`], [`ImportCache::import_start`], [`Exports::register_start`],
//! [`Objects::get_start`], [`Objects::put_start`], [`Objects::create_start`],
//! [`Group::seal_start`].
//!
//! **Fork.** In the child everything answers NOT_CONNECTED, and drops say nothing to the broker and
//! unmap nothing. Connect anew. Memory that was opened for reading and that nobody can change any
//! more (sealed against writing and shrinking, as all objects of host memory are) is there and
//! reads right. A touch of another import is a SIGSEGV, and no other memory ever takes its
//! addresses; arenas and isolated buffers stay mapped, and their bytes are undefined once the
//! parent has freed them. So for children of `_Fork` and clone(2), too, from their first call of
//! this library on: until then they see the memory of imports as it is. What an [`ImportOpener`]
//! opens is left to it. A child that shares its parent's memory (vfork(2), CLONE_VM) may only exec.
//!
//! **Signals.** A wait goes on after a signal handler of the program, unless the program has said
//! how to ask it ([`set_interrupt`]).
//!
//! **Features**, both on by default: `cuda` and `level-zero`, the memory of these drivers' devices.
//! Without them (`default-features = false`) neither bindings nor what loads them are compiled, the
//! modules of those names, the places of objects and `Objects::with_cuda` or `with_level_zero` are
//! not there, and memory of CUDA is NOT_SUPPORTED; dma-bufs can still be mapped.
//!
//! **Without a broker** every call answers NOT_CONNECTED at once; the library looks for it in the
//! background.
#![deny(clippy::cast_possible_truncation, clippy::cast_sign_loss, missing_debug_implementations)]

mod api;
pub mod backend;
mod books;
mod cache;
mod deadline;
mod deposit;
mod env;
mod error;
mod exports;
mod fork;
mod inherited;
mod interrupt;
#[doc(hidden)]
pub mod layer;
mod limits;
mod map;
mod notice;
mod objects;
pub mod own_fds;
mod requests;
mod reserved;
mod serve;
mod start;
mod sync;
mod wire;
mod zones;

pub use api::builder::ClientBuilder;
pub use api::client::Client;
pub use backend::arena::{Arena, HostBuffer};
pub use backend::host::HostMemory;
pub use backend::isolated::{IsolatedBuffer, IsolatedMemory};
pub use books::due::Due;
pub use books::grant::Grant;
pub use books::import::Import;
pub use books::lease::Lease;
pub use books::wake::{Bell, Wake};
pub use cache::{
    CacheSettings, CacheStats, CachedImport, ImportCache, ImportMode, ImportOpener, ImportProgress,
    ImportRequest, Imports, Opened, Pin,
};
pub use deadline::Deadline;
pub use deposit::{AllocationInfo, Deposit, Drained, DriverData, Registration, RegistrationRef};
pub use error::Error;
pub use exports::{Exports, RegisterProgress, RegisterRequest};
pub use fdbroker_protocol::object::{ObjectEvent, ObjectState};
pub use fdbroker_protocol::{
    AllocationId, ErrorCode, Facts, Gpu, Handle, HandlePrefix, MemoryKind, Share, Status, VirtualFd,
};
pub use interrupt::{clear_interrupt, set_interrupt, take_interrupt};
pub use map::Access;
pub use notice::{Notice, Recall, RecallAnswer};
pub use objects::{
    CreateRequest, GetProgress, GetRequest, Group, MakersWork, NewObject, Object, ObjectInfo,
    ObjectList, ObjectOptions, Objects, Place, PutObject, PutRequest, SealError, SealRequest,
    Touch, Watch, WatchEvent,
};
pub use requests::acquiring::{AcquireProgress, AcquireRequest};
pub use requests::early::EarlyRegistration;
pub use requests::started::{Progress, Request};
pub use wire::handshake::default_socket_path;

#[cfg(feature = "cuda")]
pub use backend::cuda;
#[cfg(feature = "level-zero")]
pub use backend::level_zero;

/// The host's memory under one roof: [`host::Arena`], [`host::HostBuffer`], [`host::HostMemory`];
/// [`host::IsolatedBuffer`], [`host::IsolatedMemory`].
pub mod host {
    pub use crate::backend::arena::{Arena, HostBuffer};
    pub use crate::backend::host::HostMemory;
    pub use crate::backend::isolated::{IsolatedBuffer, IsolatedMemory};
}

/// Programs share these between threads, or move them: a change that takes it away breaks them.
const fn of_many_threads<T: Send + Sync>() {}
const _: () = of_many_threads::<Client>();
const _: () = of_many_threads::<Grant>();
const _: () = of_many_threads::<Lease>();
const _: () = of_many_threads::<Import>();
const _: () = of_many_threads::<ImportCache>();
const _: () = of_many_threads::<Exports>();
const _: () = of_many_threads::<Object>();
/// The requests: started on one thread, and tested on any.
const fn of_any_thread<T: Send>() {}
const _: () = of_any_thread::<AcquireProgress>();
const _: () = of_any_thread::<GetProgress>();
const _: () = of_any_thread::<ImportProgress<'_>>();
const _: () = of_any_thread::<RegisterProgress>();
const _: () = of_any_thread::<Progress<'_, Result<Group, SealError>>>();
