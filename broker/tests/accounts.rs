//! What jobs and users are charged for, by the administrator's queries, against a real daemon.

mod common;

use common::{Broker, Client, Socket};
use fdbroker_protocol::admin::{
    AccountRecord, AllocationRecord, ClientRecord, Filter, LeaseRecord, NodeStatus, Page, Query,
};
use fdbroker_protocol::{Kind, Writer};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

struct Admin(Socket);

impl Admin {
    fn of(broker: &Broker) -> Self {
        Admin(Socket::connect(&broker.admin_dir().join("admin.sock")))
    }

    fn ask(&self, kind: Kind, filter: Filter, value: u64) -> common::Reply {
        let query = Query {
            cursor: 0.into(),
            filter: (filter as u32).into(),
            value: value.into(),
            reserved: 0.into(),
        };
        let mut writer = Writer::new();
        writer.start(kind, 4).push(&query);
        self.0.send(writer.finish(0, 0), &[]);
        self.0.recv()
    }

    fn page<R>(&self, kind: Kind, filter: Filter, value: u64) -> Vec<R>
    where
        R: FromBytes + KnownLayout + Immutable + Unaligned + Copy,
    {
        let reply = self.ask(kind, filter, value);
        let message = reply.message();
        let (page, records) = message.head_and_items::<Page, R>().expect("a page");
        assert_eq!(page.done.get(), 1);
        records.to_vec()
    }
}

#[test]
fn jobs_when_a_client_is_of_one_then_named_charged_and_filtered_by() {
    let broker = Broker::start(&["--set", "caps.job.open_leases=7"]);
    let mut client = Client::connect(&broker.socket());
    let handles = client.register_memfds(5);
    let prefixes: Vec<_> = handles[..3].iter().map(|handle| handle.prefix).collect();
    let _grants = client.acquire(&prefixes, 0);
    let admin = Admin::of(&broker);

    // Whatever the cgroup of this test is, it is one.
    let jobs: Vec<AccountRecord> = admin.page(Kind::AdminJobs, Filter::None, 0);
    let [job] = jobs[..] else { panic!("{} jobs", jobs.len()) };
    assert_ne!(job.key.get(), 0);
    assert_eq!(job.uid.get(), nix::unistd::geteuid().as_raw());
    assert_eq!(
        (job.clients.get(), job.allocations.now.get(), job.allocations.peak.get()),
        (1, 5, 5)
    );
    assert_eq!((job.open_leases.now.get(), job.open_leases.cap.get()), (3, 7));

    let domains: Vec<AccountRecord> = admin.page(Kind::AdminDomains, Filter::None, 0);
    assert_eq!((domains.len(), domains[0].key.get(), domains[0].name[0]), (1, 0, 0));
    assert_eq!((domains[0].uid, domains[0].allocations.now.get()), (job.uid, 5));

    let key = job.key.get();
    let clients: Vec<ClientRecord> = admin.page(Kind::AdminClients, Filter::Job, key);
    assert_eq!((clients.len(), clients[0].job, clients[0].job_name), (1, job.key, job.name));
    let leases: Vec<LeaseRecord> = admin.page(Kind::AdminLeases, Filter::Job, key);
    assert_eq!((leases.len(), leases[0].job, leases[0].job_name), (3, job.key, job.name));
    let allocations: Vec<AllocationRecord> = admin.page(Kind::AdminAllocations, Filter::Job, key);
    assert_eq!((allocations.len(), allocations[0].job), (5, job.key));
    assert_eq!(allocations[0].job_name, job.name);

    for kind in [Kind::AdminJobs, Kind::AdminDomains] {
        let of_none: Vec<AccountRecord> = admin.page(kind, Filter::Job, key ^ 1);
        assert!(of_none.is_empty());
    }
    let of_none: Vec<ClientRecord> = admin.page(Kind::AdminClients, Filter::Job, key ^ 1);
    assert!(of_none.is_empty());
    let of_uid: Vec<AccountRecord> = admin.page(Kind::AdminJobs, Filter::Uid, job.uid.get().into());
    assert_eq!(of_uid, jobs);

    let reply = admin.ask(Kind::AdminStatus, Filter::None, 0);
    let status = *reply.message().body_as::<NodeStatus>().expect("a status");
    assert_eq!((status.jobs.get(), status.kept_allocations.now.get()), (1, 0));
}
