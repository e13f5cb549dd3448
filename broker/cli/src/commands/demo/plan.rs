//! What one run of the demo does: the arguments checked and completed before any process starts. Must never
//! let a run begin that cannot end well for a reason known beforehand.

use super::device::Device;
use super::pattern::{Pattern, WORD_BYTES};
use super::sampler::Look;
use crate::error::{Error, Result};
use crate::output::say;
use fdbroker_client::backend;
use fdbroker_client::host::HostMemory;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Most ranks: each is a process with a pipe or two in the parent.
const MAX_RANKS: u32 = 1024;

/// Fds of a rank that are not of shared memory: stdio, the connection and its event socket, the library's
/// thread, sockets of the direct way, files opened for a moment.
const OTHER_FDS_PER_RANK: u64 = 16;

/// The same of CUDA: a context keeps 33 open (H200, driver 580), and a call a few for a moment.
const CUDA_FDS_PER_RANK: u64 = 48;

/// The same of Level Zero: a driver opens the device's nodes, and a call one or two for a moment.
const LEVEL_ZERO_FDS_PER_RANK: u64 = 16;

/// Exports on their way to the broker at a time, at most, of one rank whose exports are fds of their own.
const MAX_EXPORT_WINDOW: u32 = 4;

/// Mappings of a process that are not the demo's: program, libraries, stacks.
const OTHER_MAPPINGS: u64 = 512;

/// The fds that a rank asks for in one request, at most: one message.
const MAX_BATCH: u64 = fdbroker_protocol::MAX_BATCH as u64;

/// Fds of shared memory that each rank needs at least beside its own: a deposit's place, one being opened,
/// and the broker's copy of it.
const PLACES_PER_RANK: u64 = 3;

/// Those that the broker needs at least to make room: one being closed, one on its way.
const PLACES_OF_BROKER: u64 = 2;

/// One batch of every rank takes so many parts of what the caps leave: open, held for the next, on the way, slack.
const BATCH_SHARE: u64 = 4;

/// The cap, and what runs under it, when nothing else says.
const DEFAULT_MAX_FDS: u64 = 256;

/// What a buffer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Memory {
    /// A range of a sealed memfd: works everywhere.
    Memfd,
    /// A real dma-buf, made by /dev/udmabuf: one fd per buffer, as with GPU memory.
    Udmabuf,
    /// Device memory of an NVIDIA GPU (CUDA VMM): one fd per buffer.
    Cuda,
    /// Device memory of a Level Zero driver, such as Intel's: one fd per buffer.
    #[serde(rename = "level-zero")]
    LevelZero,
    /// udmabuf where the device can be opened, else memfd.
    Auto,
}

impl Memory {
    /// Its name in JSON and in the table.
    pub fn name(self) -> &'static str {
        match self {
            Memory::Memfd => "memfd",
            Memory::Udmabuf => "udmabuf",
            Memory::Cuda => "cuda",
            Memory::LevelZero => "level-zero",
            Memory::Auto => "auto",
        }
    }

    /// How its fds are told from others in /proc.
    pub fn look(self) -> Look {
        match self {
            Memory::Cuda => Look::CudaVmm,
            Memory::LevelZero => Look::LevelZero,
            _ => Look::Names,
        }
    }

    /// Fds of a rank that are not of shared memory.
    fn other_fds(self) -> u64 {
        match self {
            Memory::Cuda => OTHER_FDS_PER_RANK + CUDA_FDS_PER_RANK,
            Memory::LevelZero => OTHER_FDS_PER_RANK + LEVEL_ZERO_FDS_PER_RANK,
            _ => OTHER_FDS_PER_RANK,
        }
    }

    /// What sizes are whole numbers of.
    pub fn granules(self) -> &'static str {
        match self {
            Memory::Cuda => "granules of the device",
            _ => "pages",
        }
    }

    /// `Auto` decided; an error when the device is demanded and absent.
    fn decide(self) -> Result<Self> {
        if matches!(self, Memory::Cuda | Memory::LevelZero) {
            let available = backend::by_name(self.name()).and_then(|found| found.available());
            return available.map(|()| self).map_err(|cause| {
                Error::Other(format!("no device memory here ({cause}); use another --memory"))
            });
        }
        match (self, HostMemory::Udmabuf.available()) {
            (Memory::Auto | Memory::Udmabuf, Ok(())) => Ok(Memory::Udmabuf),
            (Memory::Udmabuf, Err(cause)) => Err(Error::Other(format!(
                "no dma-bufs here ({cause}); load the kernel module udmabuf, see to the permissions of /dev/udmabuf, or use --memory memfd"
            ))),
            _ => Ok(Memory::Memfd),
        }
    }
}

