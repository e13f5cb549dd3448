//! Finds out what a deposited fd is, on the loop. Must never call anything that runs code of the
//! fd's own file system or type: no fstat, fstatfs, lseek, poll or read, and not its fdinfo either;
//! only statx without sync, F_GET_SEALS and the text of its link. What only the fdinfo tells is
//! read by [`look`], in a lane.

use crate::kernel::{self, Device};
use crate::limits::FDINFO_BYTES;
use fdbroker_core::{File, FileId};
use fdbroker_protocol::{Facts, FdType, MemoryKind, Share};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl, readlinkat};
use nix::sys::stat::Mode;
use std::ffi::CStr;
use std::fmt::Write;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

/// Major number of the NVIDIA character devices (registered for ever,
/// Documentation/admin-guide/devices.txt).
const NVIDIA_MAJOR: u32 = 195;
/// Minor number of /dev/nvidiactl (nv-linux.h, `NV_MINOR_DEVICE_NUMBER_CONTROL_DEVICE`).
const NVIDIA_CONTROL_MINOR: u32 = 255;

/// How the link of each dma-buf begins (drivers/dma-buf/dma-buf.c, `dmabuffs_dname`). A path in a
/// mount namespace of its owner can begin so, too. So the link proves nothing: it says which fds
/// are worth a look.
const DMABUF_LINK: &[u8] = b"/dmabuf:";

/// What an fd is, as far as the kernel says so without the fd's own code being run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The kind of file, as handles and refusals name it.
    pub fd_type: FdType,
    /// It may be a dma-buf instead, which only its fdinfo tells.
    pub may_be_dmabuf: bool,
    /// Bytes it holds, proved; `None` where only its producer knows.
    pub size_bytes: Option<u64>,
    /// Which file it is; its inode is 0 if the kernel does not say.
    pub id: FileId,
    /// Its file and what that pins; `None` where the kernel does not tell.
    pub file: Option<File>,
    /// It is a memfd without F_SEAL_GROW: each process that has an fd of it can make it larger.
    pub may_grow: bool,
}

impl kernel::Stat {
    /// Which file it is.
    pub fn id(&self) -> FileId {
        let (major, minor) = self.device;
        FileId { device: u64::from(major) << 32 | u64::from(minor), inode: self.inode }
    }

    /// The file, and how much memory it pins.
    fn file(&self, pinned_bytes: u64) -> File {
        File { id: self.id(), pinned_bytes, size_bytes: self.size_bytes }
    }
}

/// The file of an fd that was classified as of this kind, as for [`Found::file`].
pub fn file_of(kind: MemoryKind, fd: BorrowedFd<'_>) -> Option<File> {
    let stat = kernel::stat(fd).ok()?;
    match kind {
        MemoryKind::Memfd => Some(memfd(&stat, seals_of(fd)?)),
        MemoryKind::DmaBuf => Some(stat.file(stat.size_bytes)),
        _ => None,
    }
}

/// The file of a memfd. One that nobody can write to counts as a whole: readers that touch its
/// holes fill them, and no cap stops that.
fn memfd(stat: &kernel::Stat, seals: SealFlag) -> File {
    let whole = if seals.contains(SealFlag::F_SEAL_WRITE) { stat.size_bytes } else { 0 };
    stat.file(stat.allocated_bytes.max(whole))
}

/// Why an fd is not taken for what its producer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// It is something else, or too small.
    Is(FdType),
    /// It is a dma-buf or, if its fdinfo does not prove that, this.
    Unread(FdType),
}

/// The classifier: one directory fd and one buffer, reused.
///
/// All dma-bufs are of one file system, which lasts as long as the kernel, and no user can make a
/// file of the same device number. So one fdinfo in the life of a broker is enough: from then on
/// the device number proves a dma-buf.
#[derive(Debug)]
pub struct Classifier {
    links: OwnedFd,
    dmabufs: Option<Device>,
    dmabuf_link: &'static [u8],
    name: String,
}

impl Classifier {
    /// Opens /proc/self/fd, once: later a chroot or a full table may be in the way.
    ///
    /// # Errors
    /// Those of open(2): /proc is not mounted.
    pub fn new() -> nix::Result<Self> {
        let links = open_directory("/proc/self/fd")?;
        let name = String::with_capacity(12);
        Ok(Classifier { links, dmabufs: None, dmabuf_link: DMABUF_LINK, name })
    }

    /// Which device number dma-bufs have, as [`look`] has found out.
    pub fn learn(&mut self, dmabufs: Device) {
        self.dmabufs = Some(dmabufs);
    }

    /// Fds whose link begins with this stand for dma-bufs, which not every machine has.
    #[cfg(test)]
    pub fn take_for_dmabufs(&mut self, link: &'static [u8]) {
        self.dmabuf_link = link;
    }

