//! Memory that the tests share without the library's arena, and its contents: a memfd or real
//! dma-bufs, as FDBROKER_TEST_MEMORY says. Must never hand out two blocks that overlap.

use fdbroker_client::{
    Access, Deposit, Grant, HostMemory, Import, IsolatedMemory, Recall, RecallAnswer,
};
use fdbroker_protocol::{ErrorCode, MemoryKind};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::uio::pwrite;
use std::ffi::CStr;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Bytes of every allocation of the tests: a page.
pub const BLOCK_BYTES: usize = 4096;

/// Variable that chooses the kind of memory: `memfd` (default) or `udmabuf`.
const MEMORY_VARIABLE: &str = "FDBROKER_TEST_MEMORY";

/// Address at which a test claims that its blocks begin.
const BASE: u64 = 0x7000_0000_0000;

/// The kind of memory that this run tests.
pub fn host_memory() -> HostMemory {
    match std::env::var(MEMORY_VARIABLE).as_deref() {
        Err(_) | Ok("memfd") => HostMemory::Memfd,
        Ok("udmabuf") => HostMemory::Udmabuf,
        Ok(other) => panic!("{MEMORY_VARIABLE}={other}: memfd or udmabuf"),
    }
}

/// The kind of memory of this run for allocations with an fd of their own: dma-heap buffers where
/// it is dma-bufs.
pub fn isolated_memory() -> IsolatedMemory {
    match host_memory() {
        HostMemory::Memfd => IsolatedMemory::Memfd,
        _ => IsolatedMemory::DmaHeap,
    }
}

/// The kind of memory of this run, as handles name it.
pub fn memory_kind() -> MemoryKind {
    match host_memory() {
        HostMemory::Memfd => MemoryKind::Memfd,
        _ => MemoryKind::DmaBuf,
    }
}

/// The bytes of block `seed`: no word of it is in another block.
pub fn pattern(seed: u64) -> Vec<u8> {
    let word = |index: u64| (seed << 16 | index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..BLOCK_BYTES as u64 / 8).flat_map(|index| word(index).to_le_bytes()).collect()
}

/// Imports and compares every byte.
#[track_caller]
pub fn assert_bytes(grant: Grant, seed: u64) -> Import {
    let import = grant.import(Access::Read, 0).expect("import");
    assert_import(&import, seed);
    import
}

/// Compares every byte of an import.
#[track_caller]
pub fn assert_import(import: &Import, seed: u64) {
    let mut bytes = vec![0; BLOCK_BYTES];
    import.read_at(0, &mut bytes).expect("in bounds");
    assert!(bytes == pattern(seed), "block {seed} has other bytes");
}

pub fn memfd(name: &CStr, bytes: usize, seals: SealFlag) -> OwnedFd {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let fd = memfd_create(name, flags).expect("memfd_create");
    nix::unistd::ftruncate(&fd, i64::try_from(bytes).expect("small")).expect("ftruncate");
    if !seals.is_empty() {
        fcntl(&fd, FcntlArg::F_ADD_SEALS(seals)).expect("seal");
    }
    fd
}

/// The seals that the broker demands of memory for everybody.
pub fn all_seals() -> SealFlag {
    SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL
}

/// Blocks of memory that can be exported any number of times.
#[derive(Debug)]
pub struct Blocks {
    memfd: OwnedFd,
    count: usize,
}

impl Blocks {
    /// `count` blocks; block `i` has the bytes of `pattern(i)`.
    pub fn new(count: usize) -> Blocks {
        let memfd = memfd(c"blocks", count * BLOCK_BYTES, all_seals());
        let blocks = Blocks { memfd, count };
        (0..count).for_each(|index| blocks.fill(index, index as u64));
        blocks
    }

    /// Writes `pattern(seed)` to a block.
    pub fn fill(&self, index: usize, seed: u64) {
        let offset = i64::try_from(self.offset(index)).expect("small");
        let written = pwrite(&self.memfd, &pattern(seed), offset).expect("write the block");
        assert_eq!(written, BLOCK_BYTES);
    }

    fn offset(&self, index: usize) -> u64 {
        assert!(index < self.count, "no block {index}");
        (index * BLOCK_BYTES) as u64
    }

    /// The deposit of a block. The allocation's id is the block's index.
    pub fn deposit(&self, index: usize) -> Deposit {
        let mut deposit = Deposit::new(memory_kind(), BLOCK_BYTES as u64);
        deposit.base = BASE + self.offset(index);
        deposit.facts.owner_allocation_id = index as u64;
        deposit.recallable = true;
        if memory_kind().shows_neighbours() {
            deposit.facts.fd_offset = self.offset(index);
        }
        deposit
    }

    /// A new fd of a block.
    pub fn export(&self, index: usize) -> OwnedFd {
        match host_memory() {
            HostMemory::Memfd => self.memfd.try_clone().expect("dup"),
            _ => udmabuf(self.memfd.as_fd(), self.offset(index)),
        }
    }

    /// The answer to a recall of one of these blocks.
    pub fn answer(&self, recall: &Recall) -> Result<RecallAnswer, ErrorCode> {
        let index = (recall.base - BASE) / BLOCK_BYTES as u64;
        let index = usize::try_from(index).expect("a block");
        Ok(RecallAnswer::unchanged(recall, self.export(index)))
    }
}

/// `struct udmabuf_create` of linux/udmabuf.h.
#[repr(C)]
struct UdmabufCreate {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

/// `UDMABUF_CREATE` of linux/udmabuf.h: `_IOW('u', 0x42, struct udmabuf_create)`.
const UDMABUF_CREATE: libc::Ioctl = 0x4018_7542;
/// `UDMABUF_FLAGS_CLOEXEC` of linux/udmabuf.h.
const UDMABUF_FLAGS_CLOEXEC: u32 = 1;

/// A dma-buf of one block of a memfd.
fn udmabuf(memfd: BorrowedFd<'_>, offset: u64) -> OwnedFd {
    let device = File::options().read(true).write(true).open("/dev/udmabuf").expect("udmabuf");
    let create = UdmabufCreate {
        memfd: memfd.as_raw_fd().unsigned_abs(),
        flags: UDMABUF_FLAGS_CLOEXEC,
        offset,
        size: BLOCK_BYTES as u64,
    };
    // SAFETY: the request reads one `udmabuf_create` through the pointer, which is valid.
    let fd = unsafe { libc::ioctl(device.as_raw_fd(), UDMABUF_CREATE, &raw const create) };
    assert!(fd >= 0, "UDMABUF_CREATE: {}", std::io::Error::last_os_error());
    // SAFETY: the kernel has just made this fd for us.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// `DMA_BUF_SET_NAME_B` of linux/dma-buf.h: `_IOW('b', 1, u64)`.
const DMA_BUF_SET_NAME: libc::Ioctl = 0x4008_6201;

/// A block of the kind of memory of this run. Its name imitates the lines that the kernel writes
/// into fdinfo.
pub fn block_with_forged_name() -> OwnedFd {
    // 31 bytes, the longest name of a dma-buf.
    let name = c"x\nsize:\t99999999\nexp_name:\tevil";
    match host_memory() {
        HostMemory::Memfd => memfd(name, BLOCK_BYTES, all_seals()),
        _ => {
            let fd = Blocks::new(1).export(0);
            // SAFETY: the request reads a string through the pointer, which is valid.
            let failed = unsafe { libc::ioctl(fd.as_raw_fd(), DMA_BUF_SET_NAME, name.as_ptr()) };
            assert_eq!(failed, 0, "DMA_BUF_SET_NAME: {}", std::io::Error::last_os_error());
            fd
        }
    }
}