/// How handles and memory get from rank to rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Way {
    /// Through the broker: 64-byte handles by value.
    Broker,
    /// From rank to rank: SCM_RIGHTS, fds kept.
    Direct,
}

/// What was asked for.
#[derive(Clone, Copy, Debug)]
pub struct Wishes {
    /// Processes.
    pub ranks: u32,
    /// Buffers per rank.
    pub buffers: u32,
    /// Bytes per buffer.
    pub size_bytes: u64,
    /// What they are.
    pub memory: Memory,
    /// The node's cap; `None` = none known.
    pub cap: Option<u64>,
}

/// One run, as its ranks get it too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Processes.
    pub ranks: u32,
    /// Buffers per rank.
    pub buffers: u32,
    /// Bytes per buffer.
    pub size_bytes: u64,
    /// What they are; never `Auto`.
    pub memory: Memory,
    /// The node's cap, and each process's RLIMIT_NOFILE; `None` = as inherited.
    pub max_fds: Option<u64>,
    /// Fds of shared memory that a rank declares as its own.
    pub own_fds: u32,
    /// Buffers opened per request.
    pub batch: u32,
    /// Of the data.
    pub seed: u64,
    /// Longest time for all parts together, in ms.
    pub timeout_ms: u64,
    /// For handles and sockets; set before the ranks start.
    pub dir: PathBuf,
}

impl Plan {
    /// Checks the wishes; the memory is decided here.
    pub fn new(wishes: Wishes, timeout_ms: u64) -> Result<Self> {
        let memory = wishes.memory.decide()?;
        check_counts(&wishes)?;
        let device = Device::open(memory)?;
        let granularity = device.as_ref().map_or_else(page_bytes, Device::granularity);
        let own_fds = own_fds(&wishes, memory) + kept_fds(device.as_ref(), wishes.buffers);
        let batch = match wishes.cap {
            Some(cap) => {
                check_cap(cap, wishes.ranks, own_fds, memory)?;
                batch(cap, wishes.ranks, own_fds, memory)
            }
            None => MAX_BATCH,
        };
        Ok(Plan {
            ranks: wishes.ranks,
            buffers: wishes.buffers,
            size_bytes: wishes.size_bytes.next_multiple_of(granularity),
            memory,
            max_fds: wishes.cap,
            own_fds,
            batch: u32::try_from(batch).unwrap_or(u32::MAX),
            seed: seed(),
            timeout_ms,
            dir: PathBuf::new(),
        })
    }

    /// The data in the buffers.
    pub fn pattern(&self) -> Pattern {
        Pattern { seed: self.seed, ranks: self.ranks }
    }

    /// Buffers that each rank opens.
    pub fn opens_per_rank(&self) -> u64 {
        u64::from(self.ranks - 1) * u64::from(self.buffers)
    }

    /// Buffers that are opened in all: the fds that the direct way needs.
    pub fn opens(&self) -> u64 {
        self.opens_per_rank() * u64::from(self.ranks)
    }

    /// The other ranks, a different one first for each rank, so that no owner is asked by all at once.
    pub fn others(&self, rank: u32) -> impl Iterator<Item = u32> + use<> {
        let ranks = self.ranks;
        (1..ranks).map(move |step| (rank + step) % ranks)
    }

    /// Where a rank leaves the handles of its buffers.
    pub fn handles_file(&self, rank: u32) -> PathBuf {
        self.dir.join(format!("rank-{rank}.handles"))
    }

    /// Where a rank takes fds in the direct way.
    pub fn socket(&self, rank: u32) -> PathBuf {
        self.dir.join(format!("rank-{rank}.sock"))
    }
}

