//! The same work with plain files in /dev/shm. Must never leave one behind.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

/// A folder of files, which goes away with this value.
pub struct Files {
    folder: tempfile::TempDir,
    written: usize,
}

impl Files {
    /// So many empty files.
    pub fn new(count: usize) -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").expect("/dev/shm");
        let mut files = Files { folder, written: 0 };
        files.write(count, 0);
        files
    }

    fn path(&self, number: usize) -> PathBuf {
        self.folder.path().join(number.to_string())
    }

    /// Makes more files of this size.
    pub fn write(&mut self, count: usize, bytes: u64) {
        let bytes = vec![0x5a; usize::try_from(bytes).expect("small")];
        for number in self.written..self.written + count {
            let mut file = File::create_new(self.path(number)).expect("a new file");
            file.write_all(&bytes).expect("written");
        }
        self.written += count;
    }

    /// Opens and closes one of them.
    pub fn open(&self, number: usize) {
        drop(File::open(self.path(number * 7919 % self.written)).expect("it is there"));
    }

    /// Reads all names.
    pub fn list(&self) -> usize {
        std::fs::read_dir(self.folder.path()).expect("a folder").count()
    }
}
