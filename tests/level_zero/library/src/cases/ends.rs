//! The ends of allocations, and handles that must not resolve afterwards.

use crate::fault::{Outcome, holds, same};
use crate::node::Node;
use crate::peer::Peer;
use crate::rank::{Rank, soon};
use fdbroker_client::level_zero::retire_pointer;
use fdbroker_client::{Deposit, DriverData, ErrorCode, MemoryKind};
use fdbroker_protocol::node_id;
use std::os::fd::{AsFd, AsRawFd};

const BYTES: usize = 10_000;
const SALT: u16 = 60;

/// The kernel gives the range freed last again, and nobody has told the library.
pub fn address_again(node: &Node, rank: &mut Rank) -> Outcome {
    let old = rank.foreign(BYTES, 1, SALT)?[0];
    let address = rank.pointers[0];
    let mut peer = Peer::start(&node.socket(), None)?;
    peer.with("import", &[old])?;

    rank.free_pointers()?;
    let new = rank.foreign(BYTES, 1, SALT + 1)?[0];

    same("the address", rank.pointers[0], address)?;
    holds(new.id() != old.id(), || "the same allocation".to_string())?;
    peer.refuses("import", &[old], ErrorCode::Stale)?;
    // The earlier import keeps its bytes.
    peer.tell(&format!("check {SALT}"))?;
    peer.tell("release")?;
    peer.with("import", &[new])?;
    peer.tell(&format!("check {}", SALT + 1))?;
    same("allocations", node.count("/allocations/now")?, 1)?;
    peer.finish()
}

/// Evicted, then freed without telling the library: a recall must not bring back the memory that is
/// there now.
pub fn freed_behind(node: &Node, rank: &mut Rank) -> Outcome {
    let old = rank.foreign(BYTES, 1, SALT)?[0];
    // More than the broker may hold: it evicts the oldest.
    rank.own(BYTES, 60, SALT)?;
    holds(node.count("/evictions")? > 0, || "nothing was evicted".to_string())?;
    rank.free_pointers()?;
    let pointer = rank.gpu.allocate(BYTES, false)?;
    rank.pointers.push(pointer);
    let mut peer = Peer::start(&node.socket(), None)?;

    peer.refuses("import", &[old], ErrorCode::Stale)?;

    // The handle of the new memory works.
    let new = rank.export(pointer)?;
    peer.with("import", &[new])?;
    peer.finish()
}

pub fn retired(node: &Node, rank: &mut Rank) -> Outcome {
    let handles = rank.foreign(BYTES, 2, SALT)?;
    let mut peer = Peer::start(&node.socket(), None)?;
    let inside = rank.pointers[0].addr() as u64 + 100;

    let retired = retire_pointer(&rank.device, &rank.exports, inside);

    same("which it was", retired, Some(handles[0].id()))?;
    // The message is one-way, and the peer has another connection.
    node.until_count("/allocations/now", 1)?;
    peer.refuses("import", &handles[..1], ErrorCode::Stale)?;
    peer.with("import", &handles[1..])?;
    same("once more", retire_pointer(&rank.device, &rank.exports, inside), None)?;
    peer.finish()
}

pub fn dropped(node: &Node, rank: &mut Rank) -> Outcome {
    let old = rank.own(BYTES, 1, SALT)?[0];
    let address = rank.buffers[0].device_ptr();
    let mut peer = Peer::start(&node.socket(), None)?;
    peer.with("import", &[old])?;

    rank.buffers.clear();
    let new = rank.own(BYTES, 1, SALT + 1)?[0];

    same("the address", rank.buffers[0].device_ptr(), address)?;
    peer.refuses("import", &[old], ErrorCode::Stale)?;
    peer.tell(&format!("check {SALT}"))?;
    peer.tell("release")?;
    peer.with("import", &[new])?;
    peer.tell(&format!("check {}", SALT + 1))?;
    peer.finish()
}

pub fn another_node(node: &Node, rank: &mut Rank) -> Outcome {
    let handle = rank.own(BYTES, 1, SALT)?[0];
    let mut elsewhere = handle;
    elsewhere.prefix.node = handle.prefix.node ^ 1;
    // A handle that this node could have given before a reboot.
    let mut earlier = handle;
    earlier.prefix.node = node_id("00000000-0000-4000-8000-000000000000");
    let mut peer = Peer::start(&node.socket(), None)?;
    peer.refuses("import", &[elsewhere], ErrorCode::WrongNode)?;
    peer.refuses("import", &[earlier], ErrorCode::WrongNode)?;
    peer.with("import", &[handle])?;
    peer.finish()
}

/// Driver data of a hostile owner: the driver refuses it, or the memory is too small.
pub fn garbage(node: &Node, rank: &mut Rank) -> Outcome {
    let pointer = rank.gpu.allocate(BYTES, false)?;
    rank.pointers.push(pointer);
    let fd = rank.gpu.get(pointer)?;
    // SAFETY: the driver's fd, which lives until the memory is freed.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(crate::gpu::handle_fd(fd)) };
    let fd = fd.try_clone_to_owned()?;
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
    let is_memfd = link.to_string_lossy().starts_with("/memfd:");
    let kind = if is_memfd { MemoryKind::Memfd } else { MemoryKind::DmaBuf };
    let mut peer = Peer::start(&node.socket(), None)?;
    let fds_before = peer.number("fds")?;
    // Offsets behind the end, and one that leaves too few bytes.
    for offset in [u64::MAX, 1 << 40, 4096] {
        let mut data = [0; 64];
        data[8..16].copy_from_slice(&offset.to_ne_bytes());
        data[63] = 1;
        let driver_data = DriverData::new(&data)?;
        let deposit = Deposit::new(kind, BYTES as u64).driver_data(driver_data);
        let outcomes = rank.client.register_many(&[deposit], &[fd.as_fd()], soon())?;
        let registration = outcomes.into_iter().next().ok_or("no outcome")??;
        let code = if offset == 4096 { ErrorCode::BadHandle } else { ErrorCode::UnsupportedFd };
        peer.refuses("import", &[registration.handle], code)?;
        rank.client.unregister(registration)?;
    }
    same("the peer's fds", peer.number("fds")?, fds_before)?;
    peer.finish()
}
