//! What a version has from those that it replaces, and is too much for a cap.

use super::*;

const SAYS_NOTHING: Inherits = Inherits { keep: true, pin: true };

fn replacing<'a>(objects: &'a [NewObject<'a>]) -> Create<'a> {
    Create { replace: true, inherits: SAYS_NOTHING, ..create(objects) }
}

fn kept<'a>(objects: &'a [NewObject<'a>], ms: u64) -> Create<'a> {
    Create { keep_us: Some(ms * MS), ..create(objects) }
}

impl World {
    fn put_by(&mut self, client: ClientId, create: &Create<'_>) -> u64 {
        let group = self.create_with(client, create).expect("begun");
        self.seal(client, group).expect("sealed")
    }
}

#[test]
fn seal_when_what_it_inherits_is_too_much_then_the_cap_says_so_and_the_old_version_stays() {
    let objects = [object("a")];
    let pinned = Create { pin: true, ..create(&objects) };
    for (caps, first, said) in [
        (
            Caps { permanent_bytes: SIZE, ..Caps::NONE },
            pinned,
            "new version inherits the pin: make it without",
        ),
        (
            Caps { kept_bytes: SIZE, ..Caps::NONE },
            kept(&objects, 100),
            "new version inherits that: make it without",
        ),
    ] {
        let mut world = World::new(Config { domain: caps, ..config() });
        let version = world.put_by(OWNER, &first);
        let group = world.create_with(OTHER, &replacing(&objects)).expect("begun");
        let refused = world.seal(OTHER, group).expect_err("two do not fit");
        assert_eq!(refused.result(), Err(ErrorCode::NoQuota));
        assert!(refused.to_string().contains(said), "{refused}");
        assert_eq!(world.get(USER, &["a"]).versions(), [version]);
        let asked = Create { replace: true, ..first };
        let group = world.create_with(OTHER, &asked).expect("begun");
        let refused = world.seal(OTHER, group).expect_err("two do not fit").to_string();
        assert!(!refused.contains("inherits"), "{refused}");
    }
}
