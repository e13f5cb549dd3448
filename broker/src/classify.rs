//! Finds out what a deposited fd is. Must never call anything that an fd of a hung file server can
//! block: no fstat, fstatfs, lseek, poll or read on the fd; only statx without sync, F_GET_SEALS
//! and its fdinfo.

use crate::kernel;
use crate::limits::FDINFO_BYTES;
use fdbroker_protocol::{FdType, MemoryKind};
use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl, openat};
use nix::sys::stat::Mode;
use std::fmt::Write;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// Major number of the NVIDIA character devices (registered for ever,
/// Documentation/admin-guide/devices.txt).
const NVIDIA_MAJOR: u32 = 195;
/// Minor number of /dev/nvidiactl (nv-linux.h, `NV_MINOR_DEVICE_NUMBER_CONTROL_DEVICE`).
const NVIDIA_CONTROL_MINOR: u32 = 255;

/// What an fd is, as far as the kernel says so without its file system being asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its type.
    pub fd_type: FdType,
    /// Bytes it holds, proved; `None` where only its producer knows.
    pub size_bytes: Option<u64>,
    /// Its inode, 0 if the kernel does not say.
    pub inode: u64,
}

/// The classifier: one directory fd and one buffer, reused.
#[derive(Debug)]
pub struct Classifier {
    fdinfo: OwnedFd,
    buffer: Box<[u8]>,
    name: String,
}

impl Classifier {
    /// Opens /proc/self/fdinfo, once: later a chroot or a full table may be in the way.
    ///
    /// # Errors
    /// Those of open(2): /proc is not mounted.
    pub fn new() -> nix::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let fdinfo = nix::fcntl::open("/proc/self/fdinfo", flags, Mode::empty())?;
        let buffer = vec![0; FDINFO_BYTES].into_boxed_slice();
        Ok(Classifier { fdinfo, buffer, name: String::with_capacity(12) })
    }

    /// What `fd` is.
    pub fn classify(&mut self, fd: BorrowedFd<'_>) -> Found {
        let Ok(stat) = kernel::stat(fd) else {
            return Found { fd_type: FdType::Unknown, size_bytes: None, inode: 0 };
        };
        let plain = |fd_type| Found { fd_type, size_bytes: None, inode: stat.inode };
        match stat.file_type {
            libc::S_IFREG => self.classify_regular(fd, &stat),
            // Anonymous inodes have no type in their mode; a dma-buf is one of them.
            0 => self.dmabuf_or(fd, plain(FdType::Anonymous)),
            libc::S_IFCHR if is_nvidia_control(&stat) => plain(FdType::CudaVmm),
            libc::S_IFCHR | libc::S_IFBLK => plain(FdType::Device),
            libc::S_IFSOCK => plain(FdType::Socket),
            libc::S_IFIFO => plain(FdType::Pipe),
            libc::S_IFDIR => plain(FdType::Directory),
            _ => plain(FdType::Unknown),
        }
    }

    /// Checks `fd` against what its producer claims of it, and gives its inode.
    pub fn check(
        &mut self,
        fd: BorrowedFd<'_>,
        kind: MemoryKind,
        size_bytes: u64,
        fd_offset: u64,
    ) -> Result<u64, FdType> {
        let found = self.classify(fd);
        let Some(found_kind) = MemoryKind::of_fd_type(found.fd_type) else {
            return Err(found.fd_type);
        };
        if found_kind != kind {
            return Err(FdType::KindMismatch);
        }
        let end = fd_offset.checked_add(size_bytes).ok_or(FdType::TooSmall)?;
        match found.size_bytes {
            Some(size) if end > size => Err(FdType::TooSmall),
            _ => Ok(found.inode),
        }
    }

    fn classify_regular(&mut self, fd: BorrowedFd<'_>, stat: &kernel::Stat) -> Found {
        let file = Found { fd_type: FdType::File, size_bytes: None, inode: stat.inode };
        let Ok(seals) = fcntl(fd, FcntlArg::F_GET_SEALS) else {
            // Kernels from 6.16 on may give anonymous inodes the mode of a file.
            return self.dmabuf_or(fd, file);
        };
        // Every file of a tmpfs has seals; a memfd alone was born without a link.
        if stat.links != 0 {
            return file;
        }
        let needed = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL;
        match SealFlag::from_bits_retain(seals).contains(needed) {
            true => Found { fd_type: FdType::Memfd, size_bytes: Some(stat.size_bytes), ..file },
            false => Found { fd_type: FdType::UnsealedMemfd, ..file },
        }
    }

    /// A dma-buf, or else what it was found to be.
    fn dmabuf_or(&mut self, fd: BorrowedFd<'_>, found: Found) -> Found {
        match self.read_fdinfo(fd).and_then(parse_dmabuf) {
            Some(size) => Found { fd_type: FdType::DmaBuf, size_bytes: Some(size), ..found },
            None => found,
        }
    }

    /// The first bytes of the fd's fdinfo, which the kernel makes up without asking a file system.
    fn read_fdinfo(&mut self, fd: BorrowedFd<'_>) -> Option<&[u8]> {
        self.name.clear();
        write!(self.name, "{}", fd.as_raw_fd()).ok()?;
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        let file = openat(&self.fdinfo, self.name.as_str(), flags, Mode::empty()).ok()?;
        let length = nix::unistd::read(&file, &mut self.buffer).ok()?;
        Some(&self.buffer[..length])
    }
}

