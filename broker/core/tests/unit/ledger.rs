//! Unit tests of `src/ledger.rs`, which is not public.

use super::*;
use fdbroker_protocol::Caps;

/// A client of a job, and its ledger with room for five held fds in the table.
fn of_a_client(node: Caps) -> (Ledger, ScopeId) {
    let caps = CapsOfScopes { node, ..CapsOfScopes::all(Caps::NONE) };
    let mut ledger = Ledger::new(caps, TABLE_RESERVE + 5);
    let domain = ledger.open(Scope::Domain, 2, ScopeId::NODE);
    let job = ledger.open(Scope::Job, 3, domain);
    let client = ledger.open(Scope::Client, 4, job);
    (ledger, client)
}

#[test]
fn charge_when_one_cap_is_in_the_way_then_no_account_changes() {
    let (mut ledger, client) = of_a_client(Caps { fds: 3, ..Caps::NONE });
    ledger.charge(client, Charge(Resource::OpenLeases, 2)).expect("fits");
    let accounts = |ledger: &Ledger| -> Vec<Account> {
        ledger.path(client).map(|scope| ledger[scope].account).collect()
    };
    let before = accounts(&ledger);
    let refused = ledger.charge(client, Charge(Resource::HeldFds, 2)).unwrap_err();
    assert_eq!(refused, Blocked { resource: Resource::Fds, scope: ScopeId::NODE });
    assert_eq!(accounts(&ledger), before);
}

#[test]
fn close_when_a_request_waits_for_its_room_then_the_number_is_not_used_again_until_it_leaves() {
    let (mut ledger, client) = of_a_client(Caps::NONE);
    let blocked = Blocked { resource: Resource::HeldFds, scope: client };
    ledger.block(blocked);
    ledger.close(client);
    let next = ledger.open(Scope::Client, 5, ScopeId::NODE);
    assert_ne!(next, client);
    ledger.unblock(blocked);
    assert_eq!(ledger.open(Scope::Client, 6, ScopeId::NODE), client);
}

#[test]
#[should_panic(expected = "less than")]
fn take_when_not_charged_then_panics() {
    let (mut ledger, client) = of_a_client(Caps::NONE);
    ledger.take(client, Charge(Resource::OwnFds, 1));
}
