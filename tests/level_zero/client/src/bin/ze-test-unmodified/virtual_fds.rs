//! What a program sees of virtual fds, and what the exporter holds. Must never take a handle that
//! was refused for one that shows other memory.

use crate::broker;
use crate::exporting::{has_put, is_refused, is_shared, put_if_there};
use crate::fault::{Fault, Outcome, holds, refused, same};
use crate::gpu::{Gpu, handle_fd, is_open, is_virtual, pattern};
use crate::peer::{Order, Peer, count_fds};
use crate::shapes::{FULL, Found, SMALL, export_small, limit_fds, look, start_peer};
use crate::sharing::{BYTES, INVALID, WRITTEN_HERE, WRITTEN_THERE, both_ways, export};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit};
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// A duplicate of a virtual fd: a real fd.
fn duplicate(number: RawFd) -> Result<OwnedFd, Fault> {
    // SAFETY: the number is good until the memory is freed.
    Ok(unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned()?)
}

/// close(2) of a number that the layer has given; the error's number.
fn close(number: RawFd) -> Result<(), i32> {
    // SAFETY: a virtual fd, which nothing here owns.
    match unsafe { libc::close(number) } {
        0 => Ok(()),
        _ => Err(nix::errno::Errno::last_raw()),
    }
}

/// More exports than fds, where the driver can take its handles back: this process holds none of
/// them.
pub fn no_fd_held(gpu: &Gpu) -> Outcome {
    let exports = if has_put()? { 1_000 } else { 200 };
    let peer = start_peer()?;
    limit_fds(256)?;
    let first = export_small(gpu, 0)?;
    let before = count_fds()?;
    let mut exported = vec![first];
    for at in 1..exports {
        exported.push(export_small(gpu, at)?);
    }
    if has_put()? {
        same("fds of this process", count_fds()?, before)?;
        same("fds in the driver", gpu.counters()?.exported_fds, 0)?;
    }
    for order in [Order::Open, Order::OpenFetched, Order::OpenFdAlone] {
        let found = look(&peer, order, &exported, INVALID)?;
        same("behind the handles", found, Found { right: exports, ..Found::default() })?;
    }
    for (memory, _) in exported {
        gpu.free(memory)?;
    }
    peer.finish()
}

/// Half of the allocations are freed while the broker asks for all of them: what is opened is
/// right, or refused.
pub fn evicted_and_freed(gpu: &Gpu) -> Outcome {
    const EXPORTS: usize = 60;
    const ROUNDS: usize = 5;
    let peer = start_peer()?;
    for _ in 0..ROUNDS {
        let exported: Result<Vec<_>, _> = (0..EXPORTS).map(|at| export_small(gpu, at)).collect();
        let exported = exported?;
        broker::evict_all()?;
        let (freed, kept) = exported.split_at(EXPORTS / 2);
        let addresses: Vec<usize> = freed.iter().map(|(memory, _)| memory.addr()).collect();
        let (context, level_zero) = (gpu.context.addr(), gpu.level_zero);
        let found = std::thread::scope(|scope| {
            let free = scope.spawn(move || -> Outcome {
                for address in addresses {
                    let context = std::ptr::with_exposed_provenance_mut(context);
                    let memory = std::ptr::without_provenance_mut(address);
                    // SAFETY: the case's context and allocation, freed once.
                    unsafe { level_zero.zeMemFree(context, memory)? };
                }
                Ok(())
            });
            let found = look(&peer, Order::Open, &exported, INVALID);
            free.join().map_err(|_| "a panic")??;
            found
        })?;
        same("other memory", found.other_memory, 0)?;
        holds(found.right >= EXPORTS / 2, || format!("kept ones are gone: {found:?}"))?;
        for (memory, _) in kept {
            gpu.free(*memory)?;
        }
    }
    peer.finish()
}

