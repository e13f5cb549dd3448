//! A client's further sockets, which it connects itself.

use crate::support::{FakeBroker, Terms, handle, soon};
use fdbroker_client::{Client, ErrorCode};
use fdbroker_protocol::message::Role;
use std::thread;

#[test]
fn connect_when_others_crowd_at_the_door_then_the_event_socket_tries_again() {
    let broker = FakeBroker::listen();
    let (client, _main, _events) = thread::scope(|scope| {
        let client = scope.spawn(|| Client::builder().socket(&broker.path).connect().unwrap());
        let main = broker.let_in(Terms::default());
        (0..3).for_each(|_| broker.refuse_join(ErrorCode::Again));
        let events = broker.accept_join(Role::Events);
        (client.join().unwrap(), main, events)
    });
    assert!(client.is_connected());
}

#[test]
fn connect_when_the_event_socket_is_refused_then_not_connected_at_once() {
    let broker = FakeBroker::listen();
    for code in [ErrorCode::NotPermitted, ErrorCode::Protocol] {
        let error = thread::scope(|scope| {
            let builder = Client::builder().socket(&broker.path);
            let client = scope.spawn(|| builder.connect().unwrap_err());
            let _main = broker.let_in(Terms::default());
            broker.refuse_join(code);
            client.join().unwrap()
        });
        let expected = if code == ErrorCode::NotPermitted { ErrorCode::NotConnected } else { code };
        assert_eq!(error.code, expected, "{error}");
    }
}

#[test]
fn connect_when_the_broker_ends_before_the_event_socket_has_joined_then_not_connected_at_once() {
    let mut broker = FakeBroker::listen();
    let path = broker.path.clone();
    let error = thread::scope(|scope| {
        let builder = Client::builder().socket(&path);
        let client = scope.spawn(|| builder.connect().unwrap_err());
        let main = broker.let_in(Terms::default());
        broker.stop();
        drop(main);
        client.join().unwrap()
    });
    assert_eq!(error.code, ErrorCode::NotConnected, "{error}");
}

#[test]
fn fetch_ahead_when_the_broker_has_no_socket_for_it_then_asked_once_and_acquires_go_on() {
    let broker = FakeBroker::listen();
    let (client, _peer) = broker.client();
    thread::scope(|scope| {
        let fetch = scope.spawn(|| client.fetch_ahead(&[handle(1)], soon()));
        broker.refuse_join(ErrorCode::NotSupported);
        assert_eq!(fetch.join().unwrap(), 0);
    });
    // Else this would wait for an answer to another join.
    assert_eq!(client.fetch_ahead(&[handle(1)], soon()), 0);
}
