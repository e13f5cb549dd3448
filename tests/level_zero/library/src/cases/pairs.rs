//! Sharing with a peer that gets handles by value. In every case the peer gives back all imports,
//! and confirms it.

use crate::fault::{Outcome, holds, same};
use crate::node::Node;
use crate::peer::Peer;
use crate::rank::Rank;
use fdbroker_client::level_zero::FdCloser;
use fdbroker_client::{ErrorCode, Handle};

/// More than a page, and no multiple of a page.
const BYTES: usize = 10_000;
const COUNT: usize = 5;
const WRITTEN_HERE: u16 = 1;
const WRITTEN_THERE: u16 = 101;

/// The peer imports, reads the bytes written here, writes bytes that are read here, and releases.
fn shared(node: &Node, rank: &Rank, handles: &[Handle]) -> Outcome {
    let mut peer = Peer::start(&node.socket(), None)?;
    let fds_before = peer.number("fds")?;
    peer.with("import", handles)?;
    same("the peer's fds while it has all", peer.number("fds")?, fds_before)?;
    peer.tell(&format!("check {WRITTEN_HERE}"))?;
    peer.tell(&format!("write {WRITTEN_THERE}"))?;
    rank.check_own(BYTES, WRITTEN_THERE)?;
    // Told by one-way messages, which the broker may not have read yet.
    node.until_count("/mapped_leases/now", handles.len() as u64)?;
    peer.tell("release")?;
    same("the peer's fds afterwards", peer.number("fds")?, fds_before)?;
    peer.finish()
}

pub fn own(node: &Node, rank: &mut Rank) -> Outcome {
    let handles = rank.own(BYTES, COUNT, WRITTEN_HERE)?;
    shared(node, rank, &handles)
}

pub fn foreign(node: &Node, rank: &mut Rank) -> Outcome {
    let handles = rank.foreign(BYTES, COUNT, WRITTEN_HERE)?;
    shared(node, rank, &handles)
}

/// With an opaque handle, the driver takes an fd of the exporter's number for the exporter's fd.
pub fn same_number(node: &Node, rank: &mut Rank) -> Outcome {
    // The peer's fd numbers below this are taken.
    const FREE_THERE: usize = 60;
    let taken: Vec<_> = (0..FREE_THERE).map(|_| std::fs::File::open("/dev/null")).collect();
    let handles = rank.foreign(BYTES, 1, WRITTEN_HERE)?;
    drop(taken);
    let mut peer = Peer::start(&node.socket(), None)?;
    let fds_before = peer.number("fds")?;
    // A driver that fetched by pid would find nothing here; the broker's copy is unchanged.
    rank.free_pointers()?;
    peer.with("import-at-number", &handles)?;
    peer.tell(&format!("check {WRITTEN_HERE}"))?;
    peer.tell("release")?;
    same("the peer's fds", peer.number("fds")?, fds_before)?;
    peer.finish()
}

/// A driver of one number takes the fd in a handle for the exporter's: there it is no memory.
pub fn number_taken(node: &Node, rank: &mut Rank) -> Outcome {
    /// The peer has fewer fds.
    const NUMBERS: usize = 60;
    let handles = rank.foreign(BYTES, 1, WRITTEN_HERE)?;
    let taken: Vec<_> = (0..NUMBERS).map(|_| std::fs::File::open("/dev/null")).collect();
    shared(node, rank, &handles)?;
    drop(taken);
    Ok(())
}

pub fn twice(node: &Node, rank: &mut Rank) -> Outcome {
    let handle = rank.foreign(BYTES, 1, WRITTEN_HERE)?[0];
    let mut peer = Peer::start(&node.socket(), None)?;
    peer.with("import", &[handle])?;
    peer.with("import", &[handle])?;
    // Told by one-way messages, which the broker may not have read yet.
    node.until_count("/mapped_leases/now", 2)?;
    peer.tell("release")?;
    node.until_count("/mapped_leases/now", 0)?;
    peer.with("import", &[handle])?;
    peer.tell(&format!("check {WRITTEN_HERE}"))?;
    peer.finish()
}

/// Set in this process instead of found out.
pub fn closer_set(_node: &Node, rank: &mut Rank) -> Outcome {
    let handle = rank.own(BYTES, 1, WRITTEN_HERE)?[0];
    same("known before", rank.device.fd_closer(), None)?;
    rank.device.set_fd_closer(FdCloser::Caller);
    rank.import(&[handle])?;
    same("known after", rank.device.fd_closer(), Some(FdCloser::Caller))?;
    rank.check_imports(WRITTEN_HERE)
}

fn owner_killed(node: &Node, rank: &mut Rank, verb: &str) -> Outcome {
    let mut peer = Peer::start(&node.socket(), None)?;
    let handles = peer.handles(&format!("{verb} {BYTES} {COUNT} {WRITTEN_THERE}"))?;
    rank.import(&handles[1..])?;

    peer.kill()?;

    // The broker has let the memory go, and the imports still have it.
    node.until_count("/stored_fds", 0)?;
    let mut others = rank.imports.iter();
    holds(others.all(|import| !import.is_current()), || "still current".to_string())?;
    rank.check_imports(WRITTEN_THERE + 1)?;
    let error = rank.client.acquire(&handles[0], crate::rank::soon()).err();
    let code = error.map(|error| error.code);
    same("the code of its handle", code, Some(ErrorCode::OwnerGone))?;
    node.until_count("/mapped_leases/now", COUNT as u64 - 1)?;
    rank.imports.clear();
    node.until_count("/pinned_bytes/now", 0)?;
    node.until_count("/mapped_leases/now", 0)
}

pub fn owner_killed_own(node: &Node, rank: &mut Rank) -> Outcome {
    owner_killed(node, rank, "own")
}

pub fn owner_killed_foreign(node: &Node, rank: &mut Rank) -> Outcome {
    owner_killed(node, rank, "foreign")
}
