//! Checks whether the broker that the environment names answers and serves this user, by sharing a
//! page with it. Must never leave an allocation in the broker.

use super::check::{Area, Check, Verdict};
use super::hung;
use crate::admin::{Admin, OWN_PART, started_socket, viewing};
use crate::error::{Error, Result};
use crate::records;
use crate::records::StatusView;
use fdbroker_client::{
    Access, Arena, Client, Deadline, Deposit, HostMemory, MemoryKind, default_socket_path,
};
use fdbroker_protocol::ErrorCode;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::sys::stat::fstat;
use nix::unistd::{AccessFlags, access, ftruncate};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const AREA: Area = Area("broker");

/// The check that a broker serves this user.
const SOCKET: &str = "client's socket";

/// Longest wait for an answer. A healthy broker needs a millisecond.
const PATIENCE: Duration = Duration::from_secs(5);

/// Bytes that are shared for the test.
const PAGE_BYTES: usize = 4096;

/// Bytes of a socket's path (unix(7): `sun_path`, and a zero byte at its end).
const LONGEST_PATH: usize = 107;

const START_ONE: &str = "start one: `fdbroker run -- CMD` for a job, systemd/install.sh for the node; or name its socket in FDBROKER_SOCKET";

/// Of a connection: the code's own words are about allocations.
const NOT_LET_IN: &str = "name another broker's socket in FDBROKER_SOCKET, or ask the node's administrator about this one";

pub fn checks() -> Vec<Check> {
    let path = started_socket().unwrap_or_else(default_socket_path);
    let builder =
        Client::builder().socket(&path).name("doctor").own_fds(1).reconnect(false).start(false);
    let mut checks = Vec::new();
    match builder.connect() {
        Ok(client) => {
            checks.push(AREA.ok(SOCKET, format!("{} answers", path.display())));
            let found = "deposited, acquired by its handle, every byte right";
            checks.push(sharing("sharing a page", found, share_a_page(&client)));
            let found = "a page was exported and fetched by its number";
            checks.push(sharing("virtual fds", found, share_by_number(&client)));
        }
        Err(error) => checks.push(unreachable(&path, &error)),
    }
    let status = viewing::connect_quietly().and_then(|mut admin| {
        let (status, path) = (admin.status()?, admin.path().to_owned());
        Ok((StatusView::from(&status), path))
    });
    checks.extend(administration(status));
    checks
}

/// Whether a broker serves this user, by the checks made.
pub fn is_served(checks: &[Check]) -> bool {
    checks.iter().any(|check| check.name == SOCKET && check.verdict == Verdict::Ok)
}

/// The reason why nothing answers, from what is at the path.
fn unreachable(path: &Path, error: &fdbroker_client::Error) -> Check {
    let name = SOCKET;
    let found = format!("{}: {error}", path.display());
    // The error's words about allocations do not apply here.
    let no_access = format!("{}: no access for this user", path.display());
    let folder = path.parent().unwrap_or(path);
    let is_denied = |cause: &std::io::Error| cause.kind() == std::io::ErrorKind::PermissionDenied;
    match (std::fs::metadata(folder), std::fs::metadata(path)) {
        (Err(cause), _) | (_, Err(cause)) if is_denied(&cause) => {
            AREA.fail(name, no_access, format!("this user may not enter {}: see its mode and owner", folder.display()))
        }
        (_, Err(_)) if path.as_os_str().len() > LONGEST_PATH => {
            AREA.fail(name, found, "name a shorter path in FDBROKER_SOCKET")
        }
        (_, Err(_)) => AREA.warn(name, format!("{}: no broker here", path.display()), START_ONE),
        (_, Ok(socket)) if access(path, AccessFlags::W_OK) == Err(Errno::EACCES) => AREA.fail(
            name,
            no_access,
            format!(
                "it belongs to uid {} with mode {:o}: run this as that user, or give the listener a wider `mode` in the broker's configuration",
                socket.uid(),
                socket.mode() & 0o7777
            ),
        ),
        (_, Ok(_)) if error.code == ErrorCode::NotConnected && listener(path).is_some() => {
            // It has not answered.
            AREA.fail(name, found, continue_it(&hung::stopped(listener(path).unwrap_or(0))))
        }
        (_, Ok(socket)) if error.code == ErrorCode::NotConnected => AREA.fail(
            name,
            found,
            format!(
                "it belongs to uid {} with mode {:o}: if this user may write to it, its broker is gone; start it again",
                socket.uid(),
                socket.mode() & 0o7777
            ),
        ),
        (_, Ok(_)) if error.code == ErrorCode::NotPermitted => AREA.fail(name, found, NOT_LET_IN),
        (_, Ok(_)) => AREA.fail(name, found, error.code.remedy()),
    }
}

/// Who listens at a socket.
fn listener(path: &Path) -> Option<i32> {
    let socket = Admin::connect(path).ok()?;
    Some(getsockopt(&socket, PeerCredentials).map_or(0, |peer| peer.pid()))
}

