//! Samples of the broker, taken by a thread: a broker that hangs must not delay keys and signals.
//! Must never read without a bound, nor ask the broker unless told to.

use crate::admin::{Admin, Selection, viewing};
use crate::error::{Error, Result};
use crate::mailbox::{self, Inbox};
use crate::records::StatusView;
use fdbroker_protocol::admin::{ClientRecord, LeaseRecord};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

/// Most clients of a sample, apart from the rest of a page: more than the ranks of a node, in a
/// dozen pages.
pub const CLIENTS_READ: usize = 4096;
/// Most leases of a sample, apart from the rest of a page: some twenty pages, a fraction of a
/// millisecond each.
pub const LEASES_READ: usize = 8192;

/// The state of the broker at one moment.
#[derive(Clone, Debug)]
pub struct Sample {
    pub at: Instant,
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

/// The thread that takes samples.
pub struct Sampler {
    requests: Sender<()>,
    samples: Inbox<Result<Sample>>,
}

impl Sampler {
    /// Starts the thread with a connection; it connects again when the connection is lost.
    pub fn start(admin: Admin) -> Result<Self> {
        let (requests, asked) = channel();
        let samples = mailbox::start("sampler", 1, move |outbox| {
            let mut admin = Some(admin);
            while asked.recv().is_ok() && outbox.send(again(&mut admin)).is_ok() {}
        })?;
        Ok(Sampler { requests, samples })
    }

    /// Asks for one sample. If the thread has ended, [`Sampler::take`] gives the error.
    pub fn ask(&self) {
        let _ = self.requests.send(());
    }

    /// The answer to the last question, if it has arrived. An error: the thread has ended.
    pub fn take(&self) -> Result<Option<Result<Sample>>> {
        Ok(self.samples.take()?.pop())
    }
}

impl AsFd for Sampler {
    /// Readable when an answer has arrived.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.samples.as_fd()
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
    let mut admin = viewing::connect_again()?;
    let sample = Sample::take(&mut admin)?;
    *connection = Some(admin);
    Ok(sample)
}
