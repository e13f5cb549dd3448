//! Stories of evictions: which fds make room, for a request, for bytes and for others. Must leave
//! nothing to chance.

use crate::action::Action;
use crate::judge::ensure;
use crate::model::Check;
use crate::rig::{LONG_US, PAGE_BYTES, Rig, deposit, sized};
use crate::world::Reply;
use fdbroker_core::{Deposit, File, FileId, Judged};
use fdbroker_protocol::{AllocationId, MemoryKind};

pub fn eviction_when_room_is_needed_then_least_recently_used_goes(rig: &mut Rig) -> Check {
    rig.begin(|config| {
        config.node.held_fds = 5;
        config.base_credits = 0;
        config.max_credits = 1;
    });
    let (owner, consumer) = (rig.client()?, rig.client()?);
    let ids = rig.register_new(owner, 4)?;
    let request = rig.acquire(consumer, ids[0])?;
    let lease = rig.lease(consumer, request)?;
    rig.release(consumer, lease)?;
    rig.register_new(owner, 2)?;
    ensure!(!rig.is_held(ids[1]), "the least recently used allocation is still held");
    ensure!(rig.is_held(ids[0]), "the most recently used allocation is evicted");
    rig.end()
}

pub fn eviction_when_for_a_request_then_not_of_what_it_wants(rig: &mut Rig) -> Check {
    rig.begin(|config| {
        config.node.fds = 3;
        config.base_credits = 0;
        config.max_credits = 1;
    });
    let (owner, consumer) = (rig.client()?, rig.client()?);
    let ids = rig.register_new(owner, 3)?;
    let wanted = [Ok(ids[0]), Ok(ids[1])];
    let request = rig.acquire_until(consumer, &wanted, rig.world.now + LONG_US)?;
    ensure!(rig.is_held(ids[0]) && rig.is_held(ids[1]), "what is wanted is evicted");
    ensure!(!rig.is_held(ids[2]), "nothing is evicted");
    rig.settle(&[])?;
    let granted = rig.granted(consumer, request).ok_or("not answered")?;
    let lease = granted.iter().find(|item| item.status.is_ok()).ok_or("not granted")?.lease;
    rig.release(consumer, lease)?;
    rig.end()
}

pub fn eviction_when_for_bytes_then_of_a_file_with_all_its_ranges(rig: &mut Rig) -> Check {
    rig.begin(|config| config.node.held_bytes = 4 * PAGE_BYTES);
    let owner = rig.client()?;
    let file =
        File { id: FileId { device: 1, inode: 7 }, pinned_bytes: 0, size_bytes: 2 * PAGE_BYTES };
    let range = |id| Judged { file: Some(file), claimed: deposit(id) };
    let large = |id| sized(2 * PAGE_BYTES, deposit(id));
    let first = rig.register(owner, &[range(1)])?[0];
    let other = rig.register(owner, &[large(4)])?[0];
    let second = rig.register(owner, &[range(2)])?[0];
    rig.world.feed(Action::Measured { files: vec![(first.slot, 2 * PAGE_BYTES)] })?;
    rig.register(owner, &[large(8)])?;
    ensure!(rig.is_held(other), "an fd is closed that need not be");
    ensure!(!rig.is_held(first) && !rig.is_held(second), "ranges are left that pin their file");
    rig.end()
}

pub fn bytes_when_the_share_is_used_up_then_refused_and_others_find_some(rig: &mut Rig) -> Check {
    rig.begin(|config| {
        config.share_factor = 8;
        config.node.held_bytes = 90 * PAGE_BYTES;
    });
    let (owner, other) = (rig.client()?, rig.client_of(1001)?);
    let pinning = |id, pages| {
        let size_bytes = pages * PAGE_BYTES;
        sized(size_bytes, Deposit { recallable: false, ..deposit(id) })
    };
    rig.register(owner, &[pinning(1, 80)])?;
    let request = rig.register_raw(owner, &[pinning(100, 1)], 0)?;
    let Some(Reply::Registered(items)) = rig.reply(owner, request) else {
        return Err("not answered".into());
    };
    ensure!(!items[0].status.is_ok(), "more than eight times what is free");
    rig.register(other, &[pinning(1, 4)])?;
    rig.end()
}

pub fn eviction_when_the_node_is_short_of_fds_then_its_last_one_of_cuda_goes_last(
    rig: &mut Rig,
) -> Check {
    rig.begin(|config| {
        config.node.held_fds = 4;
        config.base_credits = 0;
        config.max_credits = 1;
    });
    let owner = rig.client()?;
    let mut cuda = deposit(1_000_000);
    cuda.facts.kind = MemoryKind::CudaVmm;
    let anchor = rig.register(owner, &[cuda])?[0];
    let others = rig.register_new(owner, 8)?;
    ensure!(rig.is_held(anchor) && !rig.is_held(others[4]), "it does not go last");
    rig.end()
}

pub fn eviction_when_an_owner_is_silent_then_its_fds_go_last_and_keep_nobody_out(
    rig: &mut Rig,
) -> Check {
    rig.begin(|config| {
        config.node.held_fds = 3;
        config.base_credits = 0;
        config.max_credits = 1;
    });
    let (owner, other, consumer) = (rig.client()?, rig.client_of(1001)?, rig.client()?);
    let ids = rig.register_new(owner, 4)?;
    rig.acquire(consumer, ids[0])?;
    rig.settle(&[owner])?;
    rig.advance(rig.world.setup.config.recall_timeout_us + 1)?;
    rig.take_all_events(owner)?;
    let asked = rig.world.agents.get_mut(&owner).map(|agent| std::mem::take(&mut agent.recalls));
    let held = |rig: &Rig, ids: &[AllocationId]| ids.iter().filter(|id| rig.is_held(**id)).count();
    let its = held(rig, &ids);
    let theirs = rig.register_new(other, 2)?;
    ensure!(its > 0 && held(rig, &ids) + 1 == its, "room for one, and no more: {its}");
    ensure!(held(rig, &theirs) == 1, "another fd of the silent owner is taken before");
    ensure!(rig.world.model.silent.contains(&owner), "the owner has answered");
    if let Some((agent, asked)) = rig.world.agents.get_mut(&owner).zip(asked) {
        agent.recalls = asked;
    }
    rig.end()
}
