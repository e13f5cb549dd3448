//! Unit tests of `src/ledger.rs`, which is not public.

use super::*;

fn charge(accounts: &mut [Account; 4], caps: [&Caps; 4], charge: Charge) -> Result<(), Blocked> {
    let [client, job, domain, node] = accounts;
    let (client, job, domain) = (Some((4, client)), Some((3, job)), (2, domain));
    Accounts { client, job, domain, node, caps, table_room: 5 }.charge(charge)
}

#[test]
fn charge_when_one_cap_is_in_the_way_then_no_account_changes() {
    let mut accounts = [Account::default(); 4];
    let node = Caps { fds: 3, ..Caps::NONE };
    let caps = [&Caps::NONE, &Caps::NONE, &Caps::NONE, &node];
    charge(&mut accounts, caps, Charge(Resource::OpenLeases, 2)).expect("fits");
    let before = accounts;
    let refused = charge(&mut accounts, caps, Charge(Resource::HeldFds, 2)).unwrap_err();
    assert_eq!(refused, Blocked { resource: Resource::Fds, account: Holder::Node });
    assert_eq!(accounts, before);
}

#[test]
fn charge_when_the_table_is_full_then_held_is_refused_and_leases_are_not() {
    let mut accounts = [Account::default(); 4];
    let caps = [&Caps::NONE; 4];
    let refused = charge(&mut accounts, caps, Charge(Resource::HeldFds, 6)).unwrap_err();
    assert_eq!(refused.resource, Resource::TableFds);
    charge(&mut accounts, caps, Charge(Resource::OpenLeases, 6)).expect("fits");
}

#[test]
#[should_panic(expected = "less than")]
fn release_when_not_charged_then_panics() {
    let [mut client, mut domain, mut node] = [Account::default(); 3];
    let caps = [&Caps::NONE; 4];
    let (client, job, domain) = (Some((0, &mut client)), None, (0, &mut domain));
    let node = &mut node;
    Accounts { client, job, domain, node, caps, table_room: 0 }
        .release(Charge(Resource::OwnFds, 1));
}
