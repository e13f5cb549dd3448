//! Further sockets of clients, which these connect themselves: who may join, when, and how often.

use super::*;
use crate::limits::LOBBY_PER_DOMAIN;
use fdbroker_core::{DomainKey, PodKey};

/// A socket that says this first; the answer to it.
fn say(bench: &mut Bench, bytes: &[u8]) -> (Peer, Result<(), ErrorCode>) {
    let socket = bench.raw();
    socket.send(bytes, &[]);
    bench.rest();
    let answer = answer(&socket);
    (socket, answer)
}

fn answer(socket: &Peer) -> Result<(), ErrorCode> {
    let (bytes, fds) = socket.recv().unwrap();
    assert!(fds.is_empty());
    let message = Message::parse(&bytes).unwrap();
    match message.kind {
        Kind::Joined => Ok(()),
        kind => {
            assert_eq!(kind, Kind::Failed);
            message.status().unwrap().result()
        }
    }
}

fn is_at_end(socket: &Peer) -> bool {
    matches!(socket.recv(), Err(RecvError::Eof))
}

#[test]
fn hello_when_answered_then_the_reply_carries_one_fd_and_that_is_no_socket() {
    let bench = &mut Bench::new(&[]);
    let peer = bench.raw();
    peer.send(&hello(), &[]);
    bench.until(|server| server.connections.iter().any(|(_, it)| it.is_joining()));
    let (bytes, fds) = peer.recv().unwrap();
    let message = Message::parse(&bytes).unwrap();
    assert_eq!((message.kind, message.fd_count, fds.len()), (Kind::HelloReply, 1, 1));
    assert!(nix::sys::socket::getsockopt(&fds[0], nix::sys::socket::sockopt::SockType).is_err());
}

#[test]
fn join_when_anything_of_it_is_wrong_then_refused_alike_and_the_client_is_served() {
    let bench = &mut Bench::new(&[]);
    let (client, reply) = bench.let_in();
    let wrong = [
        HelloReply { secret: (reply.secret.get() ^ 1).into(), ..reply },
        HelloReply { secret: 0.into(), ..reply },
        HelloReply { client: (reply.client.get() + 1).into(), ..reply },
        HelloReply { client: u32::MAX.into(), ..reply },
    ];
    for reply in wrong {
        for role in [Role::Events, Role::Ahead] {
            let (socket, answer) = say(bench, &join_message(&reply, role));
            assert_eq!(answer, Err(ErrorCode::NotPermitted));
            bench.rest();
            assert!(is_at_end(&socket));
        }
    }
    let mut no_role = join_message(&reply, Role::Events);
    no_role[20] = 9;
    assert_eq!(say(bench, &no_role).1, Err(ErrorCode::Protocol));
    assert_eq!(bench.server.connections.len(), 1);
    client.send(&release(5), &[]);
    bench.rest();
    assert_eq!(client.count(), 1);
    assert_eq!(say(bench, &join_message(&reply, Role::Events)).1, Ok(()));
}

#[test]
fn join_when_it_comes_from_another_user_listener_or_pod_then_refused() {
    let bench = &mut Bench::new(&[]);
    let (_client, reply) = bench.let_in();
    let own = bench.server.connections[0].domain;
    let others = [
        DomainKey { uid: own.uid + 1, ..own },
        DomainKey { listener: 1, ..own },
        DomainKey { pod: PodKey([1, 2]), ..own },
    ];
    for domain in others {
        bench.server.connections[0].domain = domain;
        assert_eq!(say(bench, &join_message(&reply, Role::Events)).1, Err(ErrorCode::NotPermitted));
    }
    bench.server.connections[0].domain = own;
    assert_eq!(say(bench, &join_message(&reply, Role::Events)).1, Ok(()));
}

#[test]
fn join_when_events_have_joined_then_a_second_one_is_refused_and_the_first_goes_on() {
    let bench = &mut Bench::new(&[]);
    let (_client, event, reply) = bench.greeted();
    assert_eq!(say(bench, &join_message(&reply, Role::Events)).1, Err(ErrorCode::NotPermitted));
    assert!(matches!(event.recv(), Err(RecvError::WouldBlock)));
}

#[test]
fn join_when_its_client_has_ended_then_refused() {
    let bench = &mut Bench::new(&[]);
    let (client, reply) = bench.let_in();
    drop(client);
    bench.until(|server| server.connections.is_empty());
    assert_eq!(say(bench, &join_message(&reply, Role::Events)).1, Err(ErrorCode::NotPermitted));
    // Another client has the number now.
    let (_other, others) = bench.let_in();
    assert_eq!(others.client, reply.client);
    assert_ne!(others.secret, reply.secret);
    assert_eq!(say(bench, &join_message(&reply, Role::Events)).1, Err(ErrorCode::NotPermitted));
}