fn is_nvidia_control(stat: &kernel::Stat) -> bool {
    (stat.rdev_major, stat.rdev_minor) == (NVIDIA_MAJOR, NVIDIA_CONTROL_MINOR)
}

/// The size of a dma-buf, from its fdinfo; `None` when this is no dma-buf's. Only what stands
/// before `name:` counts: the holder chooses the name, newlines included
/// (drivers/dma-buf/dma-buf.c, `dma_buf_show_fdinfo`).
pub fn parse_dmabuf(fdinfo: &[u8]) -> Option<u64> {
    let mut size_bytes = None;
    // The last piece is no whole line unless the text ends with a newline.
    let end = fdinfo.iter().rposition(|byte| *byte == b'\n')?;
    for line in fdinfo[..end].split(|byte| *byte == b'\n') {
        if let Some(value) = line.strip_prefix(b"size:") {
            size_bytes = Some(std::str::from_utf8(value).ok()?.trim().parse().ok()?);
        } else if line.starts_with(b"exp_name:") {
            return size_bytes;
        } else if line.starts_with(b"name:") {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use std::fs::File;
    use std::os::fd::AsFd;

    fn classify(fd: impl AsFd) -> FdType {
        Classifier::new().unwrap().classify(fd.as_fd()).fd_type
    }

    fn memfd(size: u64, seals: SealFlag) -> OwnedFd {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let fd = memfd_create("test", flags).unwrap();
        nix::unistd::ftruncate(&fd, i64::try_from(size).unwrap()).unwrap();
        fcntl(&fd, FcntlArg::F_ADD_SEALS(seals)).unwrap();
        fd
    }

    fn both() -> SealFlag {
        SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL
    }

    #[test]
    fn classify_when_memfd_then_both_seals_decide() {
        assert_eq!(classify(memfd(4096, both())), FdType::Memfd);
        assert_eq!(classify(memfd(4096, both() | SealFlag::F_SEAL_GROW)), FdType::Memfd);
        for seals in [SealFlag::empty(), SealFlag::F_SEAL_SHRINK, SealFlag::F_SEAL_SEAL] {
            assert_eq!(classify(memfd(4096, seals)), FdType::UnsealedMemfd, "{seals:?}");
        }
    }

    #[test]
    fn classify_when_not_memory_then_named() {
        let (pipe, _) = nix::unistd::pipe().unwrap();
        assert_eq!(classify(pipe), FdType::Pipe);
        let (socket, _) = fdbroker_scm::seqpacket_pair().unwrap();
        assert_eq!(classify(socket), FdType::Socket);
        let epoll = nix::sys::epoll::Epoll::new(nix::sys::epoll::EpollCreateFlags::empty());
        assert_eq!(classify(epoll.unwrap().0), FdType::Anonymous);
        let eventfd = nix::sys::eventfd::EventFd::new().unwrap();
        assert_eq!(classify(eventfd), FdType::Anonymous);
        assert_eq!(classify(File::open("/").unwrap()), FdType::Directory);
        assert_eq!(classify(File::open("/dev/null").unwrap()), FdType::Device);
        assert_eq!(classify(File::open("/proc/self/exe").unwrap()), FdType::File);
    }

    #[test]
    fn classify_when_file_of_a_tmpfs_then_no_memfd() {
        if let Ok(file) = tempfile::tempfile_in("/dev/shm") {
            let named = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
            assert_eq!(classify(named.as_file()), FdType::File);
            // Unlinked it looks like an unsealed memfd, and is refused like one.
            assert_eq!(classify(file), FdType::UnsealedMemfd);
        }
    }

    #[test]
    fn classify_when_o_path_then_no_memfd() {
        let memfd = memfd(4096, both());
        let path = format!("/proc/self/fd/{}", memfd.as_raw_fd());
        let fd = nix::fcntl::open(path.as_str(), OFlag::O_PATH, Mode::empty()).unwrap();
        assert_eq!(classify(fd), FdType::File);
    }

    #[test]
    fn check_when_range_exceeds_the_memfd_then_too_small() {
        let fd = memfd(8192, both());
        let mut classifier = Classifier::new().unwrap();
        let mut check =
            |size, offset| classifier.check(fd.as_fd(), MemoryKind::Memfd, size, offset);
        let inode = kernel::stat(fd.as_fd()).unwrap().inode;
        assert_eq!(check(8192, 0), Ok(inode));
        assert_eq!(check(4096, 4096), Ok(inode));
        for (size, offset) in [(8193, 0), (4096, 4097), (1, u64::MAX), (u64::MAX, 1)] {
            assert_eq!(check(size, offset), Err(FdType::TooSmall), "{size} at {offset}");
        }
    }

    #[test]
    fn check_when_kind_differs_then_mismatch_and_unsupported_is_named() {
        let mut classifier = Classifier::new().unwrap();
        let fd = memfd(4096, both());
        let checked = classifier.check(fd.as_fd(), MemoryKind::DmaBuf, 4096, 0);
        assert_eq!(checked, Err(FdType::KindMismatch));
        let null = File::open("/dev/null").unwrap();
        let checked = classifier.check(null.as_fd(), MemoryKind::CudaVmm, 4096, 0);
        assert_eq!(checked, Err(FdType::Device));
    }

    const DMABUF: &str = "pos:\t0\nflags:\t02000002\nmnt_id:\t15\nino:\t7\nsize:\t1048576\ncount:\t2\nexp_name:\tsystem\n";

    #[test]
    fn parse_dmabuf_when_real_then_its_size() {
        assert_eq!(parse_dmabuf(DMABUF.as_bytes()), Some(1_048_576));
        let named = format!("{DMABUF}name:\tx\nexp_name:\tforged\nsize:\t99\n\n");
        assert_eq!(parse_dmabuf(named.as_bytes()), Some(1_048_576));
    }

    #[test]
    fn parse_dmabuf_when_only_a_name_says_so_then_none() {
        let forged = "pos:\t0\nino:\t7\nname:\tx\nsize:\t4096\ncount:\t1\nexp_name:\tsystem\n";
        assert_eq!(parse_dmabuf(forged.as_bytes()), None);
        for text in [
            "",
            "\n",
            "exp_name:\tno size\n",
            "size:\tx\nexp_name:\ty\n",
            "size:\t1\nexp_name:\tcut",
        ] {
            assert_eq!(parse_dmabuf(text.as_bytes()), None, "{text:?}");
        }
    }
}
