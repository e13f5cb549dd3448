//! What root of a container does that has the directory of the clients' socket mounted for writing:
//! it removes the socket and puts other things in its place, without a pause. Must leave the
//! directory as it was.

use crate::attack::Attack;
use crate::wire::stopped;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, Instant};

/// Time between two deeds.
const PAUSE: Duration = Duration::from_millis(20);

/// Longer than the broker waits before it puts back what was removed again and again.
const PATIENCE: Duration = Duration::from_secs(30);

/// Files made for each deed.
const FILES: usize = 100;

fn inode(path: &Path) -> Option<u64> {
    std::fs::symlink_metadata(path).ok().map(|found| found.ino())
}

/// Removes whatever stands there.
fn clear(path: &Path) {
    let _ = std::fs::remove_file(path).or_else(|_| std::fs::remove_dir_all(path));
}

/// Replaces the socket by nothing, a file, a directory and a server of its own in turn, and floods
/// the directory with files.
pub fn replace(attack: &mut Attack) {
    let path = attack.socket.clone();
    let directory = path.parent().expect("a directory").to_owned();
    let before = inode(&path);
    attack.begin();
    let mut servers = Vec::new();
    while !stopped() {
        clear(&path);
        match attack.tally.tries % 4 {
            0 => {}
            1 => drop(File::create(&path)),
            2 => drop(std::fs::create_dir(&path)),
            _ => servers.extend(UnixListener::bind(&path)),
        }
        for number in 0..FILES {
            let file = directory.join(format!("flood-{number}"));
            let _ = File::create(&file).and_then(|_| std::fs::remove_file(&file));
        }
        servers.drain(..servers.len().saturating_sub(8));
        attack.tally.tries += 1;
        std::thread::sleep(PAUSE);
    }
    let until = Instant::now() + PATIENCE;
    while inode(&path) != before && Instant::now() < until {
        std::thread::sleep(PAUSE);
    }
    attack.tally.wrong += u64::from(inode(&path) != before);
    // Directories that the broker has moved away.
    for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}
