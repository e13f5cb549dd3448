//! Fds that the program sends by their virtual numbers (SCM_RIGHTS): from its first message on the
//! driver's fd of its last export is open until that is sent. Must never take an fd of other memory
//! for the right one.

use crate::exporting::{has_put, put_if_there};
use crate::fault::{Fault, Outcome, holds, same};
use crate::gpu::{Gpu, handle_fd, is_open, pattern};
use crate::peer::PEER_TIMEOUT;
use crate::shapes::{SMALL, export_small};
use fdbroker_scm::{ReceivedFds, recv_timeout, send_timeout, seqpacket_pair};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::ForkResult;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

type Sockets = (OwnedFd, OwnedFd);

/// Sends a number as an fd; an error: it is none.
fn send(sockets: &Sockets, number: RawFd) -> Outcome {
    // SAFETY: only a number, good or not.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    Ok(send_timeout(sockets.0.as_fd(), b"fd", &[fd], Some(PEER_TIMEOUT))?)
}

/// The first bytes of the memory that has come.
fn received(sockets: &Sockets) -> Result<Vec<u8>, Fault> {
    let mut fds = ReceivedFds::with_capacity(1);
    let _length = recv_timeout(sockets.1.as_fd(), &mut [0; 2], &mut fds, Some(PEER_TIMEOUT))?;
    let fd = fds.pop_front().ok_or("no fd came")?;
    let length = NonZeroUsize::new(SMALL).ok_or("no bytes")?;
    // SAFETY: a new mapping, of memory that another process may change: that is what is looked at.
    unsafe {
        let at = mmap(None, length, ProtFlags::PROT_READ, MapFlags::MAP_SHARED, &fd, 0)?;
        let bytes = std::slice::from_raw_parts(at.as_ptr().cast::<u8>(), SMALL).to_vec();
        munmap(at, SMALL)?;
        Ok(bytes)
    }
}

/// What is sent by a number has the bytes of this salt.
fn is_sent(sockets: &Sockets, number: RawFd, salt: u16) -> Outcome {
    send(sockets, number)?;
    is_received(sockets, salt)
}

fn is_received(sockets: &Sockets, salt: u16) -> Outcome {
    holds(received(sockets)? == pattern(SMALL, salt), || format!("not the bytes of {salt}"))
}

/// Sockets over which the program has sent an fd.
fn sockets_of_a_sender(gpu: &Gpu) -> Result<Sockets, Fault> {
    let sockets = seqpacket_pair()?;
    let (memory, handle) = export_small(gpu, 7)?;
    is_sent(&sockets, handle_fd(handle), 7)?;
    gpu.free(memory)?;
    Ok(sockets)
}

fn open_fds() -> Result<Vec<RawFd>, Fault> {
    let all = std::fs::read_dir("/proc/self/fd")?;
    let mut all: Vec<_> =
        all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    // Not the folder's own.
    all.retain(|fd| is_open(*fd));
    Ok(all)
}

/// The program has put another file in the place of the driver's fd that waits: it is the broker's
/// that is sent.
pub fn its_fd_taken(gpu: &Gpu) -> Outcome {
    let sockets = sockets_of_a_sender(gpu)?;
    let file = std::fs::File::open("/dev/null")?;
    let before = open_fds()?;
    let (memory, handle) = export_small(gpu, 1)?;
    let mut new = open_fds()?;
    new.retain(|fd| !before.contains(fd));
    let [waits] = new[..] else { Err(format!("not one fd is new: {new:?}"))? };
    // SAFETY: the driver's fd: that it is lost is what is tested. The driver closes what is there.
    let placed = unsafe { libc::dup2(file.as_raw_fd(), waits) };
    same("its place", placed, waits)?;
    for _ in 0..2 {
        is_sent(&sockets, handle_fd(handle), 1)?;
    }
    put_if_there(gpu, handle)?;
    Ok(gpu.free(memory)?)
}

/// A child of fork(2) sends what its parent has exported, and the parent after it.
pub fn forked(gpu: &Gpu) -> Outcome {
    let sockets = sockets_of_a_sender(gpu)?;
    let (memory, handle) = export_small(gpu, 1)?;
    // SAFETY: this process has one thread but for the layer's, whose locks a child must not need.
    match unsafe { nix::unistd::fork() }? {
        ForkResult::Child => {
            let is_wrong = send(&sockets, handle_fd(handle)).is_err();
            // SAFETY: ends the child without the parent's exit handlers.
            unsafe { libc::_exit(is_wrong.into()) }
        }
        ForkResult::Parent { child } => {
            is_received(&sockets, 1)?;
            same("the child's end", waitpid(child, None)?, WaitStatus::Exited(child, 0))?;
        }
    }
    is_sent(&sockets, handle_fd(handle), 1)?;
    if has_put()? {
        same("fds in the driver", gpu.counters()?.exported_fds, 0)?;
    }
    Ok(gpu.free(memory)?)
}

/// Threads export, send, Put and free, each its own, while another sends what one of them has
/// exported last: it gets that memory or an error.
pub fn threads(_: &Gpu) -> Outcome {
    const THREADS: u16 = 4;
    const ROUNDS: u16 = 100;
    let (last, is_done) = (Mutex::new((-1, 0)), AtomicBool::new(false));
    let look = |_: ()| -> Result<u32, Fault> {
        let (sockets, mut right) = (seqpacket_pair()?, 0);
        while !is_done.load(Ordering::Relaxed) {
            let (number, salt) = *last.lock().map_err(|_| "a panic")?;
            if number >= 0 && send(&sockets, number).is_ok() {
                is_received(&sockets, salt)?;
                right += 1;
            }
        }
        Ok(right)
    };
    let work = |thread: u16| -> Outcome {
        let (gpu, sockets) = (Gpu::open()?, seqpacket_pair()?);
        for salt in thread * ROUNDS..(thread + 1) * ROUNDS {
            let (memory, handle) = export_small(&gpu, salt.into())?;
            *last.lock().map_err(|_| "a panic")? = (handle_fd(handle), salt);
            if salt % 3 > 0 {
                is_sent(&sockets, handle_fd(handle), salt)?;
            }
            if salt % 2 > 0 {
                put_if_there(&gpu, handle)?;
            }
            gpu.free(memory)?;
        }
        Ok(())
    };
    let right = std::thread::scope(|scope| {
        let looks = scope.spawn(|| look(()));
        let all: Vec<_> = (0..THREADS).map(|at| scope.spawn(move || work(at))).collect();
        let done = all.into_iter().try_for_each(|one| one.join().map_err(|_| "a panic")?);
        is_done.store(true, Ordering::Relaxed);
        let right = looks.join().map_err(|_| "a panic")??;
        done.map(|()| right)
    })?;
    holds(right > 0, || "the other thread has sent nothing".to_string())
}
