//! How many may make one name.

use super::*;

fn replacing<'a>(objects: &'a [NewObject<'a>]) -> Create<'a> {
    Create { replace: true, ..create(objects) }
}

#[test]
fn create_when_too_many_make_one_name_then_again() {
    let mut world = World::new(config());
    for _ in 0..limits::MAKERS_PER_NAME {
        world.create_with(OWNER, &replacing(&[object("a")])).expect("begun");
    }
    let status = world.create_with(OWNER, &replacing(&[object("a")]));
    assert_eq!(status.expect_err("too many").result(), Err(ErrorCode::Again));
}