    /// What `fd` is.
    pub fn classify(&mut self, fd: BorrowedFd<'_>) -> Found {
        let unknown = Found {
            fd_type: FdType::Unknown,
            may_be_dmabuf: false,
            size_bytes: None,
            id: FileId { device: 0, inode: 0 },
            file: None,
            may_grow: false,
        };
        let Ok(stat) = kernel::stat(fd) else { return unknown };
        let plain = |fd_type| Found { fd_type, id: stat.id(), ..unknown };
        match stat.file_type {
            libc::S_IFREG => self.classify_regular(fd, &stat, plain(FdType::File)),
            // Anonymous inodes have no type in their mode; a dma-buf is one of them.
            0 => self.dmabuf_or(fd, &stat, plain(FdType::Anonymous)),
            libc::S_IFCHR if is_nvidia_control(&stat) => plain(FdType::CudaVmm),
            libc::S_IFCHR | libc::S_IFBLK => plain(FdType::Device),
            libc::S_IFSOCK => plain(FdType::Socket),
            libc::S_IFIFO => plain(FdType::Pipe),
            libc::S_IFDIR => plain(FdType::Directory),
            _ => plain(FdType::Unknown),
        }
    }

    /// Checks `fd` against its producer's claims; gives its file's number, and the memory pinned.
    pub fn check(
        &mut self,
        fd: BorrowedFd<'_>,
        share: Share,
        facts: &Facts,
    ) -> Result<(FileId, Option<File>), Unfit> {
        let Facts { kind, size_bytes, fd_offset, .. } = *facts;
        let found = self.classify(fd);
        if found.may_be_dmabuf && kind == MemoryKind::DmaBuf {
            return Err(Unfit::Unread(found.fd_type));
        }
        let Some(found_kind) = MemoryKind::of_fd_type(found.fd_type) else {
            return Err(Unfit::Is(found.fd_type));
        };
        if found_kind != kind {
            return Err(Unfit::Is(FdType::KindMismatch));
        }
        // Its depositor pays for what another user adds.
        if found.may_grow && share != Share::Uid {
            return Err(Unfit::Is(FdType::GrowableMemfd));
        }
        let end = fd_offset.checked_add(size_bytes).ok_or(Unfit::Is(FdType::TooSmall))?;
        match found.size_bytes {
            Some(size) if end > size => Err(Unfit::Is(FdType::TooSmall)),
            _ => Ok((found.id, found.file)),
        }
    }

    /// The same for the memory of a group of objects: a memfd that is sealed for readers, or can
    /// still be. Its size is looked at again when the group is sealed ([`look_at_seals`]).
    pub fn check_of_objects(
        &mut self,
        fd: BorrowedFd<'_>,
        facts: &Facts,
    ) -> Result<(FileId, Option<File>), Unfit> {
        if facts.kind != MemoryKind::Memfd {
            return self.check(fd, Share::Uid, facts);
        }
        let found = self.classify(fd);
        if !matches!(found.fd_type, FdType::Memfd | FdType::UnsealedMemfd) {
            let is_other = MemoryKind::of_fd_type(found.fd_type).is_some();
            return Err(Unfit::Is(if is_other { FdType::KindMismatch } else { found.fd_type }));
        }
        let unknown = || Unfit::Is(FdType::Unknown);
        let stat = kernel::stat(fd).map_err(|_| unknown())?;
        let seals = seals_of(fd).ok_or_else(unknown)?;
        if seals.contains(SealFlag::F_SEAL_SEAL) && !seals.contains(SEALED) {
            return Err(Unfit::Is(FdType::FinalMemfd));
        }
        match facts.fd_offset.checked_add(facts.size_bytes) {
            Some(end) if end <= stat.size_bytes => Ok((stat.id(), Some(memfd(&stat, seals)))),
            _ => Err(Unfit::Is(FdType::TooSmall)),
        }
    }

    fn classify_regular(&mut self, fd: BorrowedFd<'_>, stat: &kernel::Stat, file: Found) -> Found {
        let Ok(seals) = fcntl(fd, FcntlArg::F_GET_SEALS) else {
            // Kernels from 6.16 on may give anonymous inodes the mode of a file.
            return self.dmabuf_or(fd, stat, file);
        };
        // Every file of a tmpfs has seals; a memfd alone was born without a link.
        if stat.links != 0 {
            return file;
        }
        let seals = SealFlag::from_bits_retain(seals);
        if seals.contains(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL) {
            Found {
                fd_type: FdType::Memfd,
                size_bytes: Some(stat.size_bytes),
                file: Some(memfd(stat, seals)),
                may_grow: !seals.contains(SealFlag::F_SEAL_GROW),
                ..file
            }
        } else {
            Found { fd_type: FdType::UnsealedMemfd, ..file }
        }
    }

