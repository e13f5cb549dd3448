//! Finds duplicates of the broker's CUDA fds. All fds of the NVIDIA device have one inode; only
//! kcmp(2) tells them apart. Must never take an fd for a duplicate unless the kernel says so.

#[cfg(test)]
mod tests;

use super::kcmp::{Question, kcmp};
use super::process::{MemoryFd, Scan};
use std::cmp::Ordering;
use std::collections::HashMap;

/// An fd of a process.
type Place = (u32, i32);

/// The order of two files; `None`: one of them is gone.
type Compare<'a> = dyn FnMut(Place, Place) -> Result<Option<Ordering>, String> + 'a;

/// A file, named by the broker's lowest fd of it.
type FileNumber = u64;

/// Names the file of each CUDA fd that is a duplicate of a broker's fd, and drops all others: they
/// belong to the driver, or to memory that the broker does not hold.
pub fn tell_apart(scan: &mut Scan, broker: u32) {
    let mut of_broker: Vec<Place> = Vec::new();
    let mut of_others: Vec<Place> = Vec::new();
    for (pid, process) in &scan.processes {
        let fds = process.fds.iter().filter(|fd| !fd.key.kind.has_own_inode());
        let places = fds.map(|memory| place(*pid, memory));
        if *pid == broker { of_broker.extend(places) } else { of_others.extend(places) }
    }
    scan.cuda_seen = true;
    let mut files: HashMap<Place, FileNumber> =
        of_broker.iter().map(|place| (*place, number(*place))).collect();
    match self::files(of_broker, &of_others, &mut |a, b| kcmp(Question::File, a, b)) {
        Ok(found) => files.extend(found),
        Err(why) => {
            scan.cuda_seen = false;
            scan.gap(format!("CUDA fds: kcmp(2) does not tell them apart ({why}); run as root"));
        }
    }
    for (pid, process) in &mut scan.processes {
        process.fds.retain_mut(|memory| {
            if memory.key.kind.has_own_inode() {
                return true;
            }
            let file = files.get(&place(*pid, memory));
            memory.key.number = file.copied().unwrap_or(0);
            file.is_some()
        });
    }
    let of_broker = files.into_iter().filter(|(place, _)| place.0 == broker);
    scan.cuda_files = of_broker.map(|(place, file)| (number(place), file)).collect();
}

/// kcmp(2) takes the number of any thread for the fd table of the thread.
fn place(pid: u32, memory: &MemoryFd) -> Place {
    (if memory.thread == 0 { pid } else { memory.thread }, memory.fd)
}

fn number(place: Place) -> FileNumber {
    u64::try_from(place.1).unwrap_or(0)
}

/// The files of `ours`, and of all `others` that are duplicates of one of them. `ours` is sorted
/// once in the kernel's order: a thousand against a thousand cost some 20,000 comparisons, not a
/// million.
fn files(
    ours: Vec<Place>,
    others: &[Place],
    compare: &mut Compare<'_>,
) -> Result<Vec<(Place, FileNumber)>, String> {
    if ours.is_empty() || ours.len() + others.len() < 2 {
        return Ok(Vec::new());
    }
    let ours = sorted(ours, compare)?;
    // Fds of one file are neighbours now.
    let mut lowest: Vec<FileNumber> = Vec::new();
    let mut found: Vec<(Place, usize)> = Vec::with_capacity(ours.len());
    for place in &ours {
        let is_same = match found.last() {
            Some((last, _)) => compare(*last, *place)? == Some(Ordering::Equal),
            None => false,
        };
        match lowest.last_mut().filter(|_| is_same) {
            Some(lowest) => *lowest = number(*place).min(*lowest),
            None => lowest.push(number(*place)),
        }
        found.push((*place, lowest.len() - 1));
    }
    let mut found: Vec<_> = found.into_iter().map(|(place, file)| (place, lowest[file])).collect();
    for other in others {
        let mut failed = None;
        let at = ours.binary_search_by(|our| match compare(*our, *other) {
            Ok(order) => order.unwrap_or_else(|| our.cmp(other)),
            Err(why) => {
                failed = Some(why);
                Ordering::Equal
            }
        });
        match (failed, at) {
            (Some(why), _) => return Err(why),
            (None, Ok(at)) => found.push((*other, found[at].1)),
            (None, Err(_)) => {}
        }
    }
    Ok(found)
}

/// Sorts in the kernel's order, without fds that have been closed meanwhile. [`slice::sort_by`] may
/// panic here: fds that come and go have no order.
fn sorted(mut places: Vec<Place>, compare: &mut Compare<'_>) -> Result<Vec<Place>, String> {
    if places.len() < 2 {
        return Ok(places);
    }
    let right = places.split_off(places.len() / 2);
    let mut merged = Vec::with_capacity(places.len() + right.len());
    let mut left = sorted(places, compare)?.into_iter().peekable();
    let mut right = sorted(right, compare)?.into_iter().peekable();
    while let (Some(a), Some(b)) = (left.peek().copied(), right.peek().copied()) {
        match compare(a, b)? {
            Some(Ordering::Greater) => merged.extend(right.next()),
            Some(_) => merged.extend(left.next()),
            None if compare(a, a)?.is_none() => drop(left.next()),
            None => drop(right.next()),
        }
    }
    merged.extend(left.chain(right));
    Ok(merged)
}
