//! Caps and shares of what objects are charged with.

use super::*;
use fdbroker_core::limits::OBJECT_RECORD_BYTES;
use fdbroker_core::{Body, File, FileId};

fn capped(domain: Caps) -> World {
    World::new(Config { domain, ..config() })
}

#[test]
fn seal_when_a_kept_group_has_grown_above_the_cap_then_no_quota_until_it_fits() {
    let mut world = capped(Caps { held_bytes: 2 * SIZE, ..Caps::NONE });
    let objects = [object("a")];
    let file = File { id: FileId { device: 1, inode: 7 }, pinned_bytes: 0, size_bytes: 0 };
    let deposit = arrived(Judged { file: Some(file), claimed: sized(SIZE, deposit(0)) });
    let kept = Create { deposit, keep_us: Some(1_000_000), ..create(&objects) };
    let group = world.create_with(OWNER, &kept).expect("it pins nothing");
    let slot = world.core.making_of(OWNER, group).expect("in the making").allocation.slot;
    world.step(Input::Measured { files: &[(slot, 3 * SIZE)] });
    let full = Status::no_quota(Resource::HeldBytes, Scope::Domain, 2 * SIZE, 0);
    let refused = world.seal(OWNER, group).expect_err("it pins more than may be held");
    assert_eq!(Status { pid: 0, ..refused }, full);
    assert_eq!(world.now_of(Resource::KeptBytes), 0);
    world.step(Input::Measured { files: &[(slot, 2 * SIZE)] });
    world.seal(OWNER, group).expect("it fits");
}

#[test]
fn create_when_a_domain_has_its_share_of_names_then_another_one_finds_some() {
    let node = Caps { object_names: 64, ..Caps::NONE };
    fills_half(node, Resource::ObjectNames, 32);
}

#[test]
fn create_when_a_domain_fills_the_memory_for_records_with_names_then_another_one_finds_some() {
    // Names of at most two bytes.
    let metadata_bytes = 65 * (OBJECT_RECORD_BYTES + 2);
    let node = Caps { metadata_bytes, ..Caps::NONE };
    fills_half(node, Resource::MetadataBytes, 32);
}

/// One domain gets so many names, and then another one is served.
fn fills_half(node: Caps, resource: Resource, most: u64) {
    let mut world = World::new(Config { node, share_factor: 1, ..config() });
    let mut made = 0;
    let status = loop {
        let name = format!("n{made}");
        match world.create_with(OWNER, &create(&[object(&name)])) {
            Ok(_) => made += 1,
            Err(status) => break status,
        }
    };
    assert_eq!(status.result(), Err(ErrorCode::NoQuota));
    assert_eq!((status.resource, made), (resource as u8, most));
    let other = ClientId(5);
    world.connect(other, 2000);
    assert!(world.create_with(other, &create(&[object("a")])).is_ok());
}

#[test]
fn refusal_when_kept_objects_hold_most_then_no_process_is_named_for_it() {
    let node = Caps { fds: 4, ..Caps::NONE };
    let mut world = World::new(Config { node, base_credits: 0, ..config() });
    for name in ["a", "b", "c", "d"] {
        let objects = [object(name)];
        let pinned = Create { pin: true, ..create(&objects) };
        world.register_credit(OWNER);
        let group = world.create_with(OWNER, &pinned).expect("room");
        world.seal(OWNER, group).expect("sealed");
    }
    let refused = world.credit_refusal(OWNER);
    assert_eq!((refused.resource, refused.pid), (Resource::Fds as u8, 0), "{refused}");
    assert!(refused.to_string().contains("held by named objects"), "{refused}");
}

#[test]
fn refusal_when_another_user_holds_most_then_its_pid_is_not_told() {
    let node = Caps { fds: 4, ..Caps::NONE };
    let mut world = World::new(Config { node, base_credits: 0, ..config() });
    let stranger = ClientId(7);
    world.connect(stranger, 1001);
    for base in 1..=4 {
        world.register(Deposit { recallable: false, ..deposit(base) });
    }
    let refused = world.credit_refusal(stranger);
    assert_eq!(refused.pid, 0);
    assert!(refused.to_string().contains("most of it held by another user"), "{refused}");
    let to_its_own = world.credit_refusal(USER);
    assert_eq!(to_its_own.pid, 4000, "{to_its_own}");
}

impl World {
    fn ask_for_credit(&mut self, client: ClientId) -> Vec<Effect> {
        let (request, deadline, deposits) = (self.request(), Now(0), &[][..]);
        let held = self.client(client).record.credits + 1;
        let credits_wanted = u32::try_from(held).expect("few");
        self.step(Body::Register { deposits, credits_wanted, deadline }.by(client, request))
    }

    /// One deposit credit more.
    fn register_credit(&mut self, client: ClientId) {
        self.ask_for_credit(client);
    }

    /// Why there is none.
    fn credit_refusal(&mut self, client: ClientId) -> Status {
        let effects = self.ask_for_credit(client);
        let refused = effects.iter().find_map(|effect| match effect {
            Effect::Failed { status, .. } => Some(*status),
            _ => None,
        });
        refused.expect("no room")
    }
}
