//! What one run of the demo does: the arguments, checked and completed before any process starts.
//! Must never let a run begin that cannot end well for a reason known beforehand.

use crate::device::{self, Device};
use crate::error::{Error, Result};
use crate::host::Host;
use crate::kind::{Memory, page_bytes};
use crate::pattern::{Pattern, WORD};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Most ranks: each is a process with two pipes and a thread in the parent.
const MAX_RANKS: u32 = 1024;

/// Most exports of one rank that are on their way to the broker at a time, where each is a new fd.
const MAX_EXPORT_WINDOW: u32 = 4;

/// Mappings of a process that are not of shared memory: program, libraries, stacks.
const OTHER_MAPPINGS: u64 = 512;

/// Most fds that a rank asks for in one request: as many as one message carries.
const MAX_BATCH: u64 = fdbroker_protocol::MAX_BATCH as u64;

/// Fds of shared memory that each rank needs at least beside its own: one for a deposit, one for a
/// buffer that is being opened, and one for the broker's copy of that buffer.
const PLACES_PER_RANK: u64 = 3;

/// Fds that the broker needs at least to make room: one being closed, one on its way.
const PLACES_OF_BROKER: u64 = 2;

/// One batch of every rank takes one of so many parts of the fds that the caps leave. The others
/// are for open fds, fds held for the next batch, and fds on their way.
const BATCH_SHARE: u64 = 4;

/// The cap when neither the user nor a running broker sets one.
const DEFAULT_MAX_FDS: u64 = 256;

/// How the ranks share memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Way {
    /// Through the broker: 64-byte handles by value.
    Broker,
    /// From rank to rank by SCM_RIGHTS; every rank keeps the fds.
    Direct,
}

/// What the user asks for.
#[derive(Clone, Copy, Debug)]
pub struct Wishes {
    /// Number of processes.
    pub ranks: u32,
    /// Number of buffers of each rank.
    pub buffers: u32,
    /// Bytes of each buffer, before they are rounded up.
    pub size_bytes: u64,
    /// Where the buffers are; may be `Auto`.
    pub memory: Memory,
    /// The node's cap; `None`: there is none.
    pub cap: Option<u64>,
    /// Longest time for each way, in ms.
    pub timeout_ms: u64,
}

/// One run. The ranks get a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Number of processes.
    pub ranks: u32,
    /// Number of buffers of each rank.
    pub buffers: u32,
    /// Bytes of each buffer: those asked for, made whole pages or granules of the device.
    pub size_bytes: u64,
    /// Where the buffers are; never `Auto`.
    pub memory: Memory,
    /// The node's cap, and each process's RLIMIT_NOFILE; `None`: as inherited.
    pub max_fds: Option<u64>,
    /// Fds of shared memory that a rank declares as its own.
    pub own_fds: u32,
    /// Buffers that a rank opens in one request.
    pub batch: u32,
    /// Seed of the bytes that the ranks write and check.
    pub seed: u64,
    /// Longest time for each way, in ms.
    pub timeout_ms: u64,
    /// The folder for handles and sockets; set before the ranks start.
    pub dir: PathBuf,
}

impl Plan {
    /// Checks the wishes, and decides on the memory.
    ///
    /// # Errors
    /// The wishes cannot work; the message names the least that can. There is no such memory here.
    pub fn new(wishes: Wishes) -> Result<Self> {
        let Wishes { ranks, buffers, cap, timeout_ms, .. } = wishes;
        let memory = wishes.memory.decide()?;
        check_counts(&wishes)?;
        let device = device::open(memory)?;
        let granularity = device.as_ref().map_or_else(page_bytes, |device| device.granularity());
        let own_fds = own_fds(&wishes, memory) + kept_fds(device.as_deref(), buffers);
        let batch = match cap {
            Some(cap) => {
                check_cap(cap, ranks, own_fds, memory)?;
                batch(cap, ranks, own_fds, memory)
            }
            None => MAX_BATCH,
        };
        Ok(Plan {
            ranks,
            buffers,
            size_bytes: wishes.size_bytes.next_multiple_of(granularity),
            memory,
            max_fds: cap,
            own_fds,
            batch: u32::try_from(batch).unwrap_or(u32::MAX),
            seed: seed(),
            timeout_ms,
            dir: PathBuf::new(),
        })
    }

