//! The files of host objects: memfds, written once, then sealed for good. Must never leave a page
//! unallocated that this process maps: a write there would end it (SIGBUS) when memory is short.

use super::memfd::{closed_here, unsealed};
use super::memory_left;
use crate::error::Error;
use crate::fork;
use crate::limits::{CHILD_PAUSE, WRITE_PARTS};
use crate::map::{Access, AtFork, Mapping};
use crate::own_fds::OwnFd;
use fdbroker_protocol::ErrorCode;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::uio::pwritev;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::time::Instant;

const NAME: &std::ffi::CStr = c"fdbroker-objects";

/// A file of `len` zeros, all of it allocated, which nobody can shrink or grow. fallocate(2) takes
/// all memory that there is before it fails, so what cannot be there is not asked for.
pub(crate) fn allocated(len: usize) -> Result<OwnFd, Error> {
    memory_left::check(len)?;
    let fd = sized(len)?;
    let length = i64::try_from(len).expect("it was made so large");
    loop {
        let file = fd.proved().ok_or_else(closed_here)?;
        match fallocate(file, FallocateFlags::empty(), 0, length) {
            Err(Errno::EINTR) => {}
            outcome => break outcome.map_err(|errno| no_memory(len, errno))?,
        }
    }
    Ok(fd)
}

/// A file of `len` bytes with these parts, each behind the one before, and zeros between them.
/// pwritev(2).
pub(crate) fn written<'a>(
    len: usize,
    parts: impl Iterator<Item = (u64, &'a [u8])> + Clone,
) -> Result<OwnFd, Error> {
    memory_left::check(parts.clone().map(|(_, bytes)| bytes.len()).sum())?;
    let fd = sized(len)?;
    let mut slices = Vec::new();
    let (mut begin, mut at) = (0, 0);
    for (offset, bytes) in parts.filter(|(_, bytes)| !bytes.is_empty()) {
        let gap = usize::try_from(offset - at).expect("inside the file");
        // What follows a long gap begins another write.
        if gap > GAP.len() || slices.len() + 2 > WRITE_PARTS {
            write_all(&fd, &mut slices, begin)?;
            begin = offset;
        } else if gap > 0 {
            slices.push(IoSlice::new(&GAP[..gap]));
        }
        slices.push(IoSlice::new(bytes));
        at = offset + bytes.len() as u64;
    }
    write_all(&fd, &mut slices, begin)?;
    Ok(fd)
}

/// What stands between two parts.
static GAP: [u8; 64] = [0; 64];

