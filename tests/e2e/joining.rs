//! Clients connect their further sockets themselves: between the real library, clients that speak
//! by hand, and the real daemon.

use crate::common::not_run;
use crate::support::broker::{Broker, Setup};
use crate::support::memory::assert_bytes;
use crate::support::owner::Owner;
use crate::support::raw::{Raw, join, try_join};
use crate::support::wait::{eventually, patience};
use fdbroker_protocol::ErrorCode;
use fdbroker_protocol::message::Role;
use std::os::fd::AsFd;

#[test]
fn clients_when_many_connect_at_once_then_all_get_their_event_sockets() {
    const NAME: &str = "clients_when_many_connect_at_once_then_all_get_their_event_sockets";
    const CLIENTS: usize = 96;
    if !nix::unistd::geteuid().is_root() {
        return not_run(NAME, "a service needs a user of its own: root");
    }
    let broker = Setup::new().service().start();
    let owner = Owner::of(&broker, "owner", 1);
    let handle = owner.handle(0);
    std::thread::scope(|threads| {
        for _ in 0..CLIENTS {
            threads.spawn(|| {
                let client = broker.client("rank");
                let grant = client.acquire(&handle, patience()).expect("granted");
                drop(assert_bytes(grant, 0));
            });
        }
    });
    drop(owner);
    broker.assert_nothing_left();
}

#[test]
fn join_when_the_broker_was_replaced_meanwhile_then_the_next_one_knows_the_client() {
    let mut broker = Broker::start();
    let raw = Raw::connect(&broker.socket());
    let reply = *raw.reply();
    broker.take_over();
    let ahead = join(&broker.socket(), &reply, Role::Ahead);
    let (_second, answer) = try_join(&broker.socket(), &reply, Role::Events);
    assert_eq!(answer.failure().result(), Err(ErrorCode::NotPermitted));
    // Nothing can be sent into it, so that nothing ever lies in the broker's end.
    assert!(fdbroker_scm::send(ahead.as_fd(), &[1], &[]).is_err());
    drop((raw, ahead));
    eventually("nothing is left", || broker.status().uses.connections.now.get() == 0);
}

#[test]
fn join_when_the_broker_was_killed_meanwhile_then_refused() {
    let mut broker = Broker::start();
    let raw = Raw::connect(&broker.socket());
    let reply = *raw.reply();
    broker.kill();
    broker.restart();
    for role in [Role::Events, Role::Ahead] {
        let (_socket, answer) = try_join(&broker.socket(), &reply, role);
        assert_eq!(answer.failure().result(), Err(ErrorCode::NotPermitted));
    }
}
