//! What the clients of these worlds do, as owned values that a trace can print.

use super::model::Scope;
use fdbroker_core::limits::OBJECT_RECORD_BYTES;
use fdbroker_core::{GroupId, Inherits};
use fdbroker_protocol::ErrorCode;

/// An object to make.
#[derive(Clone, Debug, PartialEq)]
pub struct New {
    pub name: Vec<u8>,
    pub offset: u64,
    pub size_bytes: u64,
    pub expect: Option<u64>,
    pub metadata: Vec<u8>,
}

impl New {
    /// What its domain is charged with for its name, metadata and record.
    pub fn charged_bytes(&self) -> u64 {
        OBJECT_RECORD_BYTES + (self.name.len() + self.metadata.len()) as u64
    }
}

/// How a group is begun.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct How {
    pub of_job: bool,
    pub replace: bool,
    pub keep_us: Option<u64>,
    pub pin: bool,
    /// What its maker has not said: a time, and whether it is pinned.
    pub inherits: Inherits,
    pub outlives: bool,
    pub evictable: bool,
    pub size_bytes: u64,
}

/// What a touch changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Touch {
    pub of_job: bool,
    pub keep_us: Option<u64>,
    pub pin: Option<bool>,
}

/// One input about objects; or one of those around them.
#[derive(Clone, Debug)]
pub enum Action {
    Connect { client: u32, scope: Scope },
    Create { client: u32, request: u64, how: How, objects: Vec<New> },
    Add { client: u32, request: u64, group: GroupId, objects: Vec<New> },
    Seal { client: u32, request: u64, group: GroupId, checked: Result<(), ErrorCode> },
    Abort { client: u32, request: u64, group: GroupId },
    Get { client: u32, request: u64, of_job: bool, names: Vec<Vec<u8>>, deadline: u64 },
    Delete { client: u32, request: u64, of_job: bool, names: Vec<(Vec<u8>, u64)> },
    Touch { client: u32, request: u64, touch: Touch, names: Vec<Vec<u8>> },
    Watch { client: u32, request: u64, of_job: bool, prefix: Vec<u8>, is_wanted: bool },
    Cancel { client: u32, request: u64 },
    Release { client: u32, lease: u64 },
    Sendable { client: u32, sendable: bool },
    Gone { client: u32 },
    Closed { ticket: u32 },
    Poll,
    Restart,
    Crash,
}
