//! What held fds pin is charged once for each file and domain, whatever the sizes that are said.

use super::*;
use fdbroker_protocol::NO_CAP;

const MIB: u64 = 1 << 20;

fn of_file(base: u64, inode: u64, pinned_bytes: u64) -> Judged {
    let file = File { id: FileId { device: 1, inode }, pinned_bytes, size_bytes: pinned_bytes };
    Judged { file: Some(file), claimed: deposit(base) }
}

fn never_evicted(of: Judged) -> Judged {
    Judged { claimed: Deposit { recallable: false, ..of.claimed }, ..of }
}

fn kept_of(of: Judged) -> Judged {
    Judged { claimed: Deposit { keep: true, ..of.claimed }, ..of }
}

fn held_bytes(world: &World, client: ClientId) -> u64 {
    world.client(client).account.now(Resource::HeldBytes)
}

#[test]
fn file_when_its_first_depositor_leaves_then_the_next_one_pays() {
    let mut world = World::new(config());
    let first = world.register_by(OWNER, of_file(1, 7, 8192)).id;
    world.register_by(USER, of_file(1, 7, 8192));
    world.register_by(OTHER, of_file(1, 7, 8192));
    let all = |world: &World| [OWNER, USER, OTHER].map(|client| held_bytes(world, client));
    assert_eq!(all(&world), [8192, 0, 0]);
    world.unregister(OWNER, first);
    assert_eq!(all(&world), [0, 8192, 0]);
    world.step(Input::Gone { client: USER });
    world.at(1);
    assert_eq!((held_bytes(&world, OTHER), world.now_of(Resource::HeldBytes)), (8192, 8192));
}

#[test]
fn file_when_it_passes_to_a_client_with_a_lower_use_of_its_cap_then_uncapped() {
    let client = Caps { held_bytes: 10_000, ..Caps::NONE };
    let mut world = World::new(Config { client, ..config() });
    let first = world.register_by(OWNER, of_file(1, 7, 8192)).id;
    for (base, inode) in [(1, 7), (2, 8)] {
        let resident = never_evicted(of_file(base, inode, 8192));
        assert!(world.register_by(USER, resident).status.is_ok());
    }
    world.unregister(OWNER, first);
    assert_eq!(held_bytes(&world, USER), 16_384, "never refused");
    let refused = world.register_by(USER, of_file(3, 9, 0)).status;
    assert_eq!(refused.resource, Resource::HeldBytes as u8, "{refused}");
}

/// ATTACKS: a GiB deposited as 4 KiB, three times, under a cap of 1 MiB.
#[test]
fn register_when_the_file_pins_more_than_the_cap_then_refused_by_name_whatever_size_is_said() {
    let domain = Caps { held_bytes: MIB, ..Caps::NONE };
    let mut world = World::new(Config { domain, ..config() });
    for base in 1..=3 {
        let status = world.register(of_file(base, 7, 1024 * MIB)).status;
        assert_eq!(status.result(), Err(ErrorCode::NoQuota));
        assert_eq!(status.resource, Resource::HeldBytes as u8);
        assert_eq!(status.value, MIB);
    }
    assert_eq!(world.now_of(Resource::HeldBytes), 0);
}

#[test]
fn measured_when_a_file_has_grown_above_the_cap_then_charged_and_new_deposits_are_refused_by_name()
{
    let client = Caps { held_bytes: MIB, ..Caps::NONE };
    let mut world = World::new(Config { client, ..config() });
    let resident = never_evicted(of_file(1, 7, 4096));
    let id = world.register(resident).id;
    world.step(Input::Measured { files: &[(id.slot, 3 * MIB), (999, 1)] });
    assert_eq!(held_bytes(&world, OWNER), 3 * MIB);
    for deposit in [of_file(2, 7, 3 * MIB), of_file(3, 8, 4096)] {
        let status = world.register(deposit).status;
        assert_eq!(status.resource, Resource::HeldBytes as u8, "{status}");
    }
    assert!(world.register_by(USER, of_file(2, 9, 4096)).status.is_ok(), "another's account");
    world.step(Input::Measured { files: &[(id.slot, 4096)] });
    assert!(world.register(of_file(3, 8, 4096)).status.is_ok());
}

/// A range of an arena of 64 GiB of which nothing is written.
fn unwritten(base: u64, size_bytes: u64) -> Judged {
    let file = File { id: FileId { device: 1, inode: 7 }, pinned_bytes: 0, size_bytes: 64 << 30 };
    Judged { file: Some(file), claimed: sized(size_bytes, deposit(base)) }
}