    /// A dma-buf, or else `found`.
    fn dmabuf_or(&mut self, fd: BorrowedFd<'_>, stat: &kernel::Stat, found: Found) -> Found {
        match self.dmabufs {
            Some(device) if device == stat.device => Found {
                fd_type: FdType::DmaBuf,
                size_bytes: Some(stat.size_bytes),
                file: Some(stat.file(stat.size_bytes)),
                ..found
            },
            Some(_) => found,
            None => Found { may_be_dmabuf: self.has_link_of_dmabuf(fd), ..found },
        }
    }

    /// Whether the text of its link is one that a dma-buf has.
    fn has_link_of_dmabuf(&mut self, fd: BorrowedFd<'_>) -> bool {
        let name = number(&mut self.name, fd);
        let link = readlinkat(&self.links, name);
        link.is_ok_and(|link| link.as_bytes().starts_with(self.dmabuf_link))
    }
}

/// Seals without which the memory of a sealed group could still change. F_SEAL_FUTURE_WRITE is not
/// enough: maps from before it stay writable (fcntl(2)).
const SEALED: SealFlag =
    SealFlag::F_SEAL_WRITE.union(SealFlag::F_SEAL_SHRINK).union(SealFlag::F_SEAL_GROW);

fn seals_of(fd: BorrowedFd<'_>) -> Option<SealFlag> {
    fcntl(fd, FcntlArg::F_GET_SEALS).ok().map(SealFlag::from_bits_retain)
}

/// What a memfd is found to be when its group is to be sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sealed {
    /// Nobody can change it, and this fd can be given to readers.
    ForReaders,
    /// Nobody can change it, but this fd cannot be mapped shared by all kernels: readers need one
    /// that is open for reading alone.
    ForWriters,
    /// It can be written to: some map of it is left, or its maker has not sealed it.
    Busy,
    /// It can be made larger or smaller, or is smaller than it was.
    Unsound,
}

/// Whether a memfd is sealed, and as large as this.
pub fn look_at_seals(fd: BorrowedFd<'_>, end: u64) -> Sealed {
    let seals = seals_of(fd).unwrap_or(SealFlag::empty());
    if !seals.contains(SealFlag::F_SEAL_WRITE) {
        return Sealed::Busy;
    }
    let is_large = kernel::stat(fd).is_ok_and(|stat| stat.size_bytes >= end);
    if !seals.contains(SEALED) || !is_large {
        return Sealed::Unsound;
    }
    let flags = fcntl(fd, FcntlArg::F_GETFL).map(OFlag::from_bits_retain);
    if flags.is_ok_and(|flags| flags & OFlag::O_ACCMODE == OFlag::O_RDONLY) {
        Sealed::ForReaders
    } else {
        Sealed::ForWriters
    }
}

/// The same file, open for reading alone. Permissions and security modules have a say in it: never
/// on the loop.
///
/// # Errors
/// Those of open(2). EWOULDBLOCK: somebody has a lease on it (F_SETLEASE), for whose end open(2)
/// would wait 45 s.
pub fn open_for_readers(fd: BorrowedFd<'_>) -> nix::Result<OwnedFd> {
    open_own("fd", fd, OFlag::O_NONBLOCK)
}

/// Opens what /proc has of an fd of the calling process, without allocating.
fn open_own(folder: &str, fd: BorrowedFd<'_>, flags: OFlag) -> nix::Result<OwnedFd> {
    let mut path = [0; 40];
    let _ = io::Write::write_fmt(
        &mut &mut path[..],
        format_args!("/proc/self/{folder}/{}\0", fd.as_raw_fd()),
    );
    let path = CStr::from_bytes_until_nul(&path).map_err(|_| Errno::ENAMETOOLONG)?;
    nix::fcntl::open(path, flags | OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())
}

/// The device number of dma-bufs, if the fd is one, which its fdinfo tells. To read that runs the
/// code of the fd's type, under its locks, and may hang for ever: never on the loop. Allocates
/// nothing.
pub fn look(fd: BorrowedFd<'_>) -> Option<Device> {
    let stat = kernel::stat(fd).ok()?;
    let file = open_own("fdinfo", fd, OFlag::empty()).ok()?;
    let mut buffer = [0; FDINFO_BYTES];
    let length = nix::unistd::read(&file, &mut buffer).ok()?;
    // From then on the size that statx tells is believed.
    (parse_dmabuf(&buffer[..length])? == stat.size_bytes).then_some(stat.device)
}

fn open_directory(path: &str) -> nix::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    nix::fcntl::open(path, flags, Mode::empty())
}

