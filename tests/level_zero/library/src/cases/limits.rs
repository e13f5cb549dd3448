//! Many rounds or allocations with few fds. A case must never lower the limit of another process
//! than its own.

use crate::fault::{Outcome, holds, same};
use crate::here::has_fds;
use crate::node::Node;
use crate::peer::Peer;
use crate::rank::{Rank, count_memory_fds};
use fdbroker_client::level_zero::{LevelZeroMemory, retire_pointer};
use fdbroker_client::{Access, ErrorCode, Handle};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::fs::File;

const BYTES: usize = 10_000;
const SALT: u16 = 40;
const ROUNDS: usize = 1000;
const MANY: usize = 2000;
const MANY_FDS: u64 = 256;
/// What the test driver's helper needs, which has an fd for each allocation: its card's memory.
const FDS_OF_CARD: u64 = 2200;
/// By how much an emulated machine does less: it is 30 times as slow, and what is left is still
/// more than `MANY_FDS`.
const EMULATED_DIVISOR: usize = 5;
/// More allocations than the broker may hold.
const RECALLED: usize = 60;
/// Handles in one line to a peer: far below the 253 of a message and the 64 KiB of a pipe.
const LINE: usize = 100;

/// So many, or fewer on an emulated machine.
fn scaled(count: usize) -> usize {
    if std::env::var_os("ZE_TEST_EMULATED").is_some() { count / EMULATED_DIVISOR } else { count }
}

fn rounds(node: &Node, handle: Handle) -> Outcome {
    let mut peer = Peer::start(&node.socket(), None)?;
    // The first import finds out whether the driver closes imported fds.
    peer.tell(&format!("rounds 1 {SALT} {handle}"))?;
    let fds_before = peer.number("fds")?;

    let count = scaled(ROUNDS);
    peer.tell(&format!("rounds {count} {SALT} {handle}"))?;

    same("the peer's fds", peer.number("fds")?, fds_before)?;
    same("fds of memory among them", peer.number("memory-fds")?, 0)?;
    peer.finish()
}

pub fn rounds_own(node: &Node, rank: &mut Rank) -> Outcome {
    let handle = rank.own(BYTES, 1, SALT)?[0];
    rounds(node, handle)
}

pub fn rounds_foreign(node: &Node, rank: &mut Rank) -> Outcome {
    let handle = rank.foreign(BYTES, 2, SALT - 1)?[1];
    rounds(node, handle)
}

/// Rounds of allocate, export, retire and free: library and broker keep nothing.
pub fn export_rounds(node: &Node, rank: &mut Rank) -> Outcome {
    let (before, count) = (crate::rank::count_fds()?, scaled(ROUNDS));
    for _ in 0..count / 2 {
        rank.own(BYTES, 1, SALT)?;
        rank.buffers.clear();
        rank.foreign(BYTES, 1, SALT)?;
        let pointer = rank.pointers[0].addr() as u64;
        let retired = retire_pointer(&rank.device, &rank.exports, pointer);
        holds(retired.is_some(), || "it was not registered".to_string())?;
        rank.free_pointers()?;
    }
    same("fds", crate::rank::count_fds()?, before)?;
    same("in the table", rank.exports.len(), 0)?;
    node.until_count("/allocations/now", 0)?;
    same("deposits", node.count("/deposits")?, count as u64)
}

/// The broker cannot hold all of them: it recalls those that it evicted, twice, with their bytes.
fn recalled(node: &Node, rank: &Rank, handles: &[Handle]) -> Outcome {
    let mut peer = Peer::start(&node.socket(), None)?;
    for _ in 0..2 {
        for chunk in handles.chunks(4) {
            peer.with("import", chunk)?;
        }
        peer.tell(&format!("check {SALT}"))?;
        peer.tell("release")?;
    }
    let recalls = node.count("/recalls")?;
    holds(recalls >= handles.len() as u64, || format!("only {recalls} recalls"))?;
    holds(node.count("/evictions")? > 0, || "nothing was evicted".to_string())?;
    same("unanswered recalls", node.count("/recalls_unanswered")?, 0)?;
    holds(node.count("/fds/peak")? <= 24, || "over the cap".to_string())?;
    rank.check_own(BYTES, SALT)?;
    peer.finish()
}

