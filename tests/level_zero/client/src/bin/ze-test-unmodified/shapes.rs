//! The ways in which programs pass a handle - all 64 bytes; with an fd fetched by its number put
//! into them; that fd alone, or its number - near the fd limit of the exporter, which is this
//! process. Must never count other memory as an error.

use crate::broker;
use crate::exporting::{has_put, put_if_there};
use crate::fault::{Fault, Outcome, holds, refused, same};
use crate::gpu::{Address, Gpu, handle_fd, is_virtual, pattern};
use crate::peer::{Order, Peer};
use crate::sharing::INVALID;
use level_zero_sys::{CallError, ze_ipc_mem_handle_t, ze_result_t};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

pub const SMALL: usize = 4096;
pub const FULL: ze_result_t = ze_result_t::ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY;

/// An allocation of this process, and its handle. Its bytes tell its place in the list.
pub type Exported = (Address, ze_ipc_mem_handle_t);

/// What the peer found behind the handles.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    pub right: usize,
    pub other_memory: usize,
    pub errors: usize,
}

/// Sets the soft limit of fds of this process.
pub fn limit_fds(fds: u64) -> Outcome {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, fds, hard)?)
}

/// A peer that may fetch fds of this process, also under Yama.
pub fn start_peer() -> Result<Peer, Fault> {
    // SAFETY: takes numbers only. Without Yama there is no such right to give.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY) };
    Peer::start()
}

/// Allocates memory with the bytes of place `at`, and exports it; frees it when the export fails.
pub fn export_small(gpu: &Gpu, at: usize) -> Result<Exported, CallError> {
    let memory = gpu.allocate(SMALL, true)?;
    gpu.write(memory, &pattern(SMALL, salt(at)))?;
    match gpu.get(memory) {
        Ok(handle) => Ok((memory, handle)),
        Err(error) => {
            gpu.free(memory)?;
            Err(error)
        }
    }
}

fn salt(at: usize) -> u16 {
    u16::try_from(at).expect("a case has some hundreds")
}

/// The peer opens every handle and looks at every byte. An error must be `error`.
pub fn look(
    peer: &Peer,
    order: Order,
    exported: &[Exported],
    error: ze_result_t,
) -> Result<Found, Fault> {
    let mut found = Found::default();
    for (at, (_, handle)) in exported.iter().enumerate() {
        let exporter = std::process::id() as usize;
        match peer.tell_with(order, exporter, 0, *handle, None)? {
            Err(failed) => {
                same(&format!("handle {at}: the error"), failed.code(), Some(error))?;
                found.errors += 1;
            }
            Ok(_) => {
                match peer.number(Order::IsPattern, SMALL, salt(at))? {
                    1 => found.right += 1,
                    _ => found.other_memory += 1,
                }
                peer.tell(Order::Close, 0, 0)??;
            }
        }
    }
    Ok(found)
}

fn near_the_limit(gpu: &Gpu, order: Order, exports: usize, fds: u64) -> Outcome {
    let peer = start_peer()?;
    limit_fds(fds)?;
    let exported: Result<Vec<Exported>, _> = (0..exports).map(|at| export_small(gpu, at)).collect();
    let exported = exported?;

    let found = look(&peer, order, &exported, INVALID)?;

    same("behind the handles", found, Found { right: exports, ..Found::default() })?;
    let driver = gpu.counters()?;
    // With a virtual fd nobody needs the driver's; without Put it stays.
    let is_held = !is_virtual(handle_fd(exported[0].1)) || !has_put()?;
    let held = if is_held { exports as u64 } else { 0 };
    same("Gets and fds in the driver", (driver.gets, driver.exported_fds), (held, held))?;
    for (memory, _) in exported {
        gpu.free(memory)?;
    }
    peer.finish()
}

/// Some allocations, in a pool where the driver has pools, whose handles are Put before the peer
/// has seen one.
fn put_at_once(gpu: &Gpu, peer: Peer, order: Order) -> Outcome {
    const EXPORTS: usize = 20;
    let mut exported = Vec::new();
    for at in 0..EXPORTS {
        let memory = gpu.allocate(SMALL, false)?;
        gpu.write(memory, &pattern(SMALL, salt(at)))?;
        let handle = gpu.get(memory)?;
        put_if_there(gpu, handle)?;
        exported.push((memory, handle));
    }
    for _ in 0..2 {
        let found = look(&peer, order, &exported, INVALID)?;
        same("behind the handles", found, Found { right: EXPORTS, ..Found::default() })?;
        broker::evict_all()?;
    }
    broker::wait_for("no lease", |counts| counts.mapped_leases + counts.open_leases == 0)?;
    for (memory, _) in &exported {
        gpu.free(*memory)?;
    }
    let found = look(&peer, order, &exported, INVALID)?;
    same("after the free", found, Found { errors: EXPORTS, ..Found::default() })?;
    peer.finish()
}

