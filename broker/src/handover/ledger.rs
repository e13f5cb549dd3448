//! The state of a broker in a sealed memfd: a header, then the state in postcard. Must never be
//! believed: it is checked before it is used, and its seals keep it from changing after the check.

use crate::handover::RefusedState;
use crate::handover::state::State;
use crate::node::names::STATE_MEMFD;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use siphasher::sip::SipHasher13;
use std::fs::File;
use std::hash::Hasher;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

/// First eight bytes.
const MAGIC: [u8; 8] = *b"FDBSTATE";
/// Of the header and of [`State`] with all that it contains. Another one is refused.
pub(crate) const FORMAT: u32 = 17;
/// Magic, format, 4 bytes reserved, length, checksum.
const HEADER_BYTES: usize = 32;
/// Longest state that is read: 1e6 allocations take some 200 MiB. More is damage, not a state.
const MAX_BYTES: u64 = 1 << 30;

const SEALS: SealFlag = SealFlag::F_SEAL_SHRINK
    .union(SealFlag::F_SEAL_GROW)
    .union(SealFlag::F_SEAL_WRITE)
    .union(SealFlag::F_SEAL_SEAL);

/// Writes `state` into a memfd that nobody can change any more.
pub(crate) fn write(state: &State) -> io::Result<OwnedFd> {
    sealed(&postcard::to_allocvec(state).map_err(io::Error::other)?)
}

/// A ledger with this body.
pub(crate) fn sealed(body: &[u8]) -> io::Result<OwnedFd> {
    let fd = memfd_create(STATE_MEMFD, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
    let mut file = File::from(fd);
    file.write_all(&header(FORMAT, body))?;
    file.write_all(body)?;
    fcntl(&file, FcntlArg::F_ADD_SEALS(SEALS))?;
    Ok(file.into())
}

/// Reads what [`write`] wrote.
pub(crate) fn read(fd: OwnedFd) -> Result<State, RefusedState> {
    let seals = fcntl(&fd, FcntlArg::F_GET_SEALS).map_err(|_| RefusedState::NoState)?;
    if !SealFlag::from_bits_retain(seals).contains(SEALS) {
        return Err(RefusedState::NoState);
    }
    let file = File::from(fd);
    let size = file.metadata().map_err(RefusedState::Read)?.len();
    let body_bytes = size.checked_sub(HEADER_BYTES as u64).ok_or(RefusedState::NoState)?;
    let mut head = [0; HEADER_BYTES];
    file.read_exact_at(&mut head, 0).map_err(RefusedState::Read)?;
    if head[..8] != MAGIC {
        return Err(RefusedState::NoState);
    }
    let found = u32::from_le_bytes(head[8..12].try_into().expect("4 bytes"));
    if found != FORMAT {
        return Err(RefusedState::Version { found, known: FORMAT });
    }
    let length = u64::from_le_bytes(head[16..24].try_into().expect("8 bytes"));
    if length != body_bytes || length > MAX_BYTES {
        return Err(RefusedState::Broken(format!("{body_bytes} bytes instead of {length}")));
    }
    let mut body = vec![0; usize::try_from(length).map_err(|_| RefusedState::Checksum)?];
    file.read_exact_at(&mut body, HEADER_BYTES as u64).map_err(RefusedState::Read)?;
    if header(FORMAT, &body) != head {
        return Err(RefusedState::Checksum);
    }
    let (state, rest) = postcard::take_from_bytes(&body)
        .map_err(|error| RefusedState::Broken(error.to_string()))?;
    if rest.is_empty() {
        Ok(state)
    } else {
        Err(RefusedState::Broken(format!("{} bytes too many", rest.len())))
    }
}

fn header(format: u32, body: &[u8]) -> [u8; HEADER_BYTES] {
    let mut hasher = SipHasher13::new();
    hasher.write(body);
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&format.to_le_bytes());
    header[16..24].copy_from_slice(&(body.len() as u64).to_le_bytes());
    header[24..].copy_from_slice(&hasher.finish().to_le_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        State { fds: 7, next_serial: 9, ..State::default() }
    }

    /// A memfd with these bytes, sealed as a ledger is.
    fn sealed(bytes: &[u8]) -> OwnedFd {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let mut file = File::from(memfd_create("test", flags).unwrap());
        file.write_all(bytes).unwrap();
        fcntl(&file, FcntlArg::F_ADD_SEALS(SEALS)).unwrap();
        file.into()
    }

    fn bytes() -> Vec<u8> {
        let file = File::from(write(&state()).unwrap());
        let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    #[test]
    fn read_when_written_then_the_same() {
        let read = read(write(&state()).unwrap()).unwrap();
        assert_eq!((read.fds, read.next_serial), (7, 9));
    }

    #[test]
    fn read_when_any_byte_is_changed_then_refused() {
        let good = bytes();
        for index in (0..good.len()).filter(|index| !(12..16).contains(index)) {
            let mut bad = good.clone();
            bad[index] ^= 1;
            assert!(read(sealed(&bad)).is_err(), "byte {index}");
        }
        assert!(read(sealed(&good)).is_ok());
    }

    #[test]
    fn read_when_of_another_format_then_the_format_is_named() {
        let mut bytes = bytes();
        bytes[8] += 1;
        let refused = read(sealed(&bytes)).err().unwrap().to_string();
        let (other, ours) = (format!("format {}", FORMAT + 1), format!("reads {FORMAT}"));
        assert!(refused.contains(&other) && refused.contains(&ours), "{refused}");
    }

    #[test]
    fn read_when_cut_or_not_sealed_then_refused() {
        let good = bytes();
        for length in 0..good.len() {
            assert!(read(sealed(&good[..length])).is_err(), "{length} bytes");
        }
        let open = memfd_create("test", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        assert!(matches!(read(open), Err(RefusedState::NoState)));
        let pipe = nix::unistd::pipe().unwrap().0;
        assert!(matches!(read(pipe), Err(RefusedState::NoState)));
    }
}
