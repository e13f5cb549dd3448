//! Checks features of the kernel, and what it allows this process. Must never touch another
//! process.

#[cfg(test)]
mod tests;

use super::check::{Area, Check, number_in};
use fdbrokerd::kernel::{KernelFeatures, pidfd_open};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const AREA: Area = Area("kernel");

pub fn checks() -> Vec<Check> {
    let mut checks = features(KernelFeatures::detect());
    checks.push(memfds());
    checks.push(fd_fetching(fetch_own_fd(), number_in("/proc/sys/kernel/yama/ptrace_scope")));
    checks.push(proc_visibility(std::fs::read_to_string("/proc/self/mounts").ok().as_deref()));
    checks
}

fn features(detected: io::Result<KernelFeatures>) -> Vec<Check> {
    let found = match detected {
        Ok(found) => found,
        Err(error) => {
            let remedy = "free some fds, or raise `ulimit -n`";
            return vec![AREA.fail("features", format!("cannot be asked for: {error}"), remedy)];
        }
    };
    let one = |name, has: bool, since: &str, without: &str| match has {
        true => AREA.ok(name, "yes"),
        false => AREA.warn(
            name,
            format!("no: {without}"),
            format!("Linux {since} has it; the broker works without"),
        ),
    };
    vec![
        one(
            "SO_PEERPIDFD",
            found.peer_pidfd,
            "6.5",
            "the death of a client whose socket has an heir is seen by its pid, or late",
        ),
        one("F_DUPFD_QUERY", found.dupfd_query, "6.10", "fds of one file are told by kcmp(2)"),
        one(
            "SO_PASSRIGHTS",
            found.pass_rights,
            "6.16",
            "fds that nobody asked for are received and closed",
        ),
    ]
}

/// Checks sealed memfds, which host memory is shared by.
fn memfds() -> Check {
    use nix::sys::memfd::{MFdFlags, memfd_create};
    let name = "sealed memfd";
    match memfd_create("doctor", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING) {
        Ok(_) => AREA.ok(name, "yes"),
        Err(error) => AREA.fail(
            name,
            format!("memfd_create(2) says {error}"),
            "a seccomp profile forbids it: allow memfd_create for this container",
        ),
    }
}

/// Tries pidfd_getfd(2) on this process. Yama always allows that, so a refusal comes from seccomp.
fn fetch_own_fd() -> io::Result<()> {
    let any = std::fs::File::open("/")?;
    let pidfd = pidfd_open(std::process::id()).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: takes three numbers, touches no memory.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), any.as_raw_fd(), 0) };
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the kernel has just returned this fd, and nothing else owns it.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    Ok(())
}

/// Checks what libraries without a broker need to share memory. fdbroker itself needs neither.
fn fd_fetching(own: io::Result<()>, yama: Option<u64>) -> Check {
    let name = "pidfd_getfd";
    let remedy = "fdbroker needs no such right: share by its handles (`fdbroker run`), instead of drmfd or pidfd exchange";
    match (own, yama) {
        (Err(error), _) => {
            AREA.warn(name, format!("refused by seccomp, or absent ({error}): direct exchange of fds fails"), remedy)
        }
        (Ok(()), None | Some(0)) => AREA.ok(name, "allowed between processes of one user"),
        (Ok(()), Some(1)) => AREA.warn(
            name,
            "Yama allows it for one's own children only (kernel.yama.ptrace_scope = 1): direct exchange of fds fails",
            remedy,
        ),
        (Ok(()), Some(scope)) => AREA.warn(
            name,
            format!("Yama allows it for root at most (kernel.yama.ptrace_scope = {scope}): direct exchange of fds fails"),
            remedy,
        ),
    }
}

/// Checks whether `audit` can see other processes. `mounts`: the text of /proc/self/mounts, `None`
/// if it cannot be read.
fn proc_visibility(mounts: Option<&str>) -> Check {
    let name = "/proc of others";
    let Some(mounts) = mounts else {
        return AREA.warn(
            name,
            "no /proc here: `fdbroker audit` sees no process, and namespaces cannot be told",
            "mount it: `mount -t proc proc /proc`",
        );
    };
    let options = mounts.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.nth(1) == Some("/proc")).then(|| words.nth(1)).flatten()
    });
    let hiding =
        options.and_then(|options| options.split(',').find_map(|it| it.strip_prefix("hidepid=")));
    match hiding {
        None | Some("0" | "off") => AREA.ok(name, "visible"),
        Some(value) => AREA.warn(
            name,
            format!("hidden (hidepid={value}): `fdbroker audit` sees processes of this user only"),
            "run `fdbroker audit` as root, or be of the group of the mount option gid=",
        ),
    }
}
