//! Many allocations with few fds. A case must never lower the limit of another process than its
//! own.

use crate::fault::{Outcome, refused, same};
use crate::gpu::{Address, Gpu};
use crate::here::has_fds;
use crate::peer::count_fds;
use level_zero_sys::ze_result_t;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::fs::File;

const PIECES: usize = 2000;
const FDS: u64 = 64;
/// What the test driver's helper needs, which has an fd for each piece: its card's memory.
const FDS_OF_CARD: u64 = 2100;

fn limit_fds() -> Outcome {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, FDS, hard)?)
}

pub fn no_fd_per_allocation(gpu: &Gpu) -> Outcome {
    if !has_fds(FDS_OF_CARD) {
        return Ok(());
    }
    limit_fds()?;
    let before = count_fds()?;

    let pieces: Result<Vec<Address>, _> = (0..PIECES).map(|_| gpu.allocate(4096, true)).collect();
    let pieces = pieces?;

    same("fds for 2000 allocations", count_fds()? - before, 0)?;
    let handle = gpu.get(pieces[0])?;
    let imports: Result<Vec<Address>, _> = (0..PIECES).map(|_| gpu.open_handle(handle)).collect();
    let imports = imports?;
    same("fds for 2000 imports of one export", count_fds()? - before, 1)?;
    for import in imports {
        gpu.close_handle(import)?;
    }
    for piece in pieces {
        gpu.free(piece)?;
    }
    Ok(())
}

pub fn full_table(gpu: &Gpu) -> Outcome {
    let memory = gpu.allocate(4096, true)?;
    limit_fds()?;
    let mut fill = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        fill.push(file);
    }

    refused("Get", gpu.get(memory), ze_result_t::ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY)?;

    drop(fill);
    gpu.get(memory)?;
    Ok(gpu.free(memory)?)
}
