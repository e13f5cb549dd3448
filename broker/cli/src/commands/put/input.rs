//! A file that becomes an object. Must never map a file, which somebody else may cut meanwhile.

use crate::error::{Context, Error, Result};
use crate::std_fds;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Paths of standard input.
const STDIN: [&str; 4] = ["-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"];

/// A file of known size.
#[derive(Debug)]
pub struct Input {
    path: PathBuf,
    size_bytes: u64,
    from: From,
}

#[derive(Debug)]
enum From {
    File(File),
    /// What cannot say how long it is (a pipe, standard input) has been read whole.
    Bytes(Vec<u8>),
}

impl Input {
    /// Opens it, and reads it if only that tells its size.
    pub fn open(path: &Path) -> Result<Self> {
        let reading = || format!("read {}", path.display());
        if STDIN.iter().any(|name| path == Path::new(name)) {
            std_fds::check_stdin()?;
        }
        let mut bytes = Vec::new();
        let (from, size_bytes) = if path == Path::new("-") {
            std::io::stdin().lock().read_to_end(&mut bytes).context(reading)?;
            let size = bytes.len() as u64;
            (From::Bytes(bytes), size)
        } else {
            let mut file = File::open(path).context(reading)?;
            let about = file.metadata().context(reading)?;
            // Files of /proc say that they are empty.
            if about.is_file() && about.len() > 0 {
                (From::File(file), about.len())
            } else {
                file.read_to_end(&mut bytes).context(reading)?;
                let size = bytes.len() as u64;
                (From::Bytes(bytes), size)
            }
        };
        Ok(Input { path: path.to_owned(), size_bytes, from })
    }

    /// Bytes of the object.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Reads all of it into memory of this size.
    pub fn read_into(&mut self, memory: &mut [u8]) -> Result<()> {
        let path = &self.path;
        let file = match &mut self.from {
            From::Bytes(bytes) => {
                memory.copy_from_slice(bytes);
                return Ok(());
            }
            From::File(file) => file,
        };
        let changed = || {
            let what = "its size has changed while it was read";
            Error::Other(format!("{}: {what}; put it again when it is whole", path.display()))
        };
        match file.read_exact(memory) {
            Ok(()) => {}
            Err(cause) if cause.kind() == std::io::ErrorKind::UnexpectedEof => {
                return Err(changed());
            }
            Err(cause) => return Err(cause).context(|| format!("read {}", path.display())),
        }
        match file.read(&mut [0]).context(|| format!("read {}", path.display()))? {
            0 => Ok(()),
            _ => Err(changed()),
        }
    }
}
