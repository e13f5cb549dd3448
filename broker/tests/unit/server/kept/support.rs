//! A broker whose service manager stores fds, here a real socket and real fds, and which can be
//! killed: what the tests of kept objects and of kept allocations begin with. Must never give the
//! next broker anything but what the manager has.

use super::*;
use crate::fds::jobs::Process;
use fdbroker_core::{Create, Deleted, NewObject, PodKey};
use std::os::unix::net::UnixDatagram;
use std::sync::Mutex;

pub(super) const SIZE: u64 = 4096;

/// The service manager's store.
pub(super) struct Store {
    pub(super) its: UnixDatagram,
    pub(super) stored: Vec<(String, OwnedFd)>,
    pub(super) entries: usize,
    pub(super) messages: usize,
}

impl Store {
    /// Takes in what it has been told.
    pub(super) fn hear(&mut self) {
        let (mut bytes, mut fds) = ([0; 4096], ReceivedFds::new());
        while let Ok(message) = fdbroker_scm::recv(self.its.as_fd(), &mut bytes, &mut fds) {
            let text = String::from_utf8(bytes[..message.len].to_vec()).unwrap();
            let name = text.lines().find_map(|line| line.strip_prefix("FDNAME="));
            if text.contains("FDSTOREREMOVE=1") {
                self.stored.retain(|(its, _)| Some(its.as_str()) != name);
            }
            self.messages += 1;
            // As systemd: neither twice, nor more than there is room for, and no one is told.
            for fd in fds.drain() {
                let inode = |fd: &OwnedFd| stat(fd.as_fd()).unwrap().inode;
                let is_there = self.stored.iter().any(|(_, stored)| inode(stored) == inode(&fd));
                if self.stored.len() < self.entries && !is_there {
                    self.stored.push((name.unwrap().to_owned(), fd));
                }
            }
        }
    }

    pub(super) fn inherited(&self) -> Inherited {
        let mut inherited = Inherited::default();
        for (name, fd) in &self.stored {
            inherited.add(name.clone(), fd.try_clone().unwrap());
        }
        inherited
    }

    pub(super) fn log(&self) -> &OwnedFd {
        let log = self.stored.iter().find(|(name, _)| name == names::KEPT_LOG);
        &log.expect("it is stored").1
    }
}

/// A broker under such a manager, with one client.
pub(super) struct Kept {
    pub(super) bench: Bench,
    pub(super) store: Store,
    pub(super) entries: u64,
    /// The service manager reads nothing.
    pub(super) is_stuck: bool,
    pub(super) client: ClientId,
    pub(super) peers: (Peer, Peer),
    /// Which one clients are in, where pods are told apart.
    pub(super) pods: Option<Arc<Mutex<PodKey>>>,
}

/// How a group is made.
#[derive(Clone, Copy)]
pub(super) struct How {
    pub(super) kind: MemoryKind,
    pub(super) keep: bool,
    pub(super) replace: bool,
    pub(super) metadata: usize,
    pub(super) inherits: Inherits,
}

pub(super) const KEEP: How = How {
    kind: MemoryKind::Memfd,
    keep: true,
    replace: false,
    metadata: 5,
    inherits: Inherits { keep: false, pin: false },
};

impl Kept {
    pub(super) fn new() -> Kept {
        Self::with_entries(4096)
    }

    pub(super) fn with_entries(entries: u64) -> Kept {
        let dir = tempfile::tempdir().unwrap();
        Self::start((dir, None), Inherited::default(), Vec::new(), entries)
    }

    /// Where pods are told apart, and every client is in this one.
    pub(super) fn in_pod(pod: PodKey) -> Kept {
        let dir = tempfile::tempdir().unwrap();
        let pods = Some(Arc::new(Mutex::new(pod)));
        Self::start((dir, pods), Inherited::default(), Vec::new(), 4096)
    }

