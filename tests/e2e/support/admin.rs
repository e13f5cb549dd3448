//! An administrator's requests, sent by hand: reads the daemon's ledger. Must never change anything
//! in the daemon by itself.

use super::raw::{Incoming, open, receive_from};
use super::wait::PATIENCE;
use fdbroker_protocol::admin::{
    AccountRecord, AllocationRecord, ClientRecord, Filter, LeaseRecord, Metrics, NodeStatus, Page,
    Query, TombstoneRecord,
};
use fdbroker_protocol::{AllocationId, Kind, Writer};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// One connection of an administrator.
#[derive(Debug)]
pub struct Admin {
    pub socket: OwnedFd,
}

impl Admin {
    pub fn connect(path: &Path) -> Admin {
        Admin { socket: open(path).expect("connect to the administrator's socket") }
    }

    /// Sends one request and returns its answer.
    pub fn request(&self, kind: Kind, body: &(impl IntoBytes + Immutable)) -> Incoming {
        let bytes = request(kind, body);
        fdbroker_scm::send_timeout(self.socket.as_fd(), &bytes, &[], Some(PATIENCE)).expect("send");
        self.receive()
    }

    /// The next message.
    pub fn receive(&self) -> Incoming {
        receive_from(self.socket.as_fd(), PATIENCE).expect("an answer")
    }

    pub fn ask(&self, kind: Kind, cursor: u32) -> Incoming {
        self.request(kind, &Query { cursor: cursor.into(), ..query(Filter::None, 0) })
    }

    pub fn status(&self) -> NodeStatus {
        let answer = self.ask(Kind::AdminStatus, 0);
        assert_eq!(answer.message().kind, Kind::AdminStatusReply);
        *answer.message().body_as().expect("a status")
    }

    pub fn metrics(&self) -> Metrics {
        let answer = self.ask(Kind::AdminMetrics, 0);
        assert_eq!(answer.message().kind, Kind::AdminMetricsReply);
        *answer.message().body_as().expect("metrics")
    }

    pub fn allocations(&self) -> Vec<AllocationRecord> {
        self.all(Kind::AdminAllocations)
    }

    /// The record of an allocation; `None` once the allocation is gone.
    pub fn allocation(&self, id: AllocationId) -> Option<AllocationRecord> {
        let is_it = |record: &AllocationRecord| {
            (record.slot.get(), record.generation.get()) == (id.slot, id.generation)
        };
        self.allocations().into_iter().find(is_it)
    }

    pub fn leases(&self) -> Vec<LeaseRecord> {
        self.all(Kind::AdminLeases)
    }

    pub fn clients(&self) -> Vec<ClientRecord> {
        self.all(Kind::AdminClients)
    }

    pub fn jobs(&self) -> Vec<AccountRecord> {
        self.all(Kind::AdminJobs)
    }

    pub fn tombstones(&self) -> Vec<TombstoneRecord> {
        self.all(Kind::AdminTombstones)
    }

    pub fn all<T>(&self, kind: Kind) -> Vec<T>
    where
        T: FromBytes + KnownLayout + Immutable + Unaligned + Copy,
    {
        self.chosen(kind, Filter::None, 0)
    }

    /// All records of a kind that the filter lets through, page by page.
    pub fn chosen<T>(&self, kind: Kind, filter: Filter, value: u64) -> Vec<T>
    where
        T: FromBytes + KnownLayout + Immutable + Unaligned + Copy,
    {
        let (mut records, mut asked) = (Vec::new(), query(filter, value));
        loop {
            let answer = self.request(kind, &asked);
            let message = answer.message();
            let (page, items) = message.head_and_items::<Page, T>().expect("a page of records");
            records.extend_from_slice(items);
            if page.done.get() != 0 {
                return records;
            }
            asked.cursor = page.next_cursor;
        }
    }
}

/// The bytes of an administrator's request.
pub fn request(kind: Kind, body: &(impl IntoBytes + Immutable)) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.start(kind, 1).push(body);
    writer.finish(0, 0).to_vec()
}

pub fn query(filter: Filter, value: u64) -> Query {
    let filter = (filter as u32).into();
    Query { cursor: 0.into(), filter, value: value.into(), reserved: 0.into() }
}