/// The number of an fd, as the names of files in /proc have it.
fn number<'a>(name: &'a mut String, fd: BorrowedFd<'_>) -> &'a str {
    name.clear();
    let _ = write!(name, "{}", fd.as_raw_fd());
    name
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
    use std::fs;
    use std::os::fd::AsFd;

    fn found(fd: impl AsFd) -> Found {
        Classifier::new().unwrap().classify(fd.as_fd())
    }

    fn classify(fd: impl AsFd) -> FdType {
        found(fd).fd_type
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
        assert_eq!(classify(fs::File::open("/").unwrap()), FdType::Directory);
        assert_eq!(classify(fs::File::open("/dev/null").unwrap()), FdType::Device);
        assert_eq!(classify(fs::File::open("/proc/self/exe").unwrap()), FdType::File);
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
        let mut check = |size, offset| {
            let facts = Facts::new(MemoryKind::Memfd, size).fd_offset(offset);
            classifier.check(fd.as_fd(), Share::Uid, &facts)
        };
        let inode = kernel::stat(fd.as_fd()).unwrap().inode;
        let found = |checked: Result<(FileId, _), _>| checked.map(|(id, _)| id.inode);
        assert_eq!(found(check(8192, 0)), Ok(inode));
        assert_eq!(found(check(4096, 4096)), Ok(inode));
        for (size, offset) in [(8193, 0), (4096, 4097), (1, u64::MAX), (u64::MAX, 1)] {
            let too_small = Err(Unfit::Is(FdType::TooSmall));
            assert_eq!(check(size, offset), too_small, "{size} at {offset}");
        }
    }

    #[test]
    fn check_when_a_memfd_may_grow_then_for_its_uid_alone() {
        let mut classifier = Classifier::new().unwrap();
        let mut check = |seals, share| {
            let fd = memfd(4096, seals);
            classifier.check(fd.as_fd(), share, &Facts::new(MemoryKind::Memfd, 4096)).map(|_| ())
        };
        assert_eq!(check(both(), Share::Uid), Ok(()));
        for share in [Share::Gid, Share::Any] {
            assert_eq!(check(both(), share), Err(Unfit::Is(FdType::GrowableMemfd)));
            assert_eq!(check(both() | SealFlag::F_SEAL_GROW, share), Ok(()));
        }
    }

    #[test]
    fn check_when_kind_differs_then_mismatch_and_unsupported_is_named() {
        let mut classifier = Classifier::new().unwrap();
        let fd = memfd(4096, both());
        let checked =
            classifier.check(fd.as_fd(), Share::Uid, &Facts::new(MemoryKind::DmaBuf, 4096));
        assert_eq!(checked, Err(Unfit::Is(FdType::KindMismatch)));
        let null = fs::File::open("/dev/null").unwrap();
        let checked =
            classifier.check(null.as_fd(), Share::Uid, &Facts::new(MemoryKind::CudaVmm, 4096));
        assert_eq!(checked, Err(Unfit::Is(FdType::Device)));
    }

    /// Types whose fdinfo can hang, or take seconds.
    #[test]
    fn classify_when_epoll_or_inotify_then_named_by_its_link_and_worth_no_look() {
        use nix::sys::{epoll, eventfd};
        let epoll = epoll::Epoll::new(epoll::EpollCreateFlags::empty()).unwrap();
        // SAFETY: makes an fd and touches no memory.
        let inotify = kernel::adopt(unsafe { libc::inotify_init1(0) }).unwrap();
        let eventfd = eventfd::EventFd::new().unwrap();
        for fd in [epoll.0.as_fd(), inotify.as_fd(), eventfd.as_fd()] {
            let Found { fd_type, may_be_dmabuf, .. } = found(fd);
            assert_eq!((fd_type, may_be_dmabuf), (FdType::Anonymous, false));
            assert_eq!(look(fd), None);
        }
    }

    #[test]
    fn classify_when_dmabufs_are_known_by_their_device_then_that_alone_counts() {
        let one = nix::sys::eventfd::EventFd::new().unwrap();
        let mut classifier = Classifier::new().unwrap();
        classifier.take_for_dmabufs(b"anon_inode:[eventfd]");
        let check = |classifier: &mut Classifier| {
            classifier.check(one.as_fd(), Share::Any, &Facts::new(MemoryKind::DmaBuf, 1))
        };
        assert_eq!(check(&mut classifier), Err(Unfit::Unread(FdType::Anonymous)));
        classifier.learn((7, 7));
        assert_eq!(check(&mut classifier), Err(Unfit::Is(FdType::Anonymous)));
        classifier.learn(kernel::stat(one.as_fd()).unwrap().device);
        assert_eq!(classifier.classify(one.as_fd()).fd_type, FdType::DmaBuf);
        let too_small = Err(Unfit::Is(FdType::TooSmall));
        assert_eq!(check(&mut classifier), too_small, "the size that statx tells counts");
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
