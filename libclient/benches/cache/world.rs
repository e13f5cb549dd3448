//! An owner of a million allocations in one memfd, and a consumer. Must never touch the memory:
//! none is needed.

use crate::daemon::Daemon;
use crate::through_c::ThroughC;
use fdbroker_client::{
    Access, CacheSettings, CachedImport, Client, Deadline, Deposit, Error, Grant, Handle,
    ImportCache, MemoryKind, Opened, RecallAnswer,
};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};

/// Bytes of an allocation.
pub const BYTES: usize = 4096;
/// Where the allocations pretend to be.
const BASE: u64 = 0x1000_0000_0000;
/// Registered and imported in turns: what is imported is still held.
const TURN: usize = 253 * 8;

/// Both ends.
pub struct World {
    pub consumer: Client,
    pub memfd: OwnedFd,
    pub handles: Vec<Handle>,
    owner: Client,
    shared: *mut u8,
}

/// An address inside the shared mapping.
#[derive(Debug)]
struct Shared(usize);

impl Opened for Shared {
    fn as_ptr(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.0)
    }

    fn len(&self) -> usize {
        BYTES
    }
}

/// For all that waits.
pub const DEADLINE_MS: u32 = 20_000;

pub fn deadline() -> Deadline {
    Deadline::from_ms(DEADLINE_MS)
}

impl World {
    pub fn connect(daemon: &Daemon, allocations: usize) -> Self {
        let memfd = sealed_memfd(allocations * BYTES);
        let length = NonZeroUsize::new(allocations * BYTES).expect("some");
        let (protection, flags) = (ProtFlags::PROT_READ, MapFlags::MAP_SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let shared = unsafe { mmap(None, length, protection, flags, &memfd, 0) }.expect("mmap");
        let connect = |name: &str| Client::builder().socket(daemon.socket()).name(name);
        let again = memfd.try_clone().expect("a free fd");
        let recalled = move |recall: &fdbroker_client::Recall| {
            let fd = again.try_clone().map_err(|_| fdbroker_client::ErrorCode::LocalFdLimit)?;
            Ok(RecallAnswer::unchanged(recall, fd))
        };
        let owner = connect("owner").own_fds(2).on_recall(recalled);
        World {
            consumer: connect("consumer").connect().expect("connect"),
            owner: owner.connect().expect("connect"),
            memfd,
            handles: Vec::with_capacity(allocations),
            shared: shared.as_ptr().cast(),
        }
    }

    /// Registers everything and imports everything into one cache, and into that of the C library.
    pub fn full_cache(&mut self, through_c: &ThroughC) -> ImportCache {
        let cache = ImportCache::new(&self.consumer, CacheSettings::default());
        let count = self.handles.capacity();
        while self.handles.len() < count {
            let first = self.handles.len();
            self.register(first..count.min(first + TURN));
            let imports = self.import_shared(&cache, &self.handles[first..]);
            imports.into_iter().for_each(|import| drop(import.expect("imported")));
            through_c.fill(&self.handles[first..]);
        }
        cache
    }

    fn register(&mut self, range: std::ops::Range<usize>) {
        let deposits: Vec<Deposit> = range.clone().map(deposit).collect();
        let fds = vec![self.memfd.as_fd(); range.len()];
        let registered = self.owner.register_many(&deposits, &fds, deadline()).expect("connected");
        self.handles.extend(registered.into_iter().map(|one| one.expect("registered").handle));
    }

    fn import_shared<'a>(
        &self,
        cache: &'a ImportCache,
        handles: &[Handle],
    ) -> Vec<Result<CachedImport<'a>, Error>> {
        let first = self.shared.expose_provenance();
        let open = |grant: &Grant| {
            let offset = usize::try_from(grant.info.facts.fd_offset).expect("inside");
            Ok(Box::new(Shared(first + offset)) as Box<dyn Opened>)
        };
        cache.import_many_with(handles, Access::Read, deadline(), open).expect("connected")
    }

    /// Fds of the memory in the daemon and here.
    pub fn memory_fds(&self, daemon: &Daemon) -> String {
        format!("{} and {}", count_memfds(daemon.pid()), count_memfds(std::process::id()))
    }
}

fn count_memfds(pid: u32) -> usize {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("/proc");
    let is_ours = |path: std::path::PathBuf| path.to_string_lossy().contains("fdbroker-bench");
    fds.flatten()
        .filter_map(|fd| std::fs::read_link(fd.path()).ok())
        .filter(|at| is_ours(at.clone()))
        .count()
}

fn deposit(index: usize) -> Deposit {
    let offset = (index * BYTES) as u64;
    let mut deposit = Deposit::new(MemoryKind::Memfd, BYTES as u64);
    deposit.facts.fd_offset = offset;
    deposit.base = BASE + offset;
    deposit.facts.owner_allocation_id = index as u64 + 1;
    deposit.recallable = true;
    deposit
}

fn sealed_memfd(bytes: usize) -> OwnedFd {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let memfd = memfd_create(c"fdbroker-bench", flags).expect("memfd");
    nix::unistd::ftruncate(&memfd, i64::try_from(bytes).expect("some GiB")).expect("size");
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL;
    fcntl(&memfd, FcntlArg::F_ADD_SEALS(seals)).expect("seals");
    memfd
}