#[test]
fn register_when_the_memory_is_not_written_then_ranges_are_charged_and_stay_so_at_each_look() {
    let client = Caps { held_bytes: 4 * MIB, ..Caps::NONE };
    let mut world = World::new(Config { client, ..config() });
    let pinned = |base: u64| {
        let Judged { claimed, file } = unwritten(base * 100, MIB);
        Judged { claimed: Deposit { recallable: false, ..claimed }, file }
    };
    let ids: Vec<_> = (1..=4).map(|base| world.register(pinned(base)).id).collect();
    assert_eq!(held_bytes(&world, OWNER), 4 * MIB);
    let refused = world.register(pinned(5)).status;
    assert_eq!(refused.resource, Resource::HeldBytes as u8, "{refused}");
    world.step(Input::Measured { files: &[(ids[0].slot, 0)] });
    assert_eq!(held_bytes(&world, OWNER), 4 * MIB, "it may be written now");
    world.step(Input::Measured { files: &[(ids[0].slot, 4 * MIB)] });
    assert_eq!(held_bytes(&world, OWNER), 4 * MIB, "each byte counts once");
    world.unregister(OWNER, ids[3]);
    assert_eq!(held_bytes(&world, OWNER), 4 * MIB, "it has been written");
    world.step(Input::Measured { files: &[(ids[0].slot, MIB)] });
    assert_eq!(held_bytes(&world, OWNER), 3 * MIB);
}

#[test]
fn register_when_ranges_overlap_then_at_most_the_file_is_charged() {
    let mut world = World::new(config());
    let file = File { id: FileId { device: 1, inode: 7 }, pinned_bytes: 0, size_bytes: 3 * MIB };
    for (client, base) in [(OWNER, 1), (USER, 1), (OTHER, 1)] {
        let claimed = sized(2 * MIB, deposit(base));
        world.register_by(client, Judged { file: Some(file), claimed });
    }
    assert_eq!(world.now_of(Resource::HeldBytes), 3 * MIB);
}

#[test]
fn recall_when_the_memory_is_not_written_then_the_whole_range_is_charged_again() {
    let client = Caps { held_bytes: 4 * MIB, ..Caps::NONE };
    let mut world = World::new(Config { client, ..config() });
    let first = world.register(unwritten(100, 3 * MIB)).id;
    let second = world.register(unwritten(200, 3 * MIB)).id;
    let states = |world: &World| [first, second].map(|id| world.state(id));
    assert_eq!(states(&world), [AllocationState::Evicted, AllocationState::Held]);
    world.close_all();
    assert_eq!(held_bytes(&world, OWNER), 3 * MIB);
    world.acquire(USER, &[Ok(first)], 1000);
    world.close_all();
    assert_eq!(states(&world), [AllocationState::Recalling, AllocationState::Evicted]);
    assert_eq!(held_bytes(&world, OWNER), 3 * MIB);
}

#[test]
fn kept_when_its_owner_goes_and_another_adopts_it_then_the_file_is_charged_to_each_in_turn() {
    let mut world = World::new(config());
    let kept = kept_of(of_file(1, 7, 8192));
    let id = world.register(kept).id;
    assert_eq!(world.core.kept(id.slot).and_then(|kept| kept.deposit.file), kept.file);
    world.step(Input::Gone { client: OWNER });
    world.at(1);
    assert_eq!(world.now_of(Resource::HeldBytes), 8192, "its domain alone pays");
    let request = world.request();
    let item = Redeposit { id: Ok(id), deposit: kept.claimed, ended: false };
    world.step(Body::Redeposit { items: &[item] }.by(USER, request));
    assert_eq!(held_bytes(&world, USER), 8192);
}

#[test]
fn restore_when_files_are_held_then_each_is_charged_once_still_and_to_the_same_client() {
    let mut world = World::new(config());
    let first = world.register_by(OWNER, of_file(1, 7, 8192)).id;
    world.register_by(USER, of_file(1, 7, 8192));
    for base in 2..=3 {
        world.register_by(OWNER, of_file(base, 7, 8192));
    }
    world.unregister(OWNER, first);
    world.register_by(OTHER, of_file(1, 7, 8192));
    let gone = world.register_by(USER, of_file(2, 8, 4096)).id;
    world.step(Input::Evict { ids: &[gone] });
    world.close_all();
    let saved = world.core.save();
    world.core = Core::restore(config(), saved, world.now).expect("sound");
    world.core.check_invariants();
    assert_eq!(world.now_of(Resource::HeldBytes), 8192);
    assert_eq!(held_bytes(&world, OWNER), 8192);
}