/// What to do about a broker that listens and does not answer. `stopped`: the pids of stopped
/// brokers.
fn continue_it(stopped: &[String]) -> String {
    match stopped {
        [] => "it hangs or is overloaded: see its process and its log, or restart it".into(),
        pids => {
            let (many, pids) = (pids.len() > 1, pids.join(" "));
            let which = if many { "these brokers are" } else { "it is" };
            format!("{which} stopped (SIGSTOP, or a debugger): continue with `kill -CONT {pids}`")
        }
    }
}

/// Deposits a page of host memory, gets it back by its handle, and reads it.
fn share_a_page(client: &Client) -> std::result::Result<(), fdbroker_client::Error> {
    let patience = || Deadline::after(PATIENCE);
    let arena = Arena::new(client, HostMemory::Memfd, PAGE_BYTES)?;
    let buffer = arena.alloc(PAGE_BYTES)?;
    let written: Vec<u8> = (0..=u8::MAX).cycle().take(PAGE_BYTES).collect();
    buffer.write_at(0, &written)?;
    for handle in arena.register(std::slice::from_ref(&buffer), patience())? {
        let import = client.acquire(&handle?, patience())?.import(Access::Read, 0)?;
        let mut read = vec![0; PAGE_BYTES];
        import.read_at(0, &mut read)?;
        if read != written {
            let context = "what was read through the broker is not what was written";
            return Err(fdbroker_client::Error::new(ErrorCode::Internal, context));
        }
    }
    Ok(())
}

/// Deposits a page of host memory for a virtual fd, and gets it back by the number, as programs
/// under a layer do.
fn share_by_number(client: &Client) -> std::result::Result<(), fdbroker_client::Error> {
    let patience = || Deadline::after(PATIENCE);
    let memory = memfd_create("doctor", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING);
    let memory = memory.and_then(|memory| {
        ftruncate(&memory, PAGE_BYTES as i64)?;
        fcntl(&memory, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL))?;
        Ok(memory)
    });
    let memory = memory
        .map_err(|errno| fdbroker_client::Error::new(ErrorCode::Internal, errno.to_string()))?;
    let deposit = Deposit::new(MemoryKind::Memfd, PAGE_BYTES as u64).virtual_fd(true);
    let registration = client.register(&deposit, memory.as_fd(), patience())?;
    let number = registration.virtual_fd().ok_or_else(|| {
        fdbroker_client::Error::new(ErrorCode::NotSupported, "the broker gave no virtual fd")
    })?;
    let grant = client.acquire_virtual(number, patience())?;
    let is_same = same_file(&grant.fd, &memory);
    drop(grant);
    client.unregister(&registration)?;
    if is_same {
        Ok(())
    } else {
        let context = "another file came for the number";
        Err(fdbroker_client::Error::new(ErrorCode::Internal, context))
    }
}

fn same_file(one: &OwnedFd, other: &OwnedFd) -> bool {
    let number = |fd: &OwnedFd| fstat(fd).map(|file| (file.st_dev, file.st_ino));
    number(one).is_ok_and(|one| number(other) == Ok(one))
}

fn sharing(
    name: &'static str,
    found: &str,
    outcome: std::result::Result<(), fdbroker_client::Error>,
) -> Check {
    match outcome {
        Ok(()) => AREA.ok(name, found),
        Err(error) => AREA.fail(name, error.to_string(), error.code.remedy()),
    }
}

/// Checks the admin socket, and how much of the caps is used.
fn administration(status: Result<(StatusView, PathBuf)>) -> Vec<Check> {
    let name = "administrator's socket";
    let (status, path) = match status {
        Ok(found) => found,
        // Reported already.
        Err(Error::NoBroker { .. }) => return Vec::new(),
        Err(error @ Error::Denied { .. }) => {
            let remedy = "status, ls and audit are for the broker's user and root: use sudo";
            return vec![AREA.warn(name, error.to_string(), remedy)];
        }
        Err(error @ Error::Stranger { .. }) => {
            return vec![AREA.fail(name, error.to_string(), NOT_LET_IN)];
        }
        Err(error) => return vec![AREA.fail(name, error.to_string(), "see the broker's log")],
    };
    let whose = if status.scope == OWN_PART { ", your own part" } else { "" };
    let found = format!(
        "{} answers{whose}: pid {}, {} connections",
        path.display(),
        status.pid,
        status.uses.connections.now
    );
    let near = status.nearly_full().map(|(resource, used, cap)| {
        let show = |number| records::amount(resource, number);
        let reserved = match used.reserved {
            0 => String::new(),
            reserved => format!(", {} of them reserved", show(reserved)),
        };
        let found = format!("{} of {} {resource}{reserved}", show(used.counted()), show(cap));
        AREA.warn("caps", found, "see who has them with `fdbroker clients` and `fdbroker holders`; raise the cap, or wait")
    });
    let mut checks = vec![AREA.ok(name, found)];
    checks.extend(near);
    let refused = status.config_warning();
    checks.extend(refused.map(|found| AREA.fail("configuration", found, "mend the file")));
    let remedy = "see SECURITY.md, \"The places of sockets\": mount their directory into containers for reading alone";
    checks.extend(
        status.sockets_warning().map(|found| AREA.warn("places of sockets", found, remedy)),
    );
    checks
}
