//! Opening the configuration: the one place where its file is found fit to be read. Must never wait
//! for what may never come, as of a FIFO.

use crate::limits::CONFIG_FILE_BYTES;
use nix::NixPath;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::{Mode, fstat, makedev};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;

/// What is said of a file that is none: no read of one fails so.
const NO_FILE: Errno = Errno::ESPIPE;

/// /dev/null, by which some name "no configuration": a device that ends at once.
const NULL_DEVICE: (u64, u64) = (1, 3);

/// A file, or /dev/null.
///
/// # Errors
/// Those of open(2); `ESPIPE`: it is something else; `EFBIG`.
pub(crate) fn open_config<P: ?Sized + NixPath>(path: &P) -> nix::Result<OwnedFd> {
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = open(path, flags, Mode::empty())?;
    let found = fstat(&file)?;
    let is_file = match found.st_mode & libc::S_IFMT {
        libc::S_IFREG => true,
        libc::S_IFCHR => found.st_rdev == makedev(NULL_DEVICE.0, NULL_DEVICE.1),
        libc::S_IFDIR => return Err(Errno::EISDIR),
        _ => false,
    };
    let is_large = usize::try_from(found.st_size).is_ok_and(|size| size > CONFIG_FILE_BYTES);
    match (is_file, is_large) {
        (false, _) => Err(NO_FILE),
        (true, true) => Err(Errno::EFBIG),
        (true, false) => Ok(file),
    }
}

/// Reads it as text.
pub(crate) fn read_config(path: &Path) -> io::Result<String> {
    let file = File::from(open_config(path).map_err(error_of)?);
    let (mut text, most) = (String::new(), CONFIG_FILE_BYTES as u64);
    file.take(most + 1).read_to_string(&mut text)?;
    if text.len() as u64 > most { Err(error_of(Errno::EFBIG)) } else { Ok(text) }
}

/// The error that an errno of a read stands for.
pub(crate) fn error_of(errno: Errno) -> io::Error {
    match errno {
        NO_FILE => io::Error::other("it is no regular file"),
        Errno::EFBIG => io::Error::other(format!("it has more than {CONFIG_FILE_BYTES} bytes")),
        errno => errno.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_config_when_it_is_no_file_or_too_large_then_refused_and_nothing_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let [fifo, large, link] = ["fifo", "large", "link"].map(|name| dir.path().join(name));
        nix::unistd::mkfifo(&fifo, Mode::S_IRWXU).unwrap();
        std::fs::write(&large, vec![b'#'; CONFIG_FILE_BYTES + 1]).unwrap();
        for (path, part) in [
            (fifo.as_path(), "no regular file"),
            (Path::new("/dev/zero"), "no regular file"),
            (&large, "it has more than"),
            (dir.path(), "Is a directory"),
        ] {
            let error = read_config(path).unwrap_err().to_string();
            assert!(error.contains(part), "{path:?}: {error}");
        }
        std::fs::write(&large, vec![b'#'; CONFIG_FILE_BYTES]).unwrap();
        std::os::unix::fs::symlink(&large, &link).unwrap();
        assert_eq!(read_config(&link).unwrap().len(), CONFIG_FILE_BYTES);
        assert_eq!(read_config(Path::new("/dev/null")).unwrap(), "");
    }
}