#[test]
fn register_when_claimed_sizes_come_to_more_than_u64_then_nobody_is_refused_where_there_is_no_cap()
{
    let mut world = World::new(config());
    let huge = |base| sized(1 << 63, deposit(base));
    for base in 1..=3 {
        let status = world.register(huge(base)).status;
        assert!(status.is_ok(), "{base}: {status}");
    }
    let late = ClientId(5);
    world.connect(late, 2000);
    let small = world.register_by(late, deposit(1));
    assert!(small.status.is_ok(), "{}", small.status);
}

// --- eviction for bytes --------------------------------------------------------------------------

/// The owner has ranges 1 and 2 of file 7, and the user one of file 8, registered between them.
/// Each file pins two pages; the cap of held bytes is four.
fn two_files(ranges: [Judged; 2]) -> (World, [AllocationId; 2], AllocationId) {
    let node = Caps { held_bytes: 4 * 4096, ..Caps::NONE };
    let mut world = World::new(Config { node, ..config() });
    let first = world.register(ranges[0]).id;
    let other = world.register_by(USER, of_file(1, 8, 2 * 4096)).id;
    let second = world.register(ranges[1]).id;
    (world, [first, second], other)
}

#[test]
fn evict_when_a_range_of_the_file_stays_then_the_others_stay_too_and_another_file_goes() {
    let kept = kept_of(of_file(2, 7, 8192));
    let (mut world, [range, _], other) = two_files([of_file(1, 7, 8192), kept]);
    assert!(world.register_by(OTHER, of_file(1, 9, 8192)).status.is_ok());
    assert_eq!(world.state(range), AllocationState::Held, "to evict it would free nothing");
    assert_eq!(world.state(other), AllocationState::Evicted);
    world.unregister(USER, other);
    let resident = never_evicted(of_file(2, 10, 4096));
    world.register_by(OTHER, resident);
    world.close_all();
    let pinned = never_evicted(of_file(3, 11, 8192));
    let refused = world.register_by(OTHER, pinned).status;
    assert_eq!(refused.resource, Resource::HeldBytes as u8, "{refused}");
    assert_eq!(world.state(range), AllocationState::Held, "a refusal costs nobody an fd in vain");
}

#[test]
fn evict_when_an_owner_of_the_file_is_silent_then_it_goes_in_the_turn_of_another() {
    let node = Caps { held_bytes: 5 * 4096, ..Caps::NONE };
    let mut world = World::new(Config { node, ..config() });
    let evicted = world.register_by(USER, of_file(5, 8, 4096)).id;
    world.step(Input::Evict { ids: &[evicted] });
    world.close_all();
    let range = world.register(of_file(1, 7, 8192)).id;
    let silent = world.register_by(USER, of_file(1, 7, 8192)).id;
    let young = world.register(of_file(2, 9, 8192)).id;
    world.acquire(OTHER, &[Ok(evicted)], 1000);
    world.at(101);
    assert!(world.register_by(OTHER, of_file(1, 10, 8192)).status.is_ok());
    let states = [range, silent, young].map(|id| world.state(id));
    let evicted = AllocationState::Evicted;
    assert_eq!(
        states,
        [evicted, evicted, AllocationState::Held],
        "the bytes of a file go together"
    );
}

#[test]
fn evict_when_the_cap_of_a_client_is_in_the_way_then_no_range_of_a_file_that_another_pays_for() {
    let client = Caps { held_bytes: 8192, ..Caps::NONE };
    let mut world = World::new(Config { client, ..config() });
    world.register_by(USER, of_file(1, 7, 8192));
    let of_user = world.register(of_file(1, 7, 8192)).id;
    let own = world.register(of_file(2, 8, 8192)).id;
    assert!(world.register(of_file(3, 9, 8192)).status.is_ok());
    let states = [of_user, own].map(|id| world.state(id));
    assert_eq!(states, [AllocationState::Held, AllocationState::Evicted]);
}

