//! Pods of one uid at one listener: they are domains like those of different uids, in whatever the
//! core keeps by domain.

use super::lives::{KEY, SLOT, record};
use super::*;

fn pod(number: u64) -> DomainKey {
    DomainKey { pod: PodKey([number, 0]), ..DomainKey::new(0, 1000) }
}

impl World {
    fn client_in(&mut self, client: ClientId, domain: DomainKey) {
        self.step(connect(client, domain, 4000 + client.0));
        self.step(Body::Hello { own_fds: 0, deadline: Now(0) }.by(client, RequestId(1)));
    }

    /// What it is answered at once for an allocation.
    fn answered(&mut self, client: ClientId, id: AllocationId) -> Result<(), ErrorCode> {
        self.acquire(client, &[Ok(id)], 0);
        self.fx.granted[0].status.result()
    }
}

#[test]
fn acquire_when_the_uid_is_in_another_pod_then_refused_unless_shared_with_all() {
    let mut world = World::new(config());
    let [one, same, other] = [5, 6, 7].map(ClientId);
    for (client, number) in [(one, 1), (same, 1), (other, 2)] {
        world.client_in(client, pod(number));
    }
    let own = world.register_by(one, deposit(1)).id;
    let shared = world.register_by(one, Deposit { share: Share::Any, ..deposit(2) }).id;
    assert_eq!(world.answered(same, own), Ok(()));
    for stranger in [other, USER] {
        assert_eq!(world.answered(stranger, own), Err(ErrorCode::NotPermitted));
        assert_eq!(world.answered(stranger, shared), Ok(()));
    }
    assert_eq!(world.core.domains(0).filter(|(_, it, _)| it.key.uid == 1000).count(), 3);
    world.restart(config());
    assert_eq!(world.answered(same, own), Ok(()));
    assert_eq!(world.answered(other, own), Err(ErrorCode::NotPermitted));
}

#[test]
fn connect_when_a_pod_comes_under_many_uids_then_it_has_one_share_and_few_domains() {
    let most = limits::DOMAINS_PER_USER as u32;
    let mut world = World::new(Config { max_domains: most + 8, max_clients: 64, ..config() });
    let of = |uid, pod| DomainKey { pod: PodKey([pod, 0]), ..DomainKey::new(0, uid) };
    for number in 0..most {
        let key = of(100_000 + number, 1);
        world.client_in(ClientId(10 + number), DomainKey { listener: number % 2, ..key });
    }
    let late = ClientId(10 + most);
    let refused = world.step(connect(late, of(0, 1), 1));
    let Some(Effect::Disconnect { status, .. }) = refused.first() else { panic!("{refused:?}") };
    assert_eq!((status.resource, status.value), (Resource::Domains as u8, most.into()));
    world.client_in(late, of(0, 2));

    let connections = |uids: u32| {
        let table_fds = limits::TABLE_RESERVE + 1000;
        let mut world = World::new(Config { table_fds, share_factor: 8, ..config() });
        let welcome = |number: &u32| {
            let client = ClientId(10 + number);
            world.step(connect(client, of(number % uids, 1), 1));
            let hello = Body::Hello { own_fds: 0, deadline: Now(0) }.by(client, RequestId(1));
            world.step(hello).iter().any(|it| matches!(it, Effect::Welcome { .. }))
        };
        (0..).take_while(welcome).count()
    };
    assert_eq!(connections(8), connections(1));
}

#[test]
fn redeposit_when_after_a_crash_then_the_pod_alone_has_its_own() {
    let life =
        FormerLife::Live { record: Record { domain: pod(1), ..record() }, owner_lives: true };
    let slots = [FormerSlot { id: SLOT, life }];
    let config = Config { first_generation: 100, ..config() };
    let former = Former { slots: &slots, ..Former::default() };
    let core = Core::after_crash(config, former, Now(0)).expect("it fits");
    let mut world = World { core, now: Now(0), fx: Effects::default(), requests: 100 };
    let [owner, same, other] = [5, 6, 7].map(ClientId);
    for (client, number) in [(owner, 1), (same, 1), (other, 2)] {
        world.client_in(client, pod(number));
    }
    // Whoever is known by the owner's key, but is in another pod.
    world.step(Input::Identify { client: other, key: KEY });
    assert_eq!(world.redeposit(other, SLOT, deposit(1)).result(), Err(ErrorCode::NotPermitted));
    world.step(Input::Identify { client: owner, key: KEY });
    assert_eq!(world.redeposit(owner, SLOT, deposit(1)).result(), Ok(()));
    assert_eq!(world.answered(same, SLOT), Err(ErrorCode::Again), "it is asked for");
    assert_eq!(world.answered(other, SLOT), Err(ErrorCode::NotPermitted));
}

#[test]
fn domains_when_5000_pods_have_left_something_then_each_has_its_own_and_clients_come_as_before() {
    let pods = 5000;
    let roomy = Config { max_slots: 8192, table_fds: 20_000, ..config() };
    let mut world = World::new(roomy.clone());
    let client = ClientId(5);
    let mut ids = Vec::new();
    let step = |world: &mut World, input: Input<'_>| {
        world.fx.clear();
        world.core.step(world.now, input, &mut world.fx);
    };
    for number in 1..=pods {
        step(&mut world, connect(client, pod(number), 1));
        let deadline = Now(u64::MAX);
        step(&mut world, Body::Hello { own_fds: 0, deadline }.by(client, RequestId(1)));
        let deposits = &[arrived(Deposit { keep: true, ..deposit(number) })];
        let register = Body::Register { deposits, credits_wanted: 0, deadline };
        step(&mut world, register.by(client, RequestId(2)));
        ids.push(world.fx.registered[0].id);
        step(&mut world, Input::Gone { client });
    }
    world.core.check_invariants();
    let all: Vec<_> = world.core.domains(0).map(|(_, it, _)| it.key).collect();
    assert!((1..=pods).all(|number| all.contains(&pod(number))));
    assert!(world.core.now_in_node(Resource::Domains) < 8, "they have no clients");
    for number in [1, 2500, pods] {
        world.client_in(client, pod(number));
        for other in [1, 2, 2500, pods] {
            let expected = if other == number { Ok(()) } else { Err(ErrorCode::NotPermitted) };
            let id = ids[usize::try_from(other).expect("few") - 1];
            assert_eq!(world.answered(client, id), expected, "{number} {other}");
        }
        world.step(Input::Gone { client });
    }
    world.restart(roomy);
    assert_eq!(world.core.domains(0).count(), all.len());
}
