//! What the program and its ranks tell each other: one JSON object per line, commands on a rank's
//! stdin, answers on its stdout. Must never carry memory or fds: they take the way that is being
//! tested.

use crate::pattern::mix;
use fdbroker_client::Handle;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A buffer of another rank: its handle by value, and the key of its contents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lent {
    /// 128 hex digits.
    pub handle: String,
    /// See [`crate::pattern`].
    pub key: u64,
}

impl Lent {
    pub fn new(handle: &Handle, key: u64) -> Self {
        Lent { handle: handle.to_string(), key }
    }

    pub fn handle(&self) -> Result<Handle, String> {
        self.handle.parse()
    }
}

/// Named objects in device memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Weights {
    /// Pieces of device memory.
    pub groups: u32,
    /// Objects of each.
    pub objects: u32,
    /// Bytes of each object.
    pub bytes: u64,
    /// From which their contents follow.
    pub seed: u64,
}

impl Weights {
    /// Names of a group, and the keys of their contents.
    pub fn group(&self, group: u32) -> Vec<(String, u64)> {
        let one = |object: u32| {
            let number = u64::from(group * self.objects + object);
            (format!("weights/{group}/{object}"), mix(self.seed ^ mix(number)))
        };
        (0..self.objects).map(one).collect()
    }
}

/// To a rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Set RLIMIT_NOFILE.
    Limit { fds: u64 },
    /// Open the device of this ordinal and use each call once, so that the driver has opened its
    /// own fds.
    Open { device: u32 },
    /// Connect to the broker.
    Connect { socket: PathBuf, own_fds: u32 },
    /// Count the fds.
    CountFds,
    /// Make buffers of `bytes`, fill them (the first `slots` words with 0), and register them in
    /// one call.
    Make { count: u32, bytes: u64, slots: u32, seed: u64 },
    /// Drop all buffers.
    DropBuffers,
    /// Acquire, import, check every byte, leave the mark of `reader`, and keep the memory mapped.
    Import { lent: Vec<Lent>, slots: u32, reader: u32 },
    /// Check again every byte of the imports.
    Recheck { lent: Vec<Lent>, slots: u32 },
    /// Look for the mark of every reader but `owner` in the own buffers, and check every byte.
    CheckMarks { slots: u32, owner: u32 },
    /// Acquire, and keep the fds open.
    Hold { lent: Vec<Lent> },
    /// Drop all imports, and the fds that are kept open.
    Release,
    /// Acquire and give back; the answer is the code.
    Try { lent: Lent },
    /// Acquire and import, and give both back; the answer is the code.
    TryImport { lent: Lent },
    /// Export one allocation twice, register both exports.
    RegisterTwice { bytes: u64 },
    /// Allocate without the library's buffers and register by hand. The memory of a command before
    /// is freed first, without telling the broker, and the new memory takes its address if it can.
    Reuse { bytes: u64, seed: u64 },
    /// Fill the fd table, then export and import.
    FillTable { lent: Lent },
    /// Export cuMemAlloc and VMM memory as dma-bufs and register them.
    DmaBufs { bytes: u64 },
    /// Acquire and look at the fd.
    Look { lent: Lent },
    /// Register a memfd buffer, too.
    Host,
    /// Import through the import cache, `rounds` times.
    Cache { lent: Lent, rounds: u32 },
    /// Allocate the memory that the cost commands export.
    PrepareCosts { bytes: u64 },
    /// Export and keep the fd.
    Export,
    /// Close the fd that was kept.
    CloseKept,
    /// Take an fd of a process and keep it; a later command may import it.
    Take { pid: i32, fd: i32 },
    /// Import the fd that was taken, close it, unmap.
    ImportTaken { bytes: u64 },
    /// Acquire, import, release, so often.
    GrantCosts { lent: Vec<Lent>, rounds: u32 },
    /// Put named objects, in groups; `keep`: they outlive this rank.
    PutObjects { weights: Weights, keep: bool },
    /// Get all of them, check every byte, and keep them open.
    GetObjects { weights: Weights },
    /// Check again every byte of those that are open.
    RecheckObjects,
    /// Ask the driver how the first one is mapped.
    Access,
    /// Delete all of them.
    DeleteObjects { weights: Weights },
    /// Give those back that are open.
    DropObjects,
}

/// From a rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    Done,
    Failed {
        why: String,
    },
    Fds {
        all: u64,
        vmm: u64,
    },
    Made {
        lent: Vec<Lent>,
    },
    Checked {
        bytes: u64,
        wrong_words: u64,
    },
    Code {
        name: String,
    },
    Held {
        fds: Vec<i32>,
    },
    Twice {
        same_allocation: bool,
    },
    Reused {
        lent: Lent,
        at_same_address: bool,
    },
    Full {
        export: String,
        import: String,
        export_after: String,
        wrong_words: u64,
    },
    Looked {
        exporter: String,
        bytes: u64,
    },
    Cached {
        same_pointer: bool,
        bytes: u64,
        misses: u64,
        hits: u64,
        hit_ns: f64,
    },
    Exported {
        fd: i32,
        us: f64,
    },
    Us {
        us: f64,
    },
    ImportUs {
        import: f64,
        close: f64,
        unmap: f64,
    },
    Got {
        bytes: u64,
        wrong_words: u64,
        versions: Vec<u64>,
    },
    /// `None`: the driver cannot say. Drivers of CUDA 11.0 and later can, the stand-in cannot.
    Access {
        flags: Option<u64>,
    },
    GrantUs {
        acquire: Vec<f64>,
        import: Vec<f64>,
        release: Vec<f64>,
    },
}
