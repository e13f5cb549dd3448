//! Exports of the application's pointers: one registration per allocation, and no fd left behind.

use crate::fault::{Outcome, holds, same};
use crate::gpu::{handle_fd, is_open, pattern};
use crate::node::Node;
use crate::rank::{Rank, count_memory_fds, soon};
use fdbroker_client::level_zero::opener;
use fdbroker_client::{Access, Arena, CacheSettings, ErrorCode, HostMemory, ImportCache};

const BYTES: usize = 10_000;
const SALT: u16 = 20;

pub fn one_fd(node: &Node, rank: &mut Rank) -> Outcome {
    let first = rank.foreign(BYTES, 1, SALT)?[0];
    let again = rank.export(rank.pointers[0])?;

    same("the handle", again.to_bytes(), first.to_bytes())?;
    same("allocations", node.count("/allocations/now")?, 1)?;
    same("fds at the broker", node.count("/stored_fds")?, 1)?;
    same("deposits", node.count("/deposits")?, 1)?;
    same("of the application's Gets", rank.counters()?.gets, if_kept(rank, 2, 0))
}

/// `kept` where the loader has no Put: there the library's Gets stay counted, and their fds open.
fn if_kept(rank: &Rank, kept: u64, else_: u64) -> u64 {
    if rank.device.keeps_exported_fds() { kept } else { else_ }
}

pub fn interior(node: &Node, rank: &mut Rank) -> Outcome {
    let whole = rank.foreign(BYTES, 1, SALT)?[0];
    let inside = rank.export(rank.pointers[0].wrapping_byte_add(5000))?;

    same("the allocation", inside.id(), whole.id())?;
    same("its offset", inside.offset_bytes, 5000)?;
    same("allocations", node.count("/allocations/now")?, 1)?;
    // An allocation that is first exported by an address inside is the same allocation, too.
    let other = rank.gpu.allocate(BYTES, false)?;
    rank.pointers.push(other);
    let inside = rank.export(other.wrapping_byte_add(1))?;
    same("the allocation", rank.export(other)?.id(), inside.id())?;
    same("allocations", node.count("/allocations/now")?, 2)
}

/// They share one object and its fd, and are still separate allocations.
pub fn pooled(node: &Node, rank: &mut Rank) -> Outcome {
    let handles = rank.foreign(BYTES, 3, SALT)?;
    same("allocations", node.count("/allocations/now")?, 3)?;
    rank.import(&handles)?;
    rank.check_imports(SALT)?;
    let mut offsets: Vec<u64> = rank.imports.iter().map(|one| one.info().facts.fd_offset).collect();
    offsets.dedup();
    same("different offsets in the fd", offsets.len(), 3)?;
    // A mapping of the fd without a driver shows the same bytes.
    let import = rank.client.acquire(&handles[2], soon())?.import(Access::Read, 0)?;
    let mut bytes = vec![0; BYTES];
    import.read_at(0, &mut bytes)?;
    holds(bytes == pattern(BYTES, SALT + 2), || "mapped: other bytes".to_string())
}

pub fn cached(node: &Node, rank: &mut Rank) -> Outcome {
    rank.foreign(BYTES, 2, SALT)?;
    let inside = rank.export(rank.pointers[1].wrapping_byte_add(300))?;
    let cache = ImportCache::new(&rank.client, CacheSettings::default());
    let mut open = opener(&rank.device, Access::ReadWrite);

    let import = cache.import_with(&inside, Access::ReadWrite, soon(), &mut open)?;
    same("bytes from there on", import.len(), BYTES - 300)?;
    let found = rank.gpu.read(import.as_ptr().cast(), 100)?;
    holds(found == pattern(BYTES, SALT + 1)[300..400], || "other bytes".to_string())?;
    let grants = node.count("/grants")?;
    let again = cache.import_with(&inside, Access::ReadWrite, soon(), &mut open)?;
    same("the address", again.as_ptr(), import.as_ptr())?;
    same("grants", node.count("/grants")?, grants)?;
    drop((import, again));
    drop(cache);
    node.until_count("/mapped_leases/now", 0)
}

pub fn no_fd_left(_node: &Node, rank: &mut Rank) -> Outcome {
    // Asks the loader itself; the other cases ask the library.
    let lacks_put = rank.gpu.level_zero.missing().contains(&"zeMemPutIpcHandle");
    same("the driver keeps fds", rank.device.keeps_exported_fds(), lacks_put)?;
    let before = count_memory_fds()?;
    rank.own(BYTES, 10, SALT)?;
    rank.foreign(BYTES, 10, SALT)?;

    let fds = count_memory_fds()? - before;
    same("fds of 20 exports", fds as u64, if_kept(rank, 20, 0))?;
    same("as the driver counts", rank.counters()?.exported_fds, if_kept(rank, 20, 0))?;
    // Without Put the fds end with the memory.
    rank.clear()?;
    same("fds afterwards", count_memory_fds()?, before)
}

/// The library must not Put a handle that the application got itself.
pub fn application_handle(_node: &Node, rank: &mut Rank) -> Outcome {
    let pointer = rank.gpu.allocate(BYTES, false)?;
    rank.pointers.push(pointer);
    let own = rank.gpu.get(pointer)?;

    rank.export(pointer)?;

    holds(is_open(handle_fd(own)), || "the application's fd was closed".to_string())?;
    same("the fd of another Get", handle_fd(rank.gpu.get(pointer)?), handle_fd(own))
}

pub fn not_the_drivers(_node: &Node, rank: &mut Rank) -> Outcome {
    let own = [0_u8; 16];
    let error = rank.export(own.as_ptr().cast_mut().cast()).err();
    same("code", error.map(|error| error.code), Some(ErrorCode::Stale))
}

pub fn one_list(node: &Node, rank: &mut Rank) -> Outcome {
    let arena = Arena::new(&rank.client, HostMemory::Memfd, 1 << 16)?;
    let host = arena.alloc(4096)?;
    host.register(soon())?;
    rank.own(BYTES, 1, SALT)?;
    rank.foreign(BYTES, 1, SALT)?;

    let list = node.ls()?;
    let records = list.as_array().or_else(|| list.get("allocations")?.as_array());
    same("records", records.ok_or_else(|| format!("no list: {list}"))?.len(), 3)?;
    let text = list.to_string();
    let base = rank.buffers[0].device_ptr().to_string();
    holds(text.contains(&base), || format!("no address {base} in {text}"))
}