/// Writes the slices at `offset`, and empties them.
fn write_all(fd: &OwnFd, slices: &mut Vec<IoSlice<'_>>, offset: u64) -> Result<(), Error> {
    let mut left: &mut [IoSlice<'_>] = slices;
    let mut at = libc::off_t::try_from(offset).expect("inside the file");
    while !left.is_empty() {
        // Each can take long: the program may have closed it meanwhile.
        match pwritev(fd.proved().ok_or_else(closed_here)?, left, at) {
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(no_memory(left.iter().map(|it| it.len()).sum(), errno)),
            Ok(0) => return Err(no_memory(left.iter().map(|it| it.len()).sum(), Errno::ENOSPC)),
            Ok(count) => {
                at += libc::off_t::try_from(count).expect("inside the file");
                IoSlice::advance_slices(&mut left, count);
            }
        }
    }
    slices.clear();
    Ok(())
}

fn no_memory(bytes: usize, errno: Errno) -> Error {
    Error::os(ErrorCode::Internal, &format!("memory of {bytes} bytes for objects"), errno)
}

/// Known by what it is from the beginning: what follows can take long.
fn sized(len: usize) -> Result<OwnFd, Error> {
    let fd = OwnFd::raised(unsealed(NAME, len)?)?;
    let file = fd.proved().ok_or_else(closed_here)?;
    add(file, SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW)
        .map_err(|errno| Error::os(ErrorCode::Internal, "F_ADD_SEALS", errno))?;
    Ok(fd)
}

fn add(fd: BorrowedFd<'_>, seals: SealFlag) -> nix::Result<()> {
    loop {
        match fcntl(fd, FcntlArg::F_ADD_SEALS(seals)) {
            Err(Errno::EINTR) => {}
            outcome => return outcome.map(drop),
        }
    }
}

/// Maps it for writing. A child of fork(3) closes its copy when it begins: a mapping there is in
/// the way of the seal.
pub(crate) fn map(fd: BorrowedFd<'_>, len: usize) -> Result<Mapping, Error> {
    let mapping = Mapping::new(fd, 0, len, Access::ReadWrite, AtFork::Leave)?;
    mapping.leave_out_of_dumps()?;
    Ok(mapping)
}

/// What a file has when nobody can change it any more.
const FINAL: SealFlag = SealFlag::F_SEAL_WRITE
    .union(SealFlag::F_SEAL_SHRINK)
    .union(SealFlag::F_SEAL_GROW)
    .union(SealFlag::F_SEAL_SEAL);

/// Nobody can change it any more. F_ADD_SEALS.
pub(crate) fn seal(fd: BorrowedFd<'_>) -> Result<(), Error> {
    if seals_of(fd).is_some_and(|seals| seals.contains(FINAL)) {
        return Ok(());
    }
    add(fd, FINAL).map_err(|errno| match errno {
        Errno::EBUSY => Error::new(ErrorCode::SealedBusy, "seal the memory of a group"),
        Errno::EPERM | Errno::EINVAL => {
            Error::os(ErrorCode::UnsupportedFd, "seal the memory of a group", errno)
                .because("a memfd for objects is made with MFD_ALLOW_SEALING and without F_SEAL_SEAL, and its fd is open for writing")
        }
        errno => Error::os(ErrorCode::Internal, "seal the memory of a group", errno),
    })
}

/// Seals what [`map`] has mapped, which is unmapped here. Children that were forked meanwhile have
/// a moment to begin.
pub(crate) fn seal_after_map(fd: BorrowedFd<'_>) -> Result<(), Error> {
    let until = Instant::now() + fork::until_children_look();
    loop {
        match seal(fd) {
            Err(error) if error.code == ErrorCode::SealedBusy && Instant::now() < until => {
                std::thread::sleep(CHILD_PAUSE);
            }
            outcome => return outcome,
        }
    }
}

fn seals_of(fd: BorrowedFd<'_>) -> Option<SealFlag> {
    fcntl(fd, FcntlArg::F_GET_SEALS).ok().map(SealFlag::from_bits_truncate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::uio::pread;

    fn is_sealed(fd: BorrowedFd<'_>) -> bool {
        seals_of(fd).is_some_and(|seals| seals.contains(FINAL))
    }

    fn bytes_of(fd: BorrowedFd<'_>, len: usize) -> Vec<u8> {
        let mut bytes = vec![0xff; len];
        assert_eq!(pread(fd, &mut bytes, 0).unwrap(), len);
        bytes
    }

    #[test]
    fn written_when_many_parts_with_gaps_then_each_is_in_its_place_and_zeros_between() {
        let part = [7_u8; 40];
        // More than one write has, and a gap that begins another.
        let mut offsets: Vec<usize> = (0..WRITE_PARTS).map(|at| at * 64).collect();
        offsets.push(WRITE_PARTS * 64 + 4096);
        let len = offsets.last().unwrap() + 4096;
        let parts = offsets.iter().map(|offset| (*offset as u64, &part[..]));
        let fd = written(len, parts).unwrap();
        let mut expected = vec![0; len];
        for offset in offsets {
            expected[offset..][..part.len()].copy_from_slice(&part);
        }
        assert!(bytes_of(fd.polled(), len) == expected);
    }

    #[test]
    fn seal_when_mapped_then_busy_and_when_unmapped_for_good() {
        let fd = allocated(4096).unwrap();
        let mapping = map(fd.polled(), 4096).unwrap();
        mapping.write_at(0, b"kept").unwrap();
        assert_eq!(seal(fd.polled()).unwrap_err().code, ErrorCode::SealedBusy);
        assert!(!is_sealed(fd.polled()));
        drop(mapping);
        seal(fd.polled()).unwrap();
        assert!(is_sealed(fd.polled()));
        seal(fd.polled()).unwrap();
        assert_eq!(nix::sys::uio::pwrite(fd.polled(), b"x", 0), Err(Errno::EPERM));
        assert_eq!(&bytes_of(fd.polled(), 4), b"kept");
    }

    #[test]
    fn seal_after_map_when_a_child_was_forked_meanwhile_then_it_is_sealed() {
        for _ in 0..20 {
            let fd = allocated(4096).unwrap();
            let mapping = map(fd.polled(), 4096).unwrap();
            // SAFETY: the child waits for its end.
            let child = match unsafe { nix::unistd::fork() }.unwrap() {
                nix::unistd::ForkResult::Child => loop {
                    nix::unistd::pause();
                },
                nix::unistd::ForkResult::Parent { child } => child,
            };
            drop(mapping);
            seal_after_map(fd.polled()).unwrap();
            nix::sys::signal::kill(child, nix::sys::signal::Signal::SIGKILL).unwrap();
            nix::sys::wait::waitpid(child, None).unwrap();
        }
    }

    #[test]
    fn allocated_when_made_then_all_pages_are_there_and_its_size_is_fixed() {
        let fd = allocated(1 << 20).unwrap();
        let stat = nix::sys::stat::fstat(fd.polled()).unwrap();
        assert_eq!(stat.st_blocks * 512, 1 << 20);
        assert_eq!(nix::unistd::ftruncate(fd.polled(), 4096), Err(Errno::EPERM));
        assert_eq!(nix::unistd::ftruncate(fd.polled(), 2 << 20), Err(Errno::EPERM));
    }

    #[test]
    fn allocated_when_the_machine_has_less_then_says_so_and_makes_no_file() {
        use nix::sys::resource::{Resource, getrlimit, setrlimit};
        // So that nothing is allocated without the look either.
        let (_, hard) = getrlimit(Resource::RLIMIT_FSIZE).unwrap();
        setrlimit(Resource::RLIMIT_FSIZE, hard.min(1 << 50), hard).unwrap();
        let error = allocated(1 << 60).unwrap_err();
        assert_eq!(error.code, ErrorCode::Internal);
        assert!(error.context.contains(&(1_u64 << 60).to_string()), "{error}");
        assert!(error.to_string().contains("nothing was allocated"), "{error}");
    }

    #[test]
    fn seal_when_the_file_takes_no_seals_then_unsupported_fd() {
        let fd = super::super::memfd::sealed(c"whole", 4096).unwrap();
        assert_eq!(seal(std::os::fd::AsFd::as_fd(&fd)).unwrap_err().code, ErrorCode::UnsupportedFd);
    }
}