    /// Bytes of each buffer, as the size of a thing in memory.
    pub(crate) fn size(&self) -> usize {
        usize::try_from(self.size_bytes).unwrap_or(usize::MAX)
    }

    /// The data in the buffers.
    pub(crate) fn pattern(&self) -> Pattern {
        Pattern { seed: self.seed, ranks: self.ranks }
    }

    /// Buffers that each rank opens.
    pub(crate) fn opens_per_rank(&self) -> u64 {
        u64::from(self.ranks - 1) * u64::from(self.buffers)
    }

    /// Buffers that are opened in all: the fds that the direct way needs.
    pub fn opens(&self) -> u64 {
        self.opens_per_rank() * u64::from(self.ranks)
    }

    /// The other ranks, a different one first for each rank, so that they do not all ask the same
    /// owner at once.
    pub(crate) fn others(&self, rank: u32) -> impl Iterator<Item = u32> + use<> {
        let ranks = self.ranks;
        (1..ranks).map(move |step| (rank + step) % ranks)
    }

    /// Where a rank leaves the handles of its buffers.
    pub(crate) fn handles_file(&self, rank: u32) -> PathBuf {
        self.dir.join(format!("rank-{rank}.handles"))
    }

    /// Where a rank takes fds in the direct way.
    pub(crate) fn socket(&self, rank: u32) -> PathBuf {
        self.dir.join(format!("rank-{rank}.sock"))
    }
}

fn check_counts(wishes: &Wishes) -> Result<()> {
    let usage = |message: String| Err(Error::Usage(message));
    if !(2..=MAX_RANKS).contains(&wishes.ranks) {
        return usage(format!("--ranks {}: give 2 to {MAX_RANKS}", wishes.ranks));
    }
    if wishes.buffers == 0 {
        return usage("--buffers 0: there is nothing to share; give at least 1".into());
    }
    let slots = u64::from(wishes.ranks) * WORD as u64;
    if wishes.size_bytes < slots {
        return usage(format!(
            "--size {}: each of the {} ranks leaves a mark of {WORD} bytes in each buffer; give at least {slots}",
            wishes.size_bytes, wishes.ranks
        ));
    }
    let mappings = u64::from(wishes.ranks - 1) * u64::from(wishes.buffers) + OTHER_MAPPINGS;
    match max_map_count() {
        Some(most) if mappings > most => usage(format!(
            "each rank would map {mappings} ranges and this kernel allows {most} per process; use fewer --ranks or --buffers, or raise vm.max_map_count"
        )),
        _ => Ok(()),
    }
}

fn max_map_count() -> Option<u64> {
    std::fs::read_to_string("/proc/sys/vm/max_map_count").ok()?.trim().parse().ok()
}

/// The fds of a rank's own memory: its arena, and the exports on their way to the broker where each
/// is a new fd.
fn own_fds(wishes: &Wishes, memory: Memory) -> u32 {
    const ARENA: u32 = 1;
    match memory {
        // Device memory has no arena. With Level Zero the driver's own fd takes its place for a
        // moment.
        Memory::Udmabuf | Memory::Cuda | Memory::LevelZero => {
            let share = wishes.cap.map_or(u64::MAX, |cap| cap / (8 * u64::from(wishes.ranks)));
            ARENA + u32::try_from(share).unwrap_or(u32::MAX).clamp(1, MAX_EXPORT_WINDOW)
        }
        _ => ARENA,
    }
}

/// Fds that a rank's exported buffers cost it for as long as they live.
fn kept_fds(device: Option<&dyn Device>, buffers: u32) -> u32 {
    if device.is_some_and(Device::keeps_exported_fds) { buffers } else { 0 }
}

/// The cap when neither the user nor a running broker sets one. Where exported buffers keep fds it
/// has room for them, and the user is told.
///
/// # Errors
/// There is no such memory here.
pub fn default_max_fds(wishes: &Wishes, host: &dyn Host) -> Result<u64> {
    let kept = match wishes.memory {
        Memory::LevelZero => {
            kept_fds(device::open(wishes.memory.decide()?)?.as_deref(), wishes.buffers)
        }
        _ => 0,
    };
    let cap = DEFAULT_MAX_FDS + u64::from(wishes.ranks) * u64::from(kept);
    if kept > 0 {
        host.say(&format!(
            "this Level Zero loader has no zeMemPutIpcHandle (1.9 and later have it): each exported buffer keeps an fd of its owner open; the cap is made {cap}"
        ));
    }
    Ok(cap)
}

