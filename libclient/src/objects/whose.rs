//! Whose names a program means, and for which devices it opens memory. Must never do IO.

use crate::api::client::Client;
use crate::backend::{cuda, level_zero};
use fdbroker_protocol::object::object_flags;

/// See the file's head.
#[derive(Clone, Debug)]
pub(super) struct Whose {
    pub client: Client,
    /// Those of the client's job, not of its domain.
    pub of_job: bool,
    pub cuda: Option<cuda::Device>,
    pub level_zero: Option<level_zero::Device>,
}

impl Whose {
    /// Bits of the `flags` in the heads of requests.
    pub fn flags(&self) -> u32 {
        if self.of_job { object_flags::JOB } else { 0 }
    }
}