fn check_counts(wishes: &Wishes) -> Result<()> {
    let usage = |message: String| Err(Error::Usage(message));
    if !(2..=MAX_RANKS).contains(&wishes.ranks) {
        return usage(format!("--ranks {}: it takes 2 to {MAX_RANKS} to share", wishes.ranks));
    }
    if wishes.buffers == 0 {
        return usage("--buffers 0: there is nothing to share; give at least 1".into());
    }
    let slots = u64::from(wishes.ranks) * WORD_BYTES;
    if wishes.size_bytes < slots {
        return usage(format!(
            "--size {}: each of the {} ranks leaves a mark of {WORD_BYTES} bytes in each buffer; give at least {slots}",
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

/// Its arena, if it has one, and what is on its way to the broker where an export is an fd of its own.
fn own_fds(wishes: &Wishes, memory: Memory) -> u32 {
    const ARENA: u32 = 1;
    match memory {
        // Of Level Zero it is not an arena that is one more, but the driver's own fd for a moment.
        Memory::Udmabuf | Memory::Cuda | Memory::LevelZero => {
            let share = wishes.cap.map_or(u64::MAX, |cap| cap / (8 * u64::from(wishes.ranks)));
            ARENA + u32::try_from(share).unwrap_or(u32::MAX).clamp(1, MAX_EXPORT_WINDOW)
        }
        _ => ARENA,
    }
}

/// Fds that a rank's exported buffers cost it for as long as they live.
fn kept_fds(device: Option<&Device>, buffers: u32) -> u32 {
    match device.is_some_and(Device::keeps_exported_fds) {
        true => buffers,
        false => 0,
    }
}

/// The cap when nothing else says. Where exported buffers keep fds there is room for those too, and a word about it.
pub fn default_max_fds(memory: Memory, ranks: u32, buffers: u32) -> Result<u64> {
    let kept = match memory {
        Memory::LevelZero => kept_fds(Device::open(memory.decide()?)?.as_ref(), buffers),
        _ => 0,
    };
    let cap = DEFAULT_MAX_FDS + u64::from(ranks) * u64::from(kept);
    if kept > 0 {
        say!(
            "fdbroker: this Level Zero loader has no zeMemPutIpcHandle (1.9 and later have): each exported buffer keeps an fd of its owner open; the cap is made {cap}"
        );
    }
    Ok(cap)
}

/// The least cap that lets every rank have its own fds and one buffer on its way, and the broker work.
fn least_cap(ranks: u32, own_fds: u32, memory: Memory) -> u64 {
    let node = u64::from(ranks) * (u64::from(own_fds) + PLACES_PER_RANK) + PLACES_OF_BROKER;
    let rank = memory.other_fds() + u64::from(own_fds) + 1;
    node.max(rank)
}

fn check_cap(cap: u64, ranks: u32, own_fds: u32, memory: Memory) -> Result<()> {
    let least = least_cap(ranks, own_fds, memory);
    match cap < least {
        true => Err(Error::Usage(format!(
            "--max-fds {cap} is too few for {ranks} ranks: each has {own_fds} of its own and needs some to deposit and to open; give at least {least}"
        ))),
        false => Ok(()),
    }
}

/// As many as let every rank have a batch open while the broker holds as many for the next, and as fit into one
/// rank's own fd table.
fn batch(cap: u64, ranks: u32, own_fds: u32, memory: Memory) -> u64 {
    let free = cap.saturating_sub(u64::from(ranks) * u64::from(own_fds));
    let share = free / (BATCH_SHARE * u64::from(ranks));
    let table = cap.saturating_sub(memory.other_fds() + u64::from(own_fds));
    share.min(table).clamp(1, MAX_BATCH)
}

/// Bytes of a page: buffers begin and end on one.
pub fn page_bytes() -> u64 {
    use nix::unistd::{SysconfVar, sysconf};
    let size = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
    size.and_then(|size| u64::try_from(size).ok()).filter(|size| *size > 0).unwrap_or(4096)
}

/// Another one in every run, from the standard library's own random keys.
fn seed() -> u64 {
    use std::hash::BuildHasher;
    std::hash::RandomState::new().hash_one(std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    const WISHES: Wishes =
        Wishes { ranks: 4, buffers: 200, size_bytes: 65536, memory: Memory::Memfd, cap: Some(256) };

    fn plan(wishes: Wishes) -> Result<Plan> {
        Plan::new(wishes, 1000)
    }

    fn usage_of(wishes: Wishes) -> String {
        let error = plan(wishes).expect_err("refused");
        assert_eq!(error.exit_status(), crate::error::exit::USAGE);
        error.to_string()
    }

    #[test]
    fn plan_when_eight_ranks_then_the_direct_way_needs_11200() {
        let plan = plan(Wishes { ranks: 8, ..WISHES }).expect("works");
        assert_eq!(plan.opens(), 11_200);
        assert_eq!(plan.own_fds, 1);
    }

    #[test]
    fn plan_when_it_cannot_work_then_usage_error_with_the_least_that_can() {
        let error = usage_of(Wishes { cap: Some(5), ..WISHES });
        let least = least_cap(4, 1, Memory::Memfd);
        assert!(error.contains(&format!("at least {least}")), "{error}");
        assert!(plan(Wishes { cap: Some(least), ..WISHES }).is_ok());
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
        let plan = plan(WISHES).expect("works");
        let orders: Vec<Vec<u32>> = (0..4).map(|rank| plan.others(rank).collect()).collect();
        assert_eq!(orders[0], [1, 2, 3]);
        assert_eq!(orders[3], [0, 1, 2]);
    }
}
