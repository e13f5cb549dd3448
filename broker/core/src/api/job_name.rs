//! What people call a job. Must never be what the core goes by: that is the job's key, which two of
//! a name do not share.

use fdbroker_protocol::limits::JOB_NAME_BYTES;
use serde::{Deserialize, Serialize};

/// A job's name for people, in printable ASCII and padded with zeros; all zeros when its cgroup
/// says none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct JobName([u8; JOB_NAME_BYTES]);

impl JobName {
    /// None.
    pub const NONE: JobName = JobName([0; JOB_NAME_BYTES]);

    /// What does not fit is cut, what cannot be printed is a question mark: it may come from
    /// anywhere.
    pub fn new(text: &str) -> Self {
        let mut name = Self::NONE;
        for (place, byte) in name.0.iter_mut().zip(text.bytes()) {
            *place = if byte.is_ascii_graphic() { byte } else { b'?' };
        }
        name
    }

    /// Without the padding.
    pub fn as_str(&self) -> &str {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(JOB_NAME_BYTES);
        std::str::from_utf8(&self.0[..end]).expect("only ASCII is put in")
    }

    /// With the padding.
    pub fn bytes(self) -> [u8; JOB_NAME_BYTES] {
        self.0
    }
}

impl From<String> for JobName {
    fn from(text: String) -> Self {
        JobName::new(&text)
    }
}

impl From<JobName> for String {
    fn from(name: JobName) -> Self {
        name.as_str().to_owned()
    }
}

#[cfg(test)]
#[path = "../../tests/unit/job_name.rs"]
mod tests;