/// The least cap that lets every rank have its own fds and one buffer on its way, and the broker
/// work.
fn least_cap(ranks: u32, own_fds: u32, memory: Memory) -> u64 {
    let node = u64::from(ranks) * (u64::from(own_fds) + PLACES_PER_RANK) + PLACES_OF_BROKER;
    let rank = memory.other_fds() + u64::from(own_fds) + 1;
    node.max(rank)
}

fn check_cap(cap: u64, ranks: u32, own_fds: u32, memory: Memory) -> Result<()> {
    let least = least_cap(ranks, own_fds, memory);
    if cap < least {
        Err(Error::Usage(format!(
            "--max-fds {cap} is too few for {ranks} ranks: each has {own_fds} of its own and needs some to deposit and to open; give at least {least}"
        )))
    } else {
        Ok(())
    }
}

/// Buffers in one request: so few that every rank can have a batch open while the broker holds as
/// many fds for the next one, and that a batch fits into a rank's own fd table.
fn batch(cap: u64, ranks: u32, own_fds: u32, memory: Memory) -> u64 {
    let free = cap.saturating_sub(u64::from(ranks) * u64::from(own_fds));
    let share = free / (BATCH_SHARE * u64::from(ranks));
    let table = cap.saturating_sub(memory.other_fds() + u64::from(own_fds));
    share.min(table).clamp(1, MAX_BATCH)
}

/// A different number in every run, from the standard library's own random keys.
fn seed() -> u64 {
    use std::hash::BuildHasher;
    std::hash::RandomState::new().hash_one(std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    const WISHES: Wishes = Wishes {
        ranks: 4,
        buffers: 200,
        size_bytes: 65536,
        memory: Memory::Memfd,
        cap: Some(256),
        timeout_ms: 1000,
    };

    fn usage_of(wishes: Wishes) -> String {
        let error = Plan::new(wishes).expect_err("refused");
        assert!(matches!(error, Error::Usage(_)), "{error}");
        error.to_string()
    }

    #[test]
    fn plan_when_eight_ranks_then_the_direct_way_needs_11200() {
        let plan = Plan::new(Wishes { ranks: 8, ..WISHES }).expect("works");
        assert_eq!(plan.opens(), 11_200);
        assert_eq!(plan.own_fds, 1);
    }

    #[test]
    fn plan_when_it_cannot_work_then_usage_error_with_the_least_that_can() {
        let error = usage_of(Wishes { cap: Some(5), ..WISHES });
        let least = least_cap(4, 1, Memory::Memfd);
        assert!(error.contains(&format!("at least {least}")), "{error}");
        assert!(Plan::new(Wishes { cap: Some(least), ..WISHES }).is_ok());
        assert!(usage_of(Wishes { ranks: 1, ..WISHES }).contains("--ranks"));
        assert!(usage_of(Wishes { buffers: 0, ..WISHES }).contains("--buffers"));
        assert!(usage_of(Wishes { size_bytes: 31, ..WISHES }).contains("at least 32"));
        assert!(usage_of(Wishes { buffers: 1 << 30, ..WISHES }).contains("max_map_count"));
    }

    #[test]
    fn batch_when_all_ranks_have_one_open_then_half_the_cap_is_left() {
        for (cap, ranks) in [(256, 4), (256, 8), (4096, 64), (64, 4)] {
            let batch = batch(cap, ranks, 1, Memory::Memfd);
            assert!(batch >= 1 && batch * u64::from(ranks) <= cap / 2, "{cap} {ranks}: {batch}");
        }
        assert_eq!(batch(1_000_000, 2, 1, Memory::Memfd), MAX_BATCH);
    }

    #[test]
    fn others_when_each_rank_asks_then_all_but_itself_and_never_the_same_first() {
        let plan = Plan::new(WISHES).expect("works");
        let orders: Vec<Vec<u32>> = (0..4).map(|rank| plan.others(rank).collect()).collect();
        assert_eq!(orders[0], [1, 2, 3]);
        assert_eq!(orders[3], [0, 1, 2]);
    }
}
