//! Device memory that others in this process allocated, and may free without a word: known by
//! address, exported again when it is recalled. Must never supply what was freed or is another
//! allocation by now.

use crate::api::client::Client;
use crate::books::roles::{Supply, SupplyFd};
use crate::deposit::Deposit;
use crate::error::Error;
use crate::limits::EXPORTS_SWEEP_LEAST;
use crate::notice::Recall;
use crate::sync::lock;
use fdbroker_protocol::ErrorCode;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

/// A driver's context, which knows memory by its address, whoever allocated it.
pub trait ByAddress: Send + Sync + Debug + 'static {
    /// The allocation that an address lies in; STALE when there is none.
    fn find(&self, at: u64) -> Result<Place, Error>;

    /// A new fd of the allocation at `base`. It may be freed meanwhile by another thread.
    fn export_at(&self, base: u64) -> Result<OwnedFd, Error>;

    /// Completes the first deposit of an allocation. NOT_SUPPORTED: no fd can share it, or `client`
    /// declared too few `own_fds` for an export.
    fn complete(&self, client: &Client, place: Place, deposit: &mut Deposit) -> Result<(), Error>;
}

/// What a driver says of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub base: u64,
    pub bytes: u64,
    /// The driver's id: another one for each allocation, whatever its address.
    pub id: u64,
    /// Memory of a device, not the host's.
    pub is_device: bool,
}

/// What one client has registered of such memory, of one context.
#[derive(Debug)]
pub struct ForeignTable<C> {
    context: Arc<C>,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    by_base: BTreeMap<u64, Foreign>,
    /// As many of them as make a sweep due.
    sweep_at: usize,
}

/// An allocation of others: its size in bytes, and where it is in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Foreign {
    pub bytes: u64,
    pub id: u64,
    pub fd_offset: u64,
}

impl<C: ByAddress> ForeignTable<C> {
    pub fn new(context: &Arc<C>) -> Self {
        ForeignTable { context: Arc::clone(context), table: Mutex::default() }
    }

    /// Memory that is about to be registered.
    pub fn add(&self, base: u64, foreign: Foreign) {
        let mut table = lock(&self.table);
        table.sweep(&*self.context);
        table.by_base.insert(base, foreign);
    }

    fn find(&self, base: u64) -> Option<Foreign> {
        lock(&self.table).by_base.get(&base).copied()
    }

    /// Whether some was registered that begins at `base`.
    pub fn cover(&self, base: u64) -> bool {
        self.find(base).is_some()
    }

    /// Exports it again. STALE: it was freed or replaced, also meanwhile.
    pub fn supply(&self, recall: &Recall) -> Result<Supply, ErrorCode> {
        let (base, id) = (recall.base, recall.facts.owner_allocation_id);
        let foreign = self.find(base).filter(|one| one.id == id).ok_or(ErrorCode::Stale)?;
        let fd = foreign.export(&*self.context, base).map_err(|error| {
            log::warn!("recall of {}: {error}", recall.id);
            error.code
        })?;
        if self.find(base) != Some(foreign) {
            return Err(ErrorCode::Stale);
        }
        Ok(Supply::of(recall, SupplyFd::Fresh(fd), foreign.fd_offset, foreign.bytes))
    }

    /// The driver has given this address to memory of this library, or is about to free it.
    pub fn forget(&self, base: u64) {
        lock(&self.table).by_base.remove(&base);
    }
}

impl Table {
    /// Forgets what others have freed without a word, as often as there may be twice as much of it:
    /// so the table stays bounded by what is allocated.
    fn sweep(&mut self, context: &impl ByAddress) {
        let count = self.by_base.len();
        if count < self.sweep_at.max(EXPORTS_SWEEP_LEAST) {
            return;
        }
        self.by_base.retain(|base, foreign| foreign.is_at(context, *base));
        self.sweep_at = self.by_base.len() * 2;
    }
}

impl Foreign {
    /// Whether it is still there, and the same.
    pub fn is_at(self, context: &impl ByAddress, base: u64) -> bool {
        let now = context.find(base);
        now.is_ok_and(|now| (now.base, now.bytes, now.id) == (base, self.bytes, self.id))
    }

    /// Exports it; STALE when it was freed or replaced, also meanwhile.
    pub fn export(self, context: &impl ByAddress, base: u64) -> Result<OwnedFd, Error> {
        let gone = || {
            let context = format!("the memory at {base:#x} was freed or replaced");
            Error::new(ErrorCode::Stale, context)
        };
        if !self.is_at(context, base) {
            return Err(gone());
        }
        let fd = context.export_at(base)?;
        if self.is_at(context, base) { Ok(fd) } else { Err(gone()) }
    }
}