pub fn bytes_put(gpu: &Gpu) -> Outcome {
    put_at_once(gpu, start_peer()?, Order::Open)
}

pub fn fetched_put(gpu: &Gpu) -> Outcome {
    put_at_once(gpu, start_peer()?, Order::OpenFetched)
}

pub fn fd_alone_put(gpu: &Gpu) -> Outcome {
    put_at_once(gpu, start_peer()?, Order::OpenFdAlone)
}

/// Only newer loaders have zeMemGetIpcHandleFromFileDescriptorExp.
pub fn of_fd_put(gpu: &Gpu) -> Outcome {
    let order = if has_put()? { Order::OpenHandleOfFd } else { Order::OpenFdAlone };
    put_at_once(gpu, start_peer()?, order)
}

pub fn number_put(gpu: &Gpu) -> Outcome {
    put_at_once(gpu, start_peer()?, Order::OpenNumberAlone)
}

pub fn bytes_apart(gpu: &Gpu) -> Outcome {
    put_at_once(gpu, Peer::start_in_namespace()?, Order::Open)
}

pub fn fetched_apart(gpu: &Gpu) -> Outcome {
    put_at_once(gpu, Peer::start_in_namespace()?, Order::OpenFetched)
}

pub fn fd_alone_apart(gpu: &Gpu) -> Outcome {
    put_at_once(gpu, Peer::start_in_namespace()?, Order::OpenFdAlone)
}

pub fn bytes_238(gpu: &Gpu) -> Outcome {
    near_the_limit(gpu, Order::Open, 238, 256)
}

pub fn bytes_950(gpu: &Gpu) -> Outcome {
    near_the_limit(gpu, Order::Open, 950, 1024)
}

pub fn fetched_238(gpu: &Gpu) -> Outcome {
    near_the_limit(gpu, Order::OpenFetched, 238, 256)
}

pub fn fetched_950(gpu: &Gpu) -> Outcome {
    near_the_limit(gpu, Order::OpenFetched, 950, 1024)
}

pub fn fd_alone_238(gpu: &Gpu) -> Outcome {
    near_the_limit(gpu, Order::OpenFdAlone, 238, 256)
}

pub fn fd_alone_950(gpu: &Gpu) -> Outcome {
    near_the_limit(gpu, Order::OpenFdAlone, 950, 1024)
}

/// Exports until no fd is free. Where the broker has to ask for an fd then, the peer gets an error
/// that passes.
pub fn full_table(gpu: &Gpu) -> Outcome {
    const FDS: usize = 512;
    let peer = start_peer()?;
    limit_fds(FDS as u64)?;
    let mut exported = Vec::new();
    let error = (0..FDS).find_map(|at| export_small(gpu, at).map(|one| exported.push(one)).err());
    same("at the limit", error.and_then(|error| error.code()), Some(FULL))?;
    holds(exported.len() > 450, || format!("only {} fit", exported.len()))?;
    // The command needs some fds while it runs.
    limit_fds(FDS as u64 + 32)?;
    broker::evict_all()?;
    limit_fds(FDS as u64)?;

    let all = exported.len();
    // Few: for each one the peer waits as long as FDBROKER_LAYER_WAIT says.
    let few = &exported[..3];
    let found = look(&peer, Order::Open, few, FULL)?;
    same("the 64 bytes", found, Found { errors: few.len(), ..Found::default() })?;
    let found = look(&peer, Order::OpenFetched, few, FULL)?;
    same("with an fd", found, Found { errors: few.len(), ..Found::default() })?;
    let found = look(&peer, Order::OpenFdAlone, &exported, FULL)?;
    same("the fd alone", found, Found { right: all, ..Found::default() })?;

    // With a free fd in this process, all are good again.
    let (last, _) = exported.pop().ok_or("none was exported")?;
    gpu.free(last)?;
    let found = look(&peer, Order::Open, &exported, FULL)?;
    same("after one is freed", found, Found { right: all - 1, ..Found::default() })?;
    for (memory, _) in exported {
        gpu.free(memory)?;
    }
    peer.finish()
}

/// A program that closes the driver's fd breaks its own export, and must not share what gets the
/// number next.
pub fn closed_fd(gpu: &Gpu) -> Outcome {
    let peer = start_peer()?;
    let (memory, handle) = export_small(gpu, 0)?;
    let (other, of_other) = export_small(gpu, 1)?;
    // SAFETY: takes numbers; dup2(2) closes what the driver has there, and puts the other memory's
    // fd in its place.
    let number = unsafe { libc::dup2(handle_fd(of_other), handle_fd(handle)) };
    same("the number", number, handle_fd(handle))?;
    broker::evict_all()?;

    refused("Open", peer.tell_with(Order::Open, 0, 0, handle, None)?, INVALID)?;
    let found = look(&peer, Order::Open, &[(other, of_other)], INVALID)?;
    same("the other", found.errors, 0)?;
    gpu.free(memory)?;
    gpu.free(other)?;
    peer.finish()
}