/// The owner has no fd free when the broker asks for its memory: its consumers get an error that
/// passes.
pub fn full_table(gpu: &Gpu) -> Outcome {
    const EXPORTS: usize = 8;
    let peer = start_peer()?;
    let exported: Result<Vec<_>, _> = (0..EXPORTS).map(|at| export_small(gpu, at)).collect();
    let exported = exported?;
    broker::evict_all()?;
    // The numbers below the limit are taken, so that nothing here can get one.
    let limit = 256;
    let mut fillers = Vec::new();
    loop {
        let filler = std::fs::File::open("/dev/null")?;
        let is_last = filler.as_raw_fd() + 1 >= limit;
        fillers.push(filler);
        if is_last {
            break;
        }
    }
    let (before, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    limit_fds(limit.unsigned_abs().into())?;

    for order in [Order::Open, Order::OpenFetched] {
        let found = look(&peer, order, &exported, FULL)?;
        same("while full", found, Found { errors: EXPORTS, ..Found::default() })?;
    }
    limit_fds(before)?;
    drop(fillers);
    for order in [Order::Open, Order::OpenFetched] {
        let found = look(&peer, order, &exported, FULL)?;
        same("with free fds", found, Found { right: EXPORTS, ..Found::default() })?;
    }
    for (memory, _) in exported {
        gpu.free(memory)?;
    }
    peer.finish()
}

/// As with the driver's fd: what the program closes, it does not share any more.
pub fn closed(gpu: &Gpu) -> Outcome {
    let peer = Peer::start()?;
    let (memory, handle) = export(gpu)?;
    let number = handle_fd(handle);
    holds(is_virtual(number), || format!("fd {number} is the driver's"))?;
    holds(is_open(number), || "F_GETFD says that it is closed".to_string())?;
    same("close", close(number), Ok(()))?;
    is_refused(&peer, handle)?;
    same("close once more", close(number), Err(libc::EBADF))?;
    let again = gpu.get(memory)?;
    holds(handle_fd(again) != number, || format!("{number} again"))?;
    is_shared(&peer, again, WRITTEN_HERE)?;
    gpu.free(memory)?;
    same("close of freed memory's", close(handle_fd(again)), Err(libc::EBADF))?;
    peer.finish()
}

pub fn closed_twice(gpu: &Gpu) -> Outcome {
    let peer = Peer::start()?;
    let (memory, handle) = export(gpu)?;
    let again = gpu.get(memory)?;
    same("the fd", handle_fd(again), handle_fd(handle))?;
    same("the first close", close(handle_fd(handle)), Ok(()))?;
    is_shared(&peer, handle, WRITTEN_HERE)?;
    same("the second close", close(handle_fd(handle)), Ok(()))?;
    is_refused(&peer, handle)?;
    gpu.free(memory)?;
    peer.finish()
}

/// A program that sends its fd in a message, takes its handle back, and lets the consumer open it
/// when it likes.
pub fn sent_and_put(gpu: &Gpu) -> Outcome {
    let peer = Peer::start()?;
    let (memory, handle) = export(gpu)?;
    let sent = duplicate(handle_fd(handle))?;
    put_if_there(gpu, handle)?;
    peer.tell_with(Order::OpenMoved, 0, 0, handle, Some(sent.as_fd()))??;
    both_ways(gpu, &peer, memory)?;
    peer.tell(Order::Close, 0, 0)??;
    drop(sent);
    gpu.free(memory)?;
    peer.finish()
}

/// A program that sends each fd after its export does without the broker from the second one on,
/// and holds one fd at most for that. What has ended cannot be sent.
pub fn sent_again(gpu: &Gpu) -> Outcome {
    const EXPORTS: usize = 20;
    let peer = Peer::start()?;
    let send = |order, handle| {
        // SAFETY: only a number, good or not.
        let fd = unsafe { BorrowedFd::borrow_raw(handle_fd(handle)) };
        peer.tell_with(order, 0, 0, handle, Some(fd))
    };
    let has_put = has_put()?;
    let held = |count| {
        // Without Put each export holds one.
        if has_put {
            same("fds in the driver", gpu.counters()?.exported_fds, count)
        } else {
            Ok(())
        }
    };
    let (first, handle) = export_small(gpu, 0)?;
    send(Order::CountFds, handle)??;
    let before = broker::counts()?.grants;
    let mut exported = Vec::new();
    for at in 1..=EXPORTS {
        let (memory, handle) = export_small(gpu, at)?;
        held(1)?;
        send(Order::CountFds, handle)??;
        held(0)?;
        exported.push((memory, handle));
    }
    same("grants", broker::counts()?.grants, before)?;
    for (memory, handle) in exported {
        send(Order::OpenMoved, handle)??;
        same("the peer writes", peer.number(Order::Write, SMALL, WRITTEN_THERE)?, 0)?;
        holds(gpu.read(memory, SMALL)? == pattern(SMALL, WRITTEN_THERE), || "other bytes".into())?;
        peer.tell(Order::Close, 0, 0)??;
        gpu.free(memory)?;
        holds(send(Order::CountFds, handle).is_err(), || "freed memory was sent".to_string())?;
    }
    // Those that are not sent: the next export or Put, the memory's end, a recall.
    let (second, _) = export_small(gpu, 1)?;
    let (third, handle) = export_small(gpu, 2)?;
    held(1)?;
    put_if_there(gpu, handle)?;
    held(0)?;
    let (fourth, handle) = export_small(gpu, 3)?;
    broker::evict_all()?;
    peer.tell_with(Order::Open, 0, 0, handle, None)??;
    peer.tell(Order::Close, 0, 0)??;
    held(1)?;
    for memory in [first, second, third, fourth] {
        gpu.free(memory)?;
    }
    held(0)?;
    peer.finish()
}

/// The consumer closes its fd after the import, as programs do: the broker counts the import until
/// it is closed.
pub fn import_outlives_its_fd(gpu: &Gpu) -> Outcome {
    let peer = start_peer()?;
    let exported = export_small(gpu, 0)?;
    let exporter = std::process::id() as usize;
    peer.tell_with(Order::OpenFdAlone, exporter, 0, exported.1, None)??;
    broker::wait_for("a mapped lease", |counts| {
        (counts.open_leases, counts.mapped_leases) == (0, 1)
    })?;
    same("the peer reads", peer.number(Order::IsPattern, SMALL, 0)?, 1)?;
    peer.tell(Order::Close, 0, 0)??;
    broker::wait_for("no lease", |counts| counts.open_leases + counts.mapped_leases == 0)?;
    gpu.free(exported.0)?;
    peer.finish()
}

/// What pidfd_getfd(2) brings is what Open needs.
pub fn one_grant(gpu: &Gpu) -> Outcome {
    const OPENINGS: usize = 1_000;
    // Without Put each holds an fd.
    let exports = if has_put()? { OPENINGS } else { OPENINGS / 5 };
    let peer = start_peer()?;
    let exported: Result<Vec<_>, _> = (0..exports).map(|at| export_small(gpu, at)).collect();
    let exported = exported?;
    for order in [Order::Open, Order::OpenFetched, Order::OpenFdAlone] {
        let before = broker::counts()?.grants;
        for _ in 0..OPENINGS / exports {
            let found = look(&peer, order, &exported, INVALID)?;
            same("behind the handles", found, Found { right: exports, ..Found::default() })?;
        }
        let grants = broker::counts()?.grants - before;
        // What was fetched ahead is granted again when the peer comes late for it.
        let few = OPENINGS as u64..OPENINGS as u64 * 3 / 2;
        holds(few.contains(&grants), || format!("{grants} grants for {order:?}"))?;
    }
    for (memory, _) in exported {
        gpu.free(memory)?;
    }
    peer.finish()
}

/// An fd that was granted for other memory, or for memory that has ended, says nothing of the key.
pub fn fetched_of_other(gpu: &Gpu) -> Outcome {
    let peer = start_peer()?;
    let exporter = std::process::id() as usize;
    let (first, second) = (export_small(gpu, 1)?, export_small(gpu, 2)?);
    let reads = |handle, salt| -> Outcome {
        peer.tell_with(Order::OpenWithFetched, 0, 0, handle, None)??;
        same("the peer reads", peer.number(Order::IsPattern, SMALL, salt)?, 1)?;
        peer.tell(Order::Close, 0, 0)??;
        Ok(())
    };
    peer.tell_with(Order::Fetch, exporter, 0, first.1, None)??;
    reads(first.1, 1)?;
    reads(second.1, 2)?;
    gpu.free(first.0)?;
    let freed = peer.tell_with(Order::OpenWithFetched, 0, 0, first.1, None)?;
    refused("Open of freed memory", freed, INVALID)?;
    // Most likely at its address.
    let third = export_small(gpu, 3)?;
    reads(third.1, 3)?;
    gpu.free(second.0)?;
    gpu.free(third.0)?;
    peer.finish()
}

/// A thread that may only read, write and end (seccomp(2), strict mode) gets handles of memory that
/// is exported already. Any other system call kills it, and no answer comes.
pub fn no_system_call(gpu: &Gpu) -> Outcome {
    const GETS: usize = 1_000;
    /// The calls take microseconds each.
    const ANSWER_MS: u16 = 20_000;
    let (memory, handle) = export(gpu)?;
    let (mut answer, tell) = std::io::pipe()?;
    let (context, address, level_zero) = (gpu.context.addr(), memory.addr(), gpu.level_zero);
    let tell_fd = tell.as_raw_fd();
    std::thread::spawn(move || {
        let context = std::ptr::with_exposed_provenance_mut(context);
        let memory = std::ptr::without_provenance(address);
        let mut last = level_zero_sys::ze_ipc_mem_handle_t::default();
        let mut rights = 0u8;
        // SAFETY: takes numbers; from here on this thread makes no system call but the two below.
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT) };
        for _ in 0..GETS {
            // SAFETY: live handles of the case, an out-pointer to a local.
            let got = unsafe { level_zero.zeMemGetIpcHandle(context, memory, &raw mut last) };
            rights = u8::from(got.is_ok() && last.to_bytes() == handle.to_bytes());
        }
        // SAFETY: a live byte; the thread ends without the calls that Rust makes at its end.
        unsafe {
            libc::write(tell_fd, (&raw const rights).cast(), 1);
            libc::syscall(libc::SYS_exit, 0);
        }
    });
    let mut wait = [PollFd::new(answer.as_fd(), PollFlags::POLLIN)];
    let answers = poll(&mut wait, PollTimeout::from(ANSWER_MS))?;
    holds(answers == 1, || "the thread was killed for a system call".to_string())?;
    let mut right = [0];
    answer.read_exact(&mut right)?;
    same("the last handle is the first", right[0], 1)?;
    drop(tell);
    holds(gpu.read(memory, BYTES)? == pattern(BYTES, WRITTEN_HERE), || "other bytes".to_string())?;
    Ok(gpu.free(memory)?)
}
