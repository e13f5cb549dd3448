//! Which sockets in the file system a broker has made, as its lock file has it. Must never name a
//! socket that another process has put at the same path.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::str::FromStr;
use std::time::UNIX_EPOCH;

/// A file, told from all that were or will be at its path: inode numbers come again, so its birth
/// counts, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    device: u64,
    inode: u64,
    /// In nanoseconds; of the last change where the file system has no birth.
    born: u128,
}

impl Mark {
    /// Of what a path names, a symbolic link itself included.
    pub fn of(path: &Path) -> Option<Self> {
        std::fs::symlink_metadata(path).ok().map(|found| Mark::new(&found))
    }

    /// Of what has been looked at.
    pub fn new(found: &Metadata) -> Self {
        let birth = found.created().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let changed = || {
            let (seconds, rest) = (found.ctime().unsigned_abs(), found.ctime_nsec().unsigned_abs());
            u128::from(seconds) * 1_000_000_000 + u128::from(rest)
        };
        let born = birth.map_or_else(changed, |birth| birth.as_nanos());
        Mark { device: found.dev(), inode: found.ino(), born }
    }

    /// All as text, each in a line.
    pub fn write_all(marks: &[Mark]) -> String {
        let line = |it: &Mark| format!("socket {} {} {}\n", it.device, it.inode, it.born);
        marks.iter().map(line).collect()
    }

    /// Those of a text; any other line is none.
    pub fn read_all(text: &str) -> Vec<Mark> {
        text.lines().filter_map(Mark::read).collect()
    }

    fn read(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("socket ")?.split(' ');
        let device = number(words.next())?;
        let inode = number(words.next())?;
        let born = number(words.next())?;
        words.next().is_none().then_some(Mark { device, inode, born })
    }
}

fn number<T: FromStr>(word: Option<&str>) -> Option<T> {
    word?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_when_written_then_read_and_other_lines_are_none() {
        let dir = tempfile::tempdir().unwrap();
        let marks = [Mark::of(dir.path()).unwrap(), Mark { device: 1, inode: 2, born: 3 }];
        let text = Mark::write_all(&marks);
        assert_eq!(Mark::read_all(&text), marks);
        assert_eq!(Mark::read_all("socket 1 2\nsocket 1 2 3 4\nsocket 1 2 x\n1 2 3\n\n"), []);
    }
}
