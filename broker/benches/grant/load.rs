//! Many clients at once: each has one request under way, until it has made all of its requests.
//! Must never assert a time.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::common::broker::{Broker, Connection};
use crate::common::wire::Wire;
use crate::raw::RawServer;

/// A server and its clients.
pub trait Service {
    /// How many clients there are.
    fn clients(&self) -> usize;
    /// The socket of a client.
    fn wire(&self, client: usize) -> &Wire;
    /// Sends the next request of a client.
    fn ask(&mut self, client: usize);
    /// Takes the answer, closes its fd.
    fn take(&mut self, client: usize);
    /// What is to be done after a round, outside the time.
    fn end_round(&mut self);
}

/// What a number of rounds came to.
#[derive(Default)]
pub struct Load {
    elapsed: Duration,
    requests: usize,
    /// For each client, the time from the begin of a round to its last answer, summed.
    finished: Vec<Duration>,
    /// Of single requests.
    pub times: Vec<Duration>,
}

impl Load {
    /// Requests per second.
    pub fn rate(&self) -> f64 {
        self.requests as f64 / self.elapsed.as_secs_f64()
    }

    /// Rate of the slowest client in that of the fastest.
    pub fn evenness(&self) -> f64 {
        let first = self.finished.iter().min().expect("a client");
        first.as_secs_f64() / self.finished.iter().max().expect("a client").as_secs_f64()
    }

    /// Each client makes `each` requests.
    pub fn round(&mut self, service: &mut impl Service, each: usize) {
        let count = service.clients();
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("epoll");
        for client in 0..count {
            let event = EpollEvent::new(EpollFlags::EPOLLIN, client as u64);
            epoll.add(service.wire(client).sock().as_fd(), event).expect("watched");
        }
        self.finished.resize(count, Duration::ZERO);
        let (mut left, mut missing) = (vec![each; count], each * count);
        let begun = Instant::now();
        let mut asked = vec![begun; count];
        (0..count).for_each(|client| service.ask(client));
        let mut events = vec![EpollEvent::empty(); 64];
        while missing > 0 {
            let ready = epoll.wait(&mut events, EpollTimeout::from(20_000_u16)).expect("epoll");
            assert!(ready > 0, "no answer in 20 s");
            for event in &events[..ready] {
                let client = usize::try_from(event.data()).expect("one of ours");
                service.take(client);
                let now = Instant::now();
                self.times.push(now - asked[client]);
                (left[client], missing) = (left[client] - 1, missing - 1);
                if left[client] == 0 {
                    self.finished[client] += now - begun;
                } else {
                    asked[client] = now;
                    service.ask(client);
                }
            }
        }
        self.elapsed += begun.elapsed();
        self.requests += each * count;
        service.end_round();
    }
}

/// The daemon and clients of it.
pub struct BrokerLoad<'a> {
    broker: &'a mut Broker,
    clients: Vec<Connection>,
}

impl<'a> BrokerLoad<'a> {
    pub fn new(broker: &'a mut Broker, count: usize) -> Self {
        let clients = (0..count).map(|_| broker.connect()).collect();
        BrokerLoad { broker, clients }
    }
}

impl Service for BrokerLoad<'_> {
    fn clients(&self) -> usize {
        self.clients.len()
    }

    fn wire(&self, client: usize) -> &Wire {
        &self.clients[client].wire
    }

    fn ask(&mut self, client: usize) {
        let handle = self.broker.next();
        self.clients[client].ask(&handle);
    }

    fn take(&mut self, client: usize) {
        self.clients[client].take();
    }

    fn end_round(&mut self) {
        self.clients.iter_mut().for_each(Connection::release);
    }
}

/// The raw server and clients of it.
pub struct RawLoad {
    _server: RawServer,
    clients: Vec<Wire>,
}

impl RawLoad {
    pub fn new(count: usize) -> Self {
        let server = RawServer::start();
        let clients = (0..count).map(|_| server.connect()).collect();
        RawLoad { _server: server, clients }
    }
}

impl Service for RawLoad {
    fn clients(&self) -> usize {
        self.clients.len()
    }

    fn wire(&self, client: usize) -> &Wire {
        &self.clients[client]
    }

    fn ask(&mut self, client: usize) {
        self.clients[client].send(&[1; 64]);
    }

    fn take(&mut self, client: usize) {
        let (reply, fds) = self.clients[client].answer_closed();
        assert_eq!((reply.len(), fds), (64, 1));
    }

    fn end_round(&mut self) {}
}
