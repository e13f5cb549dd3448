//! What an opening costs a peer: a handle opened and closed, with or without an fd that it fetches.
//! Must never judge a time: tests/level_zero/measure.py compares.

use crate::fault::{Fault, Outcome};
use crate::gpu::Gpu;
use crate::peer::{Order, Peer};
use crate::shapes::{export_small, start_peer};

/// Different handles: more than a layer can keep the fds of, fewer than a process may have.
const MANY: usize = 200;
const ROUNDS: usize = 15;

/// Prints a line for each way: its name and the microseconds of an opening, a median of rounds.
pub fn run() -> Outcome {
    let gpu = Gpu::open()?;
    let exporter = std::process::id() as usize;
    for (name, fetch) in [("by value", 0), ("pidfd", exporter)] {
        one_way(&gpu, name, fetch, MANY, 1)?;
        one_way(&gpu, &format!("{name}, reopened"), fetch, 1, MANY)?;
    }
    Ok(())
}

fn one_way(gpu: &Gpu, name: &str, fetch: usize, handles: usize, times: usize) -> Outcome {
    let peer = start_peer()?;
    let exported: Result<Vec<_>, _> = (0..handles).map(|at| export_small(gpu, at)).collect();
    let exported = exported?;
    for (_, handle) in &exported {
        peer.tell_with(Order::KeepHandle, 0, 0, *handle, None)??;
    }
    // The first round pays for what a process pays once.
    round(&peer, fetch, times)?;
    let all: Result<Vec<_>, _> = (0..ROUNDS).map(|_| round(&peer, fetch, times)).collect();
    let mut all = all?;
    all.sort_unstable();
    println!("{name}: {:.2}", all[ROUNDS / 2] as f64 / (handles * times) as f64 / 1e3);
    for (memory, _) in exported {
        gpu.free(memory)?;
    }
    peer.finish()
}

fn round(peer: &Peer, fetch: usize, times: usize) -> Result<u64, Fault> {
    peer.number(Order::TimeOpenings, fetch, u16::try_from(times)?)
}
