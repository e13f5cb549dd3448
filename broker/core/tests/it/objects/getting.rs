//! Gets: the cap that is in the way, and how much one answer or step may have.

use super::*;

fn one_lease() -> Config {
    Config { client: Caps { open_leases: 1, ..Caps::NONE }, ..config() }
}

#[test]
fn get_when_no_lease_is_free_then_it_waits_in_line_and_its_error_is_the_cap() {
    let mut world = World::new(one_lease());
    world.put(OWNER, &["a"]);
    let first = world.get(USER, &["a"]);
    let no_quota = Status::no_quota(Resource::OpenLeases, Scope::Client, 1, 4001);
    assert_eq!(world.get(USER, &["a"]), Got::Failed(no_quota));
    let (waits, _) = world.ask(USER, &["a"], 10);
    let (late, _) = world.ask(USER, &["a"], 20);
    let effects = world.at(10);
    assert_eq!(world.got(&effects, waits), Got::Failed(no_quota));
    world.release(USER, first.grants()[0].lease);
    assert_eq!(world.got(&world.fx.list, late).grants().len(), 1);
}

#[test]
fn get_when_more_groups_are_wanted_than_an_answer_may_have_then_again_says_how_many() {
    let mut world = World::new(config());
    world.put(OWNER, &["a"]);
    world.put(OWNER, &["b"]);
    world.step(Input::MostGranted { fds: 1 });
    let again = Status::with_value(ErrorCode::Again, 1);
    assert_eq!(world.get(USER, &["a", "b"]), Got::Failed(again));
    assert_eq!(world.get(USER, &["a"]).grants().len(), 1);
}

#[test]
fn get_when_many_wait_for_one_name_then_all_are_served_in_portions() {
    let mut world = World::new(Config { max_parked_per_client: 4096, ..config() });
    let waits: Vec<RequestId> = (0..500).map(|_| world.ask(USER, &["a"], 100).0).collect();
    world.put(OWNER, &["a"]);
    let mut served = world.fx.objects.len();
    assert!(served > 0 && served < waits.len(), "{served} in one step");
    while world.core.poll_timeout() == Some(Now(0)) {
        world.at(0);
        served += world.fx.objects.len();
    }
    assert_eq!(served, waits.len());
}
