//! Which records a query, an act or a watch is for. Must never look further than at what it is
//! handed.

use fdbroker_core::JobKey;
use fdbroker_protocol::AllocationId;
use fdbroker_protocol::admin::Filter;

/// What a query asks for.
#[derive(Clone, Copy)]
pub(crate) struct Chosen {
    pub filter: Filter,
    pub value: u64,
}

/// What a record can be chosen by. `None`, and pid 0: the record has none.
#[derive(Clone, Copy)]
pub(crate) struct Traits {
    pub allocation: Option<(u32, u32)>,
    pub pid: u32,
    pub uid: u32,
    pub job: Option<JobKey>,
}

impl Chosen {
    /// `None`: there is no such filter.
    pub fn of(filter: u32, value: u64) -> Option<Self> {
        Some(Chosen { filter: Filter::from_number(filter)?, value })
    }

    /// The allocation that it names, if it is for one.
    pub fn allocation(&self) -> Option<AllocationId> {
        let (slot, generation) = ((self.value & 0xffff_ffff) as u32, (self.value >> 32) as u32);
        (self.filter == Filter::Allocation).then_some(AllocationId { slot, generation })
    }

    pub fn is_all(&self) -> bool {
        self.filter == Filter::None
    }

    pub fn has(&self, of: Traits) -> bool {
        match self.filter {
            Filter::None => true,
            Filter::Allocation => of.allocation.is_some_and(|(slot, generation)| {
                u64::from(slot) | u64::from(generation) << 32 == self.value
            }),
            Filter::Pid => u64::from(of.pid) == self.value,
            Filter::Uid => u64::from(of.uid) == self.value,
            Filter::Job => of.job.is_some_and(|job| job.0 == self.value),
        }
    }
}

impl std::fmt::Display for Chosen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.allocation(), self.filter) {
            (Some(id), _) => write!(f, "{id}"),
            (None, Filter::None) => f.write_str("all"),
            (None, filter) => write!(f, "{filter}:{}", self.value),
        }
    }
}
