//! Sending one message: all of it or nothing. It must never block unless asked to, never raise
//! SIGPIPE, and never take or close the caller's fds.

use std::mem::{self, MaybeUninit};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr;
use std::time::Duration;

use crate::cmsg::{HEADER_LEN, MAX_FDS, len_for};
use crate::error::{SendError, last_errno};
use crate::socket::{Deadline, wait};

/// The longest wait for a writable socket before the send is tried again all the same: the kernel
/// calls a Unix socket writable only when a quarter or less of its buffer is in use, while a send
/// succeeds as long as the buffer is not full, so waiting for "writable" alone may be too long.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// The pauses between attempts while too many fds are in flight, doubled from the first to the
/// last: no event announces the end of that state. Short against a request, long against a system
/// call.
const FIRST_REFS_PAUSE: Duration = Duration::from_millis(1);
const LAST_REFS_PAUSE: Duration = Duration::from_millis(16);

/// Sends one message of `bytes` (1 to about `SO_SNDBUF`) and `fds` (0 to [`MAX_FDS`]) without
/// blocking, whatever the socket's mode. All or nothing. The caller keeps its fds; the kernel has
/// taken references of its own, so they may be closed at once.
///
/// # Errors
/// See [`SendError`]; in every case nothing was sent.
pub fn send(sock: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), SendError> {
    check(bytes, fds)?;
    loop {
        match send_once(sock, bytes, fds) {
            Ok(()) => return Ok(()),
            Err(libc::EINTR) => {}
            Err(errno) => return Err(SendError::from_errno(errno)),
        }
    }
}

/// The same as [`send`], waiting for room until `timeout` (`None` = for ever) has passed. It also
/// waits while too many fds are in flight. A timeout of zero tries once.
///
/// # Errors
/// See [`SendError`]; never `WouldBlock` nor `TooManyRefs`, which become `TimedOut`.
pub fn send_timeout(
    sock: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    timeout: Option<Duration>,
) -> Result<(), SendError> {
    let deadline = Deadline::after(timeout);
    let mut refs_pause = FIRST_REFS_PAUSE;
    loop {
        let (events, pause) = match send(sock, bytes, fds) {
            Err(SendError::WouldBlock) => (libc::POLLOUT, RETRY_INTERVAL),
            Err(SendError::TooManyRefs) => {
                let pause = refs_pause;
                refs_pause = (refs_pause * 2).min(LAST_REFS_PAUSE);
                // No event asked for, but the peer's death still ends the pause.
                (0, pause)
            }
            done => return done,
        };
        if deadline.is_over() {
            return Err(SendError::TimedOut);
        }
        let pause = deadline.left().map_or(pause, |left| left.min(pause));
        wait(sock, events, Some(pause)).map_err(SendError::Os)?;
    }
}

/// Checks that need no system call.
pub(crate) fn check(bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), SendError> {
    if bytes.is_empty() {
        return Err(SendError::Empty);
    }
    if fds.len() > MAX_FDS {
        return Err(SendError::TooManyFds);
    }
    Ok(())
}

/// Room for one control message with the most fds; only what is used is written.
#[repr(C)]
union Control {
    header: libc::cmsghdr,
    bytes: [MaybeUninit<u8>; len_for(MAX_FDS)],
}

fn send_once(sock: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), i32> {
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: `msghdr` is plain data for which all zeroes is the empty value.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;

    let mut control = MaybeUninit::<Control>::uninit();
    if !fds.is_empty() {
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = put_rights(&mut control, fds) as _;
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // Past the C library, before whose function a layer may stand that looks for virtual fds: there
    // are none here. SAFETY: `message` points to `bytes` and `control`, which outlive the call, and
    // to the initialised part of `control` only; the kernel only reads them.
    let sent =
        unsafe { libc::syscall(libc::SYS_sendmsg, sock.as_raw_fd(), &raw const message, flags) };
    if sent < 0 {
        return Err(last_errno());
    }
    debug_assert_eq!(usize::try_from(sent), Ok(bytes.len()), "SEQPACKET sends all or nothing");
    Ok(())
}

/// Writes one `SCM_RIGHTS` control message; returns its length in bytes, all of them initialised.
/// The caller has checked that `fds` has at most [`MAX_FDS`].
fn put_rights(control: &mut MaybeUninit<Control>, fds: &[BorrowedFd<'_>]) -> usize {
    assert!(fds.len() <= MAX_FDS);
    let len = len_for(fds.len());
    // SAFETY: `cmsghdr` is plain data for which all zeroes is valid.
    let mut header: libc::cmsghdr = unsafe { mem::zeroed() };
    header.cmsg_len = len as _;
    header.cmsg_level = libc::SOL_SOCKET;
    header.cmsg_type = libc::SCM_RIGHTS;
    let start = control.as_mut_ptr();
    // SAFETY: the union is aligned for and large enough to hold a header followed by MAX_FDS
    // ints, and there are no more (asserted). `BorrowedFd` is documented as `repr(transparent)`
    // over a host file descriptor.
    unsafe {
        start.cast::<libc::cmsghdr>().write(header);
        let data = start.cast::<u8>().add(HEADER_LEN).cast::<RawFd>();
        ptr::copy_nonoverlapping(fds.as_ptr().cast::<RawFd>(), data, fds.len());
    }
    len
}