#[test]
fn evict_when_a_file_has_more_ranges_than_a_step_evicts_then_a_recall_goes_on_until_it_is_gone() {
    let most = limits::EVICTIONS_PER_STEP as u64;
    let node = Caps { held_bytes: 8192, ..Caps::NONE };
    let mut world = World::new(Config { node, max_slots: 2048, ..config() });
    let wanted = world.register_by(USER, of_file(1, 8, 8192)).id;
    world.step(Input::Evict { ids: &[wanted] });
    world.close_all();
    for base in 1..=most + 1 {
        assert!(world.register(of_file(base, 7, 8192)).status.is_ok());
    }
    world.acquire(OTHER, &[Ok(wanted)], 1000);
    world.close_all();
    assert_eq!(world.state(wanted), AllocationState::Recalling);
}

// --- shares of bytes -----------------------------------------------------------------------------

/// A node of 90 pages of held memory, which domains share.
fn shared() -> Config {
    let node = Caps { held_bytes: 90 * 4096, ..Caps::NONE };
    Config { node, share_factor: 8, ..config() }
}

/// Three clients of one domain, and one of another.
fn ninety_pages() -> (World, ClientId) {
    let mut world = World::new(shared());
    let other = ClientId(5);
    world.connect(other, 2000);
    (world, other)
}

fn resident(base: u64, pages: u64) -> Deposit {
    sized(pages * 4096, Deposit { recallable: false, ..deposit(base) })
}

#[test]
fn register_when_it_cannot_fit_beside_resident_memory_then_nothing_is_evicted_for_it() {
    let node = Caps { held_bytes: 10 * 4096, ..Caps::NONE };
    let mut world = World::new(Config { node, ..config() });
    assert!(world.register(resident(1, 6)).status.is_ok());
    let evictable = [20, 30].map(|base| world.register(of_file(base, base, 8192)).id);
    assert!(!world.register(resident(40, 5)).status.is_ok());
    assert_eq!(evictable.map(|id| world.state(id)), [AllocationState::Held; 2]);
    assert!(world.register(resident(50, 4)).status.is_ok(), "this one fits");
}

#[test]
fn bytes_when_another_domain_has_evictable_memory_then_that_counts_as_free() {
    let (mut world, other) = ninety_pages();
    let evictable = sized(90 * 4096, deposit(1));
    let evictable = world.register(evictable).id;
    assert!(world.register_by(other, resident(1, 80)).status.is_ok());
    assert_eq!(world.state(evictable), AllocationState::Evicted);
}

#[test]
fn bytes_when_refused_for_the_share_then_nothing_is_evicted_for_it() {
    let (mut world, _) = ninety_pages();
    let evictable = world.register(deposit(1)).id;
    let refused = world.register_by(USER, resident(2, 81)).status;
    assert_eq!(refused.scope().map_or(0, |it| it as u8), Scope::Domain as u8, "{refused}");
    assert_eq!(world.state(evictable), AllocationState::Held);
}

#[test]
fn bytes_when_a_file_has_a_resident_range_then_the_share_counts_all_that_it_pins_once() {
    let (mut world, _) = ninety_pages();
    let range = |base, pages: u64| of_file(base, 7, pages * 4096);
    let first = world.register(range(1, 80)).id;
    for base in [2, 3] {
        let resident = never_evicted(range(base, 80));
        assert!(world.register(resident).status.is_ok(), "{base}");
    }
    assert!(!world.register_by(USER, resident(1, 1)).status.is_ok());
    world.step(Input::Measured { files: &[(first.slot, 70 * 4096)] });
    assert!(world.register_by(USER, resident(1, 1)).status.is_ok(), "it has shrunk");
    world.close_all();
    world.core = Core::restore(shared(), world.core.save(), world.now).expect("sound");
    world.core.check_invariants();
    assert!(!world.register_by(USER, resident(2, 10)).status.is_ok(), "the next broker knows it");
}

#[test]
fn bytes_when_a_user_comes_under_subordinate_uids_then_these_have_one_share() {
    let range = SubordinateRange { first: 2000, count: 1, user: Some(1000) };
    let subordinate_uids = SubordinateUids::new(vec![range]);
    let mut world = World::new(Config { subordinate_uids, ..shared() });
    world.connect(ClientId(5), 2000);
    assert!(world.register(resident(1, 80)).status.is_ok());
    assert!(!world.register_by(ClientId(5), resident(1, 1)).status.is_ok());
}

#[test]
fn bytes_when_the_broker_is_private_then_there_is_no_share() {
    let mut world = World::new(Config { share_factor: NO_CAP, ..shared() });
    assert!(world.register(resident(1, 90)).status.is_ok());
}
