//! This process's connection to the broker. Must never take what a parent has for this process's
//! own.

use crate::asked;
use crate::memory;
use crate::result::{CuResult, OUT_OF_MEMORY};
use crate::say::{News, once};
use fdbroker_client::{Client, Error, ErrorCode, Handle, Recall, RecallAnswer};
use fdbroker_layer::{Connected, Connection, Fetched, State, is_absent, patiently};
use fdbroker_virtual_fds::VirtualFd;
use nix::errno::Errno;

static CONNECTION: Connection<Cuda> = Connection::new();

/// What the records of [`memory`] do not have of a connection: nothing. They begin before the first
/// one is made.
#[derive(Default)]
pub struct Cuda;

impl State for Cuda {
    fn connection() -> &'static Connection<Self> {
        &CONNECTION
    }

    fn recall(&self, recall: &Recall) -> Result<RecallAnswer, ErrorCode> {
        memory::recall(recall)
    }

    fn end(&self) {
        // The end of the client waits for a recall under way.
        memory::end();
    }

    fn close(connected: &Connected<Self>, fd: VirtualFd) -> Result<(), Errno> {
        if !memory::close(&connected.client, fd) {
            return Err(Errno::EBADF);
        }
        connected.note_end();
        Ok(())
    }

    fn numbers(_: &Connected<Self>) -> Vec<VirtualFd> {
        memory::records().numbers()
    }

    fn say_absent(is_lost: bool, error: &Error) {
        let (news, what) = if is_lost {
            (News::BrokerLost, "the broker is gone")
        } else if is_absent(error) {
            (News::NoBroker, "no broker")
        } else {
            (News::NoBroker, "the broker cannot be used")
        };
        let own = if asked::is_malloc() { " and memory of cuMemAlloc" } else { "" };
        once(news, format_args!("{what}, exported fds{own} are the driver's own: {error}"));
    }

    fn say_waiting(error: &Error) {
        once(News::Waiting, format_args!("waits for the fd of shared memory: {error}"));
    }
}

/// Tells the crate of virtual fds where fds come from.
pub fn install() {
    fdbroker_virtual_fds::install(&CONNECTION);
}

/// The client of the connection that this process made before.
pub fn known() -> Option<&'static Client> {
    CONNECTION.known().map(|connected| &connected.client)
}

/// The client of the connection: made now if there is none, awaited if the broker is away.
pub fn awaited() -> Option<&'static Client> {
    CONNECTION.awaited().map(|connected| &connected.client)
}

/// Registers, also when the broker goes away meanwhile and comes back.
///
/// # Errors
/// Those of `attempt`.
pub fn through_outage<T>(attempt: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    fdbroker_layer::through_outage::<Cuda, T>(attempt)
}

/// Has the driver allocate memory, and again for a moment where it finds none.
pub fn allocate(below: impl Fn() -> CuResult) -> CuResult {
    fdbroker_layer::allocate::<Cuda, _>(|code| code == OUT_OF_MEMORY, below)
}

/// The program uses the driver.
pub fn note_driver() {
    CONNECTION.note_driver();
}

/// Tells the user once that there is no broker, or that it is gone.
pub fn say_absent(error: &Error) {
    CONNECTION.say_absent(error);
}

/// An fd for a handle. Waits for a recall. Of handles in a row the broker sends the fds ahead, for
/// which it is asked by their numbers.
///
/// # Errors
/// Those of [`Client::acquire`].
pub fn acquire(handle: &Handle) -> Result<Fetched, Error> {
    let absent = || Error::new(ErrorCode::NotConnected, "there is no broker");
    let connected = CONNECTION.awaited().ok_or_else(absent)?;
    patiently::<Cuda, _>(|deadline| connected.acquire(handle, handle.virtual_fd(), deadline))
}

/// An fd for a virtual fd. Waits for a recall.
///
/// # Errors
/// Those of [`Source::grant`](fdbroker_virtual_fds::Source::grant).
pub fn fetch(number: VirtualFd) -> Result<Fetched, Errno> {
    CONNECTION.fetch(number)
}