pub fn recall_own(node: &Node, rank: &mut Rank) -> Outcome {
    let handles = rank.own(BYTES, RECALLED, SALT)?;
    recalled(node, rank, &handles)
}

pub fn recall_foreign(node: &Node, rank: &mut Rank) -> Outcome {
    let handles = rank.foreign(BYTES, RECALLED, SALT)?;
    recalled(node, rank, &handles)
}

/// Both processes may have 256 fds. Where the loader has no Put, the driver keeps an fd per export
/// that nobody else can close: there the owner may have more.
fn many(node: &Node, rank: &mut Rank, verb: &str) -> Outcome {
    const SMALL: usize = 64;
    if !has_fds(FDS_OF_CARD) {
        return Ok(());
    }
    let count = scaled(MANY);
    let keeps = rank.device.keeps_exported_fds();
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let mut owner = Peer::start(&node.socket(), Some(if keeps { most } else { MANY_FDS }))?;
    let mut consumer = Peer::start(&node.socket(), Some(MANY_FDS))?;
    for first in (0..count).step_by(LINE) {
        // The consumer counts salts over all its imports, so each line goes on where the last one
        // ended.
        let salt = SALT + u16::try_from(first % 200)?;
        let handles = owner.handles(&format!("{verb} {SMALL} {LINE} {salt}"))?;
        consumer.with("import", &handles)?;
    }
    // Told by one-way messages, which the broker may not have read yet.
    node.until_count("/mapped_leases/now", count as u64)?;
    let fds = consumer.number("memory-fds")?;
    same("fds of memory at the consumer", fds, 0)?;
    let kept = if keeps { count as u64 } else { 0 };
    same("fds of memory at the owner", owner.number("memory-fds")?, kept)?;
    consumer.tell(&format!("check {SALT}"))?;
    consumer.tell("write 77")?;
    owner.tell(&format!("check-own {SMALL} 77"))?;
    consumer.finish()?;
    owner.finish()
}

pub fn many_own(node: &Node, rank: &mut Rank) -> Outcome {
    many(node, rank, "own")
}

pub fn many_foreign(node: &Node, rank: &mut Rank) -> Outcome {
    many(node, rank, "foreign")
}

pub fn full_table(_node: &Node, rank: &mut Rank) -> Outcome {
    let pointer = rank.gpu.allocate(BYTES, false)?;
    rank.pointers.push(pointer);
    let handle = rank.own(BYTES, 1, SALT)?[0];
    let grant = rank.client.acquire(&handle, crate::rank::soon())?;
    let before = count_memory_fds()?;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, 64, hard)?;
    let fill = fill_table();

    let code = |done: Result<_, fdbroker_client::Error>| done.err().map(|error| error.code);
    let lacks = Some(ErrorCode::LocalFdLimit);
    same("an export of a pointer", code(rank.export(pointer).map(drop)), lacks)?;
    same("an export of a buffer", code(rank.buffers[0].memory().export().map(drop)), lacks)?;
    let import = LevelZeroMemory::import(&rank.device, &grant, Access::ReadWrite);
    same("an import", code(import.map(drop)), lacks)?;

    drop(fill);
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard)?;
    same("fds of memory", count_memory_fds()?, before)?;
    drop(LevelZeroMemory::import(&rank.device, &grant, Access::ReadWrite)?);
    drop(grant);
    rank.export(pointer)?;
    rank.import(&[handle])?;
    rank.check_imports(SALT)
}

fn fill_table() -> Vec<File> {
    let mut fill = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        fill.push(file);
    }
    fill
}