    /// Another client, in this pod.
    pub(super) fn comes_from(&mut self, pod: PodKey) {
        *self.pods.as_ref().expect("pods are told apart").lock().unwrap() = pod;
        self.peers = self.bench.client();
        let is_there = |it: &fdbroker_core::ClientView<'_>| !it.record.gone;
        self.bench.until(|server| server.core.clients(0).filter(is_there).count() == 1);
        self.client = newest_client(&self.bench);
    }

    pub(super) fn start(
        (dir, pods): (tempfile::TempDir, Option<Arc<Mutex<PodKey>>>),
        inherited: Inherited,
        stored: Vec<(String, OwnedFd)>,
        entries: u64,
    ) -> Kept {
        let (manager, its) = Manager::pair();
        let outside = (inherited, manager.with_entries(entries));
        let path = dir.path().join("fdbroker/broker.sock");
        let listener = format!("listener=[{{path={path:?},isolate=\"pod\"}}]");
        let (set, calls) = match pods.clone() {
            None => (Vec::new(), calls()),
            Some(pods) => {
                let of_pod = move |cgroup: Option<&[u8]>, stat: &[u8]| {
                    let pod = Some(*pods.lock().unwrap());
                    Process { pod, ..crate::clients::job::process(cgroup, stat) }
                };
                (vec![&*listener], Calls::real(of_pod))
            }
        };
        let mut bench = Bench::managed(dir, &set, KernelFeatures::ALL, calls, outside);
        let peers = bench.client();
        let client = newest_client(&bench);
        let most = usize::try_from(entries).unwrap();
        let mut store = Store { its, stored, entries: most, messages: 0 };
        store.hear();
        store.messages = 0;
        Kept { bench, store, entries, is_stuck: false, client, peers, pods }
    }

    /// The broker ends without a word, and another one begins with what the service manager has.
    pub(super) fn kill(self) -> Kept {
        self.kill_with(|inherited| inherited)
    }

    pub(super) fn kill_with(self, change: impl FnOnce(Inherited) -> Inherited) -> Kept {
        let Kept { bench: Bench { server, dir, .. }, mut store, entries, pods, .. } = self;
        store.hear();
        drop(server);
        let inherited = change(store.inherited());
        Self::start((dir, pods), inherited, store.stored, entries)
    }

    /// Begins a group of these names; its number, and the inode of its memory.
    pub(super) fn create(&mut self, names: &[String], how: How) -> (GroupId, u64) {
        let server = &mut self.bench.server;
        let fd = memfd();
        let inode = stat(fd.as_fd()).unwrap().inode;
        arrive(server, fd.as_fd());
        let facts = deposit().facts.kind(how.kind);
        let deposit = arrived(Deposit { facts, ..deposit() });
        server.scratch.deposits = vec![deposit];
        let metadata = vec![7; how.metadata];
        let object = |name: &String| {
            let (offset, size_bytes, expect) = (64, 8, None);
            (name.clone(), NewObject { name: b"", offset, size_bytes, expect, metadata: &[] })
        };
        let objects: Vec<_> = names.iter().map(object).collect();
        let objects: Vec<_> = objects
            .iter()
            .map(|(name, object)| NewObject {
                name: name.as_bytes(),
                metadata: &metadata,
                ..*object
            })
            .collect();
        let create = Create {
            of_job: false,
            replace: how.replace,
            keep_us: how.keep.then_some(60_000_000),
            pin: false,
            inherits: how.inherits,
            outlives: false,
            evictable: false,
            deposit,
            credits_wanted: 1,
            objects: &objects,
        };
        server.step(Body::CreateObjects { create: &create }.by(self.client, RequestId(1)));
        server.fds.refuse_rest(0);
        let all = server.core.names_for(self.client, false, b"", b"").unwrap();
        let all = all.filter_map(|(_, view)| view);
        let groups = all.filter(|it| *it.record.name == *names[0].as_bytes()).map(|it| it.id);
        let mut groups: Vec<GroupId> = groups.collect();
        if how.replace {
            groups = vec![GroupId(self.newest_group())];
        }
        (groups.pop().expect("it is begun"), inode)
    }

