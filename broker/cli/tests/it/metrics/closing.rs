//! Fds whose close does not return. Must never leave one behind: what it waits for ends with the
//! test.

use super::rig::{Broker, PAGE};
use super::seen::{Scenario, Seen};
use crate::common::hello::{hello, hello_message, open};
use crate::common::wait_for;
use fdbroker_protocol::message::{RegisterHead, RegisterItem};
use fdbroker_protocol::{Facts, Kind, MemoryKind, Writer};
use nix::sys::socket::{setsockopt, sockopt};
use std::io::{ErrorKind, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use zerocopy::FromZeros;

pub static HUNG: Scenario = Scenario::new(hung);

#[test]
fn metrics_when_the_close_of_an_fd_does_not_return_then_counted_until_it_does() {
    HUNG.seen();
}

/// Longer than any test: its end is not what ends the wait.
const LINGER_SECONDS: i32 = 3600;

/// A TCP socket whose last close waits until its peer, the second, has read all or is gone: it
/// lingers (socket(7), SO_LINGER) on data for which there is no room at the peer.
fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    let mut socket = TcpStream::connect(address).expect("it listens");
    let (peer, _) = listener.accept().expect("connected");
    let linger = libc::linger { l_onoff: 1, l_linger: LINGER_SECONDS };
    setsockopt(&socket, sockopt::Linger, &linger).expect("of TCP");
    socket.set_nonblocking(true).expect("own");
    let full = loop {
        if let Err(error) = socket.write(&[0; 1 << 16]) {
            break error;
        }
    };
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
    (socket.into(), peer)
}

fn hung(seen: &mut Seen) {
    let broker = Broker::start("metrics-hung", &["limits.base_credits=2"]);
    let client = connect(&broker);
    // Places are set aside for two deposits to come.
    let none =
        [("fdbroker_closing_fds", 0), ("fdbroker_held_fds", 0), ("fdbroker_reserved_places", 2)];
    broker.see(seen, &none);
    // Nobody else is to have them when the broker reads the messages. Once: a signal ends a close
    // that lingers.
    broker.running.signal("STOP");
    wait_for("a stopped broker", || is_stopped(broker.running.pid()).then_some(()));
    let peers = [(); 2].map(|()| {
        let (socket, peer) = lingering();
        deposit(&client, socket);
        peer
    });
    broker.running.signal("CONT");
    // They are closed one after the other.
    for (peer, count) in peers.into_iter().zip([2, 1]) {
        let closing = [
            ("fdbroker_closing_fds", count),
            ("fdbroker_held_fds", count),
            ("fdbroker_reserved_places", 2),
            ("fdbroker_stored_fds", 0),
            ("fdbroker_deposits_total", 2),
            ("fdbroker_allocations", 0),
        ];
        broker.see(seen, &closing);
        drop(peer);
    }
    broker.see(seen, &none);
}

/// A client that speaks by hand: the library keeps an fd until the broker has answered.
fn connect(broker: &Broker) -> OwnedFd {
    let client = open(&broker.dir.path().join("fdbroker/broker.sock")).expect("a broker");
    fdbroker_scm::send(client.as_fd(), &hello_message(&hello()), &[]).expect("sent");
    client
}

/// Deposits what is no memory, and closes it.
fn deposit(client: &OwnedFd, socket: OwnedFd) {
    let item = RegisterItem {
        facts: Facts::new(MemoryKind::Memfd, PAGE).into(),
        ..RegisterItem::new_zeroed()
    };
    let mut writer = Writer::new();
    let message = writer.start(Kind::Register, 2).push(&RegisterHead::new_zeroed()).push(&item);
    fdbroker_scm::send(client.as_fd(), message.finish(1, 1), &[socket.as_fd()]).expect("sent");
}

/// Whether the first thread of a process is stopped: of a broker, the one that reads.
fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
    stat.contains(") T ")
}
