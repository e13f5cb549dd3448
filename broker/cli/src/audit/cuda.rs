//! Which fds of the NVIDIA device are duplicates of the broker's: all have one inode, and only kcmp(2) tells them apart.
//! Must never take an fd for the broker's that the kernel did not say is one.

use super::scan::Scan;
use fdbroker_protocol::MemoryKind;
use std::cmp::Ordering;

/// `KCMP_FILE` (include/uapi/linux/kcmp.h).
const KCMP_FILE: libc::c_int = 0;

/// One fd of one process.
type Place = (u32, i32);

/// Drops every fd of the device that is not a duplicate of one of the broker's: it is the driver's own, or of memory that
/// the broker does not hold.
pub fn keep_those_of_the_broker(scan: &mut Scan, broker: u32) {
    let mut of_broker: Vec<Place> = Vec::new();
    let mut of_others: Vec<Place> = Vec::new();
    for (pid, process) in &scan.processes {
        let fds = process.fds.iter().filter(|fd| fd.key.kind == MemoryKind::CudaVmm);
        let places = fds.map(|memory| (*pid, memory.fd));
        if *pid == broker { of_broker.extend(places) } else { of_others.extend(places) }
    }
    scan.cuda_seen = true;
    let found = match duplicates(&mut of_broker, &of_others, &mut kcmp) {
        Ok(found) => found,
        Err(why) => {
            scan.cuda_seen = false;
            scan.gap(format!("CUDA fds: kcmp(2) does not tell them apart ({why}); run as root"));
            Vec::new()
        }
    };
    for (pid, process) in &mut scan.processes {
        process.fds.retain(|memory| {
            memory.key.kind != MemoryKind::CudaVmm
                || *pid == broker
                || found.binary_search(&(*pid, memory.fd)).is_ok()
        });
    }
}

/// The order in which the kernel has two files; `None`: one of them is gone.
fn kcmp(a: Place, b: Place) -> Result<Option<Ordering>, String> {
    // SAFETY: compares two fds of two processes, touches no memory.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, a.0, b.0, KCMP_FILE, a.1, b.1) };
    match order {
        0 => Ok(Some(Ordering::Equal)),
        1 => Ok(Some(Ordering::Less)),
        2 => Ok(Some(Ordering::Greater)),
        // 3: not equal, and no order is known.
        3 => Err("it knows no order".into()),
        _ => match nix::errno::Errno::last() {
            nix::errno::Errno::ESRCH | nix::errno::Errno::EBADF => Ok(None),
            errno => Err(errno.to_string()),
        },
    }
}

/// Those of `others` that are duplicates of one of `ours`, in their order. Sorted once by the kernel's order, so that a
/// thousand against a thousand cost some 10,000 comparisons and not a million.
fn duplicates(
    ours: &mut [Place],
    others: &[Place],
    compare: &mut impl FnMut(Place, Place) -> Result<Option<Ordering>, String>,
) -> Result<Vec<Place>, String> {
    let mut failed = None;
    if ours.is_empty() || others.is_empty() {
        return Ok(Vec::new());
    }
    ours.sort_by(|a, b| match compare(*a, *b) {
        Ok(order) => order.unwrap_or_else(|| a.cmp(b)),
        Err(why) => {
            failed = Some(why);
            a.cmp(b)
        }
    });
    let mut found = Vec::new();
    for other in others {
        let at = ours.binary_search_by(|our| match compare(*our, *other) {
            Ok(order) => order.unwrap_or_else(|| our.cmp(other)),
            Err(why) => {
                failed = Some(why);
                Ordering::Equal
            }
        });
        if at.is_ok() && failed.is_none() {
            found.push(*other);
        }
    }
    found.sort_unstable();
    failed.map_or(Ok(found), Err)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn duplicates_when_some_are_then_these_alone() {
        // The file behind an fd, in an order that is not that of the numbers.
        let file = |place: Place| (place.1 * 7) % 10;
        let mut compare = |a: Place, b: Place| Ok(Some(file(a).cmp(&file(b))));
        let mut ours: Vec<Place> = (0..5).map(|fd| (1, fd)).collect();
        let others: Vec<Place> = vec![(2, 13), (2, 17), (3, 10), (3, 9)];
        let found = duplicates(&mut ours, &others, &mut compare);
        assert_eq!(found, Ok(vec![(2, 13), (3, 10)]));
    }

    #[test]
    fn duplicates_when_the_kernel_refuses_then_its_reason() {
        let mut refuse = |_: Place, _: Place| Err("no".to_owned());
        assert_eq!(duplicates(&mut [(1, 1)], &[(2, 1)], &mut refuse), Err("no".to_owned()));
        assert_eq!(duplicates(&mut [], &[(2, 1)], &mut refuse), Ok(Vec::new()));
    }

    #[test]
    fn kcmp_when_own_fds_then_a_duplicate_is_equal_and_another_file_is_not() {
        let (a, b) = std::io::pipe().expect("a pipe");
        let copy = a.try_clone().expect("a duplicate");
        let place = |fd: i32| (std::process::id(), fd);
        let is_equal =
            |x: i32, y: i32| kcmp(place(x), place(y)).map(|o| o == Some(Ordering::Equal));
        // A kernel without kcmp(2) says so, and nothing else.
        match is_equal(a.as_raw_fd(), copy.as_raw_fd()) {
            Ok(equal) => assert!(equal),
            Err(why) => return assert!(why.contains("ENOSYS") || why.contains("EPERM"), "{why}"),
        }
        assert_eq!(is_equal(a.as_raw_fd(), b.as_raw_fd()), Ok(false));
        assert_eq!(kcmp(place(a.as_raw_fd()), place(i32::MAX)), Ok(None));
    }
}
