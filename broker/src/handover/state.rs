//! What a successor needs to know, as plain data; fds are numbers of what travels in the carriers.
//! Must never hold what means something to one process alone. Any change here is another
//! [`FORMAT`](super::ledger::FORMAT).

use crate::clients::connection::{Blocked, Phase};
use crate::clients::debts::SavedDebts;
use crate::clients::metrics::Metrics;
use crate::fds::files::Files;
use crate::fds::tombstones::SavedTombstones;
use crate::journal::SavedJournal;
use crate::kernel::Start;
use crate::past::SavedPast;
use fdbroker_core::{DomainKey, Saved};
use fdbroker_protocol::limits::NAME_BYTES;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Number of an fd in the carriers.
pub(crate) type Fd = u32;

/// See the module.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct State {
    /// `None`: taken already.
    pub core: Option<Saved>,
    /// Of the node and boot.
    pub node: u64,
    /// The generation page, for reading.
    pub page: Fd,
    /// Of the generation page.
    pub incarnation: u64,
    pub page_slots: u32,
    /// When the first of these brokers started, CLOCK_MONOTONIC.
    pub started_us: u64,
    pub next_serial: u64,
    /// Since then, as the core's counters are.
    pub metrics: Metrics,
    /// Of the directory, when the one before still has it.
    pub lock: Option<Fd>,
    pub until_eof: Option<Fd>,
    /// The administrators' listener, and those of users that look.
    pub administration: Vec<SavedListener>,
    /// As they were listed.
    pub listeners: Vec<SavedListener>,
    pub connections: Vec<SavedConnection>,
    /// Connections whose hello or join has not been read, by deadline.
    pub callers: Vec<SavedCaller>,
    /// Times of connections for their hello and their event socket, in order.
    pub handshakes: Vec<SavedHandshake>,
    /// Slots with an fd, or with a kind that a supply must have.
    pub slots: Vec<SavedSlot>,
    /// For audit.
    pub tombstones: SavedTombstones,
    /// For administrators who ask afterwards.
    pub past: SavedPast,
    pub journal: SavedJournal,
    pub debts: SavedDebts,
    /// Fds in the carriers.
    pub fds: u32,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct SavedListener {
    pub path: PathBuf,
    /// Device and inode of the path; `None`: it is not this broker's to remove.
    pub identity: Option<(u64, u64)>,
    /// `None`: the service manager has it.
    pub socket: Option<Fd>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SavedConnection {
    pub index: u32,
    pub serial: u64,
    pub domain: DomainKey,
    pub pid: u32,
    pub start: Start,
    pub name: [u8; NAME_BYTES],
    pub phase: Phase,
    pub socket: Option<Fd>,
    pub lingering: Option<Fd>,
    pub event: Option<Fd>,
    pub secret: u64,
    pub ahead: Option<Fd>,
    pub pidfd: Option<Fd>,
    pub is_forgotten: bool,
    pub is_bad_input_logged: bool,
    pub unread_messages: u32,
    pub unread_fds: u64,
    pub blocked: Option<Blocked>,
    /// Replies that its socket has not taken yet.
    pub pending: Vec<Vec<u8>>,
    pub pending_event: Option<Vec<u8>>,
    pub hello_reply: Option<SavedHelloReply>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SavedHelloReply {
    pub request: u64,
    pub deposit_credits: u32,
}

/// A connection whose first message has not been read.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SavedCaller {
    pub domain: DomainKey,
    pub pid: u32,
    pub until_us: u64,
    pub socket: Fd,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SavedHandshake {
    pub client: u32,
    pub serial: u64,
    pub until_us: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SavedSlot {
    pub slot: u32,
    /// A memory kind's number.
    pub kind: u8,
    pub fd: Option<Fd>,
    pub files: Files,
}

#[cfg(test)]
#[path = "../../tests/unit/saved_state.rs"]
mod tests;
