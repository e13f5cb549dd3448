//! Handing a running broker's clients over to its successor, which goes on with the same
//! connections: they notice nothing. The state travels as a sealed memfd (`ledger`), the fds in the
//! queues of sockets (`carriers`); both go to the service manager's store, or to a successor that
//! asks (`takeover`). Must never half do it: either the successor has everything, or this broker
//! goes on (or ends as without a successor), and says so.

pub(crate) mod arrived;
pub(crate) mod carriers;
pub(crate) mod ledger;
pub(crate) mod packing;
pub(crate) mod state;
pub(crate) mod store;
pub(crate) mod takeover;

pub use takeover::TakeoverError;

/// Why a state is not handed over; this broker still has everything.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    /// The state cannot be written.
    #[error("the state cannot be written: {0}")]
    Write(std::io::Error),
    /// Fds that cannot be sent.
    #[error(
        "{left} fds cannot be sent: too many of this uid are in flight; wait until clients have read theirs, or raise the hard RLIMIT_NOFILE"
    )]
    InFlight {
        /// Fds that are not sent yet.
        left: usize,
    },
    /// An fd of a held allocation that the kernel does not send.
    #[error("the fd of slot {slot} cannot be sent ({error})")]
    Held {
        /// Of the allocation.
        slot: u32,
        /// What sendmsg(2) says.
        error: fdbroker_scm::SendError,
    },
    /// A request was parked again and again.
    #[error("{0} requests cannot be settled")]
    Parked(u64),
    /// The service manager does not take it.
    #[error(transparent)]
    Store(#[from] crate::manager::notify::StoreError),
    /// It takes it, but does not say so.
    #[error("the service manager does not answer in time")]
    Unheard,
}

/// Why a state is not gone on with. Its fds are closed, and a broker starts without it as after a
/// crash.
#[derive(Debug, thiserror::Error)]
pub enum RefusedState {
    /// It cannot be read.
    #[error("it cannot be read: {0}")]
    Read(std::io::Error),
    /// It is no state.
    #[error("it is no state of a broker")]
    NoState,
    /// Of another format.
    #[error("it has format {found}, and this program reads {known}")]
    Version {
        /// Its format.
        found: u32,
        /// Ours.
        known: u32,
    },
    /// It has been changed since it was written.
    #[error("it is damaged: its checksum is wrong")]
    Checksum,
    /// It contradicts itself.
    #[error("it is damaged: {0}")]
    Broken(String),
    /// Some fds have not come.
    #[error("{found} of its {wanted} fds have come")]
    Fds {
        /// How many came.
        found: usize,
        /// How many belong to it.
        wanted: usize,
    },
    /// The table has no room for its fds.
    #[error(
        "its {wanted} fds do not fit into the fd table; allow more, by LimitNOFILE= or `ulimit -Hn`"
    )]
    TableFull {
        /// How many there are.
        wanted: usize,
    },
    /// Fewer clients are allowed now.
    #[error("its {found} clients are more than the {most} allowed; raise limits.max_clients")]
    Clients {
        /// How many it has.
        found: usize,
        /// How many there may be.
        most: usize,
    },
    /// Another boot or another directory.
    #[error("it is of another node, boot or directory")]
    Elsewhere,
    /// The listeners it counts on are not served any more.
    #[error("its clients came by {path}, which is no listener any more")]
    Listener {
        /// Where they came from.
        path: std::path::PathBuf,
    },
    /// The core refuses it.
    #[error("{0}")]
    Core(fdbroker_core::RestoreError),
    /// Something of the system is missing.
    #[error("cannot {what}: {source}")]
    Os {
        /// What was attempted.
        what: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
}
