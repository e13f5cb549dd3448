//! Talks to the helper that holds this process's memory. Must never keep an fd of that memory: the
//! caller owns those that it gets.

use crate::answer::Failure;
use crate::devices::Place;
use crate::limits::HELPER_TIMEOUT;
use crate::protocol::{MESSAGE_BYTES, Request, reply_from_bytes};
use crate::settings::{Exports, settings};
use fdbroker_scm::{ReceivedFds, RecvError, recv_timeout, send_timeout, seqpacket_pair};
use std::ffi::{CStr, OsStr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The helper's number of one piece of memory.
pub type MemoryId = u64;

/// Starts the helper, unless it is running.
pub fn start() -> Result<(), Failure> {
    if helper()?.process == std::process::id() {
        Ok(())
    } else {
        Err(level_zero_sys::ze_result_t::ZE_RESULT_ERROR_UNINITIALIZED.into())
    }
}

/// Makes memory at a place; answers its id and an fd to map it.
pub fn allocate(bytes: usize, place: Option<Place>) -> Result<(MemoryId, OwnedFd), Failure> {
    let place = place.map_or(0, Place::number);
    let (id, fd) = ask(Request::Allocate(bytes as u64, place), None)?;
    Ok((id, fd.ok_or(Failure::FdLimit)?))
}

/// Has the helper hold the memory of another process's fd.
pub fn keep(fd: BorrowedFd<'_>) -> Result<MemoryId, Failure> {
    ask(Request::Keep, Some(fd)).map(|(id, _)| id)
}

/// The place of the memory of an fd; `None`: it is host memory, or no memfd of a helper.
pub fn place(fd: BorrowedFd<'_>) -> Option<Place> {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?;
    let number = link.to_str()?.strip_prefix("/memfd:ze-test-memory@")?.split(' ').next()?;
    Place::from_number(number.parse().ok()?)
}

/// An fd of memory at the helper, allocated or kept.
pub fn export(id: MemoryId, imported: bool) -> Result<OwnedFd, Failure> {
    let exports = settings().map_or(Exports::Memfd, |settings| settings.exports);
    let request = match exports {
        Exports::Udmabuf if !imported => Request::ExportUdmabuf(id),
        _ => Request::Export(id),
    };
    ask(request, None)?.1.ok_or(Failure::FdLimit)
}

/// Has the helper forget the memory. Other holders keep it.
pub fn free(id: MemoryId) {
    if let Err(failure) = ask(Request::Free(id), None) {
        crate::trace::line(format_args!("memory {id} was not freed: {failure}"));
    }
}

struct Helper {
    /// Locked for one request and its reply.
    socket: Mutex<OwnedFd>,
    /// The pid of the process that it serves. A forked child has no Level Zero, but may export what
    /// its parent has, as with the kernel's buffers, while its parent waits for it.
    process: u32,
}

fn helper() -> Result<&'static Helper, Failure> {
    static HELPER: OnceLock<Result<Helper, String>> = OnceLock::new();
    let helper = HELPER.get_or_init(spawn).as_ref().map_err(|error| {
        crate::trace::line(format_args!("{error}"));
        Failure::Answer(level_zero_sys::ze_result_t::ZE_RESULT_ERROR_DEPENDENCY_UNAVAILABLE)
    })?;
    Ok(helper)
}

fn spawn() -> Result<Helper, String> {
    let program = settings()?.helper.clone().or_else(beside_this_library);
    let program = program.ok_or("where this library lies is unknown; set ZE_TEST_DRIVER_HELPER")?;
    let (ours, theirs) = seqpacket_pair().map_err(|error| format!("socketpair: {error}"))?;
    // The helper goes to the background at once, so this wait is short and no child stays behind.
    let status = Command::new(&program)
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .env_clear()
        .status();
    match status {
        Ok(status) if status.success() => {
            Ok(Helper { socket: Mutex::new(ours), process: std::process::id() })
        }
        Ok(status) => Err(format!("the helper {} ended with {status}", program.display())),
        Err(error) => Err(format!(
            "the helper {} did not start: {error}; build the package fdbroker-ze-test-driver",
            program.display()
        )),
    }
}

/// The path of `ze-test-memory` in the folder of this library; dladdr(3).
fn beside_this_library() -> Option<PathBuf> {
    // SAFETY: plain data, for which all zero is a value.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: an address in this very object, and a structure to fill in.
    let known = unsafe { libc::dladdr(beside_this_library as *const libc::c_void, &raw mut found) };
    if known == 0 || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr answers a name that lives as long as this object is loaded.
    let name = unsafe { CStr::from_ptr(found.dli_fname) };
    let path = Path::new(OsStr::from_bytes(name.to_bytes()));
    Some(path.parent()?.join("ze-test-memory"))
}

fn ask(request: Request, fd: Option<BorrowedFd<'_>>) -> Result<(u64, Option<OwnedFd>), Failure> {
    let helper = helper()?;
    let exports = matches!(request, Request::Export(_) | Request::ExportUdmabuf(_));
    if helper.process != std::process::id() && !exports {
        return Err(level_zero_sys::ze_result_t::ZE_RESULT_ERROR_UNINITIALIZED.into());
    }
    let socket = helper.socket.lock().unwrap_or_else(PoisonError::into_inner);
    let wait = Some(HELPER_TIMEOUT);
    send_timeout(socket.as_fd(), &request.to_bytes(), fd.as_slice(), wait).map_err(|error| {
        Failure::Os { what: "ask the helper", source: std::io::Error::other(error) }
    })?;
    let mut bytes = [0; MESSAGE_BYTES];
    let mut fds = ReceivedFds::with_capacity(1);
    let message = recv_timeout(socket.as_fd(), &mut bytes, &mut fds, wait).map_err(gone)?;
    if message.len != MESSAGE_BYTES {
        return Err(Failure::os("the helper's reply", libc::EPROTO));
    }
    match reply_from_bytes(bytes) {
        Ok(_) if message.fds_truncated => Err(Failure::FdLimit),
        Ok(value) => Ok((value, fds.pop_front())),
        Err(errno) => Err(Failure::Os {
            what: "the helper",
            source: std::io::Error::from_raw_os_error(errno),
        }),
    }
}

fn gone(error: RecvError) -> Failure {
    crate::trace::line(format_args!("the helper is gone: {error}"));
    Failure::Answer(level_zero_sys::ze_result_t::ZE_RESULT_ERROR_DEVICE_LOST)
}