#[test]
fn join_when_it_has_fds_or_is_cut_short_then_refused_and_no_fd_is_taken() {
    // Later kernels refuse them at the sender.
    let kernel = KernelFeatures::without("pass_rights").unwrap();
    let (closed, close) = counter();
    let bench = &mut Bench::with(&[], kernel, Arc::new(move |fd, _| (drop(fd), close()).1));
    let (_client, reply) = bench.let_in();
    let whole = join_message(&reply, Role::Events);
    assert_eq!(say(bench, &whole[..whole.len() - 1]).1, Err(ErrorCode::Protocol));
    let socket = bench.raw();
    socket.send(&whole, &[memfd().as_fd()]);
    bench.rest();
    assert_eq!(answer(&socket), Err(ErrorCode::Protocol));
    assert!(bench.server.inbox.fds().is_empty());
    bench.until(|_| counted(&closed) > 0);
    assert_eq!(bench.server.fds.arrived_count(), 0);
    assert_eq!(say(bench, &whole).1, Ok(()));
}

#[test]
fn events_when_due_before_their_socket_has_joined_then_they_come_when_it_has() {
    let bench = &mut Bench::new(WHOLE_MESSAGES);
    let (owner, _events) = bench.client();
    let handle = bench.register(&owner);
    let (holder, reply) = bench.let_in();
    holder.send(&acquire(3, &handle, 0), &[]);
    bench.rest();
    assert_eq!(holder.count(), 1);
    drop(owner);
    bench.until(|server| server.connections.len() == 1);
    bench.rest();
    assert_ne!(bench.server.timeout(), Some(Duration::ZERO), "it does not spin");
    let (event, answer) = say(bench, &join_message(&reply, Role::Events));
    assert_eq!(answer, Ok(()));
    let (bytes, _) = event.recv().unwrap();
    assert_eq!(Message::parse(&bytes).unwrap().kind, Kind::Revoked);
}

#[test]
fn events_when_they_do_not_join_in_time_then_the_client_is_ended_and_others_stay() {
    let bench = &mut Bench::new(&["limits.handshake_timeout_ms=300"]);
    let (_other, event) = bench.client();
    let (client, _reply) = bench.let_in();
    bench.until(|server| server.connections.len() == 1);
    assert!(is_at_end(&client));
    assert!(matches!(event.recv(), Err(RecvError::WouldBlock)));
    assert_eq!(bench.server.connections.joining(), 0);
}

#[test]
fn join_when_the_broker_is_full_then_the_sockets_of_its_clients_find_places() {
    let bench = &mut Bench::new(&["limits.max_clients=2"]);
    let clients = [bench.let_in(), bench.let_in()];
    let refused = bench.raw();
    refused.send(&hello(), &[]);
    bench.rest();
    assert_eq!(refused.failed().result(), Err(ErrorCode::NoQuota));
    for (_, reply) in &clients {
        assert_eq!(say(bench, &join_message(reply, Role::Events)).1, Ok(()));
    }
}

#[test]
fn state_when_handed_over_then_callers_and_clients_to_be_joined_go_along() {
    let mut bench = Bench::new(&[]);
    let (client, event, _) = bench.greeted();
    let (late, reply) = bench.let_in();
    let (silent, greeting) = (bench.raw(), bench.raw());
    bench.rest();
    greeting.send(&hello(), &[]);
    let mut bench = handover::succeed(bench, Arc::new(|fd, _| drop(fd)), |_| {});
    let (_events, answer) = say(&mut bench, &join_message(&reply, Role::Events));
    assert_eq!(answer, Ok(()));
    silent.send(&hello(), &[]);
    bench.until(|server| server.connections.iter().filter(|(_, it)| it.is_joining()).count() == 2);
    bench.rest();
    for peer in [&client, &late] {
        peer.send(&release(4), &[]);
        bench.rest();
        assert_eq!(peer.count(), 1);
    }
    for peer in [&silent, &greeting] {
        let (bytes, _) = peer.recv().unwrap();
        assert_eq!(Message::parse(&bytes).unwrap().kind, Kind::HelloReply);
    }
    assert!(matches!(event.recv(), Err(RecvError::WouldBlock)));
}

#[test]
fn lobby_when_full_of_silent_callers_then_a_join_is_told_to_try_again() {
    let bench = &mut Bench::new(&[]);
    let (_client, reply) = bench.let_in();
    // As a broker of several users.
    bench.server.connections.lobby.share();
    let silent: Vec<Peer> = (0..LOBBY_PER_DOMAIN).map(|_| bench.raw()).collect();
    bench.rest();
    assert_eq!(say(bench, &join_message(&reply, Role::Events)).1, Err(ErrorCode::Again));
    drop(silent);
    bench.until(|server| server.connections.lobby.callers().is_empty());
    assert_eq!(say(bench, &join_message(&reply, Role::Events)).1, Ok(()));
}
