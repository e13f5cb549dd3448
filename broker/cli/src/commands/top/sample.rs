//! Samples of the broker, taken by a thread: a broker that hangs must not delay keys and signals. Must never read without a
//! bound, nor ask the broker unless told to.

use crate::admin::again;
use crate::admin::{Admin, Selection};
use crate::error::{Context, Error, Result};
use crate::records::StatusView;
use fdbroker_protocol::admin::{ClientRecord, LeaseRecord};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Instant;

/// Most clients of a sample, apart from the rest of a page: more than the ranks of a node, in a dozen pages.
pub const CLIENTS_READ: usize = 4096;
/// Most leases of a sample, apart from the rest of a page: some twenty pages, a fraction of a millisecond each.
pub const LEASES_READ: usize = 8192;

/// The state of the broker at one moment.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Time of the sample.
    pub at: Instant,
    /// Counts and caps.
    pub status: StatusView,
    /// At most [`CLIENTS_READ`] clients and the rest of a page.
    pub clients: Vec<ClientRecord>,
    /// There are more clients.
    pub clients_cut: bool,
    /// At most [`LEASES_READ`] leases and the rest of a page.
    pub leases: Vec<LeaseRecord>,
    /// There are more leases.
    pub leases_cut: bool,
}

impl Sample {
    /// Takes a sample. Its parts are some milliseconds apart.
    pub fn take(admin: &mut Admin) -> Result<Self> {
        let status = StatusView::from(&admin.status()?);
        let (clients, clients_cut) = admin.first(Selection::ALL, CLIENTS_READ)?;
        let (leases, leases_cut) = admin.first(Selection::ALL, LEASES_READ)?;
        Ok(Sample { at: Instant::now(), status, clients, clients_cut, leases, leases_cut })
    }
}

/// The thread that takes samples. It is never joined, since it may wait for a broker that hangs.
pub struct Sampler {
    requests: Sender<()>,
    samples: Receiver<Result<Sample>>,
    came: Arc<EventFd>,
}

impl Sampler {
    /// Starts the thread with a connection; it connects again when the connection is lost.
    pub fn start(admin: Admin) -> Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let came = Arc::new(EventFd::from_flags(flags).context(|| "open an eventfd")?);
        let (requests, asked) = channel();
        let (results, samples) = channel();
        let tell = Arc::clone(&came);
        let work = move || {
            let mut admin = Some(admin);
            while let Ok(()) = asked.recv() {
                if results.send(again(&mut admin)).is_err() || tell.write(1).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("sampler".into());
        thread.spawn(work).context(|| "start a thread")?;
        Ok(Sampler { requests, samples, came })
    }

    /// Asks for one sample.
    pub fn ask(&self) -> Result<()> {
        self.requests.send(()).map_err(|_| ended())
    }

    /// The answer to the last question, if it has arrived.
    pub fn take(&self) -> Result<Option<Result<Sample>>> {
        // Fails if nothing has arrived.
        let _ = self.came.read();
        match self.samples.try_recv() {
            Ok(sample) => Ok(Some(sample)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(ended()),
        }
    }
}

impl AsFd for Sampler {
    /// Readable when an answer has arrived.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.came.as_fd()
    }
}

fn again(connection: &mut Option<Admin>) -> Result<Sample> {
    if let Some(mut admin) = connection.take() {
        match Sample::take(&mut admin) {
            Ok(sample) => {
                *connection = Some(admin);
                return Ok(sample);
            }
            Err(error @ Error::NoAnswer { .. }) => return Err(error),
            // Another broker may have taken over: it is asked at once.
            Err(_) => {}
        }
    }
    let mut admin = again::connect()?;
    let sample = Sample::take(&mut admin)?;
    *connection = Some(admin);
    Ok(sample)
}

fn ended() -> Error {
    Error::Other("the thread that asks the broker has ended; this is a bug of fdbroker".into())
}