    /// The number of the group that was begun last, where each group has a slot of its own.
    pub(super) fn newest_group(&self) -> u64 {
        let core = &self.bench.server.core;
        let found = (0..4096).rev().find_map(|slot| {
            (0..8)
                .rev()
                .map(|generation: u64| generation << 32 | slot)
                .find(|id| core.group_to_keep(self.client, GroupId(*id)).is_some())
        });
        found.expect("one is being made")
    }

    pub(super) fn seal(&mut self, group: GroupId) {
        self.bench.server.seal_objects(self.client, RequestId(2), group, Ok(()));
        self.peers.0.count();
    }

    /// Makes and seals a group; the inode of its memory.
    pub(super) fn put(&mut self, names: &[&str], how: How) -> u64 {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let (group, inode) = self.create(&names, how);
        self.seal(group);
        inode
    }

    pub(super) fn delete(&mut self, name: &str) {
        let objects = &[Deleted { name: name.as_bytes(), version: 0 }];
        let (client, request) = (self.client, RequestId(3));
        self.bench.server.step(Body::DeleteObjects { of_job: false, objects }.by(client, request));
        self.peers.0.count();
    }

    /// The sealed names with their versions, and the inode of the memory of each.
    pub(super) fn names(&self) -> BTreeMap<String, (u64, u64)> {
        let server = &self.bench.server;
        let all = server.core.names_for(self.client, false, b"", b"").unwrap();
        let all = all.filter_map(|(_, view)| view);
        all.filter(|it| it.state == ObjectState::Sealed)
            .map(|it| {
                let fd = server.fds.held(it.allocation.slot).expect("it is held");
                let inode = stat(fd).unwrap().inode;
                let name = String::from_utf8(it.record.name.to_vec()).unwrap();
                (name, (it.group.version(), inode))
            })
            .collect()
    }

    /// Bytes that the table has of memory.
    pub(super) fn memory(&self) -> u64 {
        stat(self.store.log().as_fd()).unwrap().allocated_bytes
    }

    pub(super) fn version(&self, name: &str) -> u64 {
        self.names()[name].0
    }

    /// The service manager has heard all that it is to hear.
    pub(super) fn until_told(&mut self) {
        for _ in 0..20_000 {
            self.store.hear();
            if self.bench.server.kept.due().is_none() {
                return;
            }
            self.bench.turn();
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("it is not told");
    }

    /// Until exactly so many fds lie in carriers.
    pub(super) fn until_carried(&mut self, count: usize) {
        self.bench.until(|server| server.kept.carried() == count);
    }
}

/// A duplicate of `fd` is the one fd of the message at hand.
pub(super) fn arrive(server: &mut Server, fd: BorrowedFd<'_>) {
    let (near, far) = fdbroker_scm::seqpacket_pair().unwrap();
    fdbroker_scm::send(near.as_fd(), &[0], &[fd]).unwrap();
    let mut received = ReceivedFds::new();
    let _ = fdbroker_scm::recv(far.as_fd(), &mut [0], &mut received).unwrap();
    server.fds.begin_message(&mut received, 0);
}

/// What is done before the core seals a group.
pub(super) fn begin_seal(
    server: &mut Server,
    client: ClientId,
    group: GroupId,
) -> Result<(), Status> {
    let kept = server.core.group_to_keep(client, group);
    server.kept.begin_keep(kept.as_slice(), &server.core, &server.fds)
}

/// The one that connected last.
pub(super) fn newest_client(bench: &Bench) -> ClientId {
    let all = bench.server.core.clients(0).filter(|client| !client.record.gone);
    all.map(|client| client.id).max_by_key(|client| client.0).expect("there is one")
}

pub(super) fn deposit() -> Deposit {
    let facts = Facts::new(MemoryKind::Memfd, SIZE).owner_allocation_id(9);
    Deposit { driver_data: Some((3, [5; 64])), ..facts.into() }
}

pub(super) fn arrived(deposit: Deposit) -> Arrived {
    Arrived { judged: Ok(deposit.into()), lane: Lane::Accepted }
}
