//! The allocations and imports of the process by device address. Must never let one end while a
//! copy uses it: both happen under one lock.

use crate::answer::Failure;
use crate::counters::Counters;
use crate::devices::{Device, Place};
use crate::handle::Kind;
use crate::import::FetchedFds;
use crate::limits::{DEVICE_BYTES, POOL_BYTES, POOL_FIRST_OFFSET, POOL_LARGEST_BYTES};
use crate::mapping::Mapping;
use crate::object::Object;
use crate::settings::settings;
use crate::virtual_memory::VirtualMemory;
use level_zero_sys::ze_result_t;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

/// The call that made an allocation, and so the one that ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Made by zeMemAlloc*, ended by zeMemFree.
    Allocated,
    /// Made by zeMemAllocDevice with an fd to import, ended by zeMemFree.
    ImportedFd,
    /// Made by zeMemOpenIpcHandle, ended by zeMemCloseIpcHandle. `fetched`: the exporter's pid and
    /// fd, when the driver fetched the fd there.
    Opened { fetched: Option<(u32, i32)> },
    /// Made by zeVirtualMemMap, ended by zeVirtualMemUnmap.
    Mapped,
}

/// A range of device or host addresses, and the memory behind it.
#[derive(Debug)]
pub struct Allocation {
    /// A number that this process never gives again, unlike the address.
    pub id: u64,
    pub kind: Kind,
    /// The device that allocated or imported it; `None` for host memory.
    pub device: Option<&'static Device>,
    pub origin: Origin,
    pub object: Arc<Object>,
    /// The memory of the second tile, where the device has two: a page with the allocation's
    /// number.
    pub second: Option<Arc<Object>>,
    /// Where in the object its bytes begin.
    pub offset: usize,
    pub bytes: usize,
    /// The pointer that the program got: not the first address when it opened a handle of a pool.
    pub pointer: usize,
    /// Gets without their Put.
    pub gets: u64,
    addresses: Addresses,
}

/// Where the addresses of an allocation are from.
#[derive(Debug)]
enum Addresses {
    /// Device addresses of its own.
    Own(Mapping),
    /// Device addresses of a reservation, from this one on.
    Reserved(usize),
    /// Those of the object's own mapping: host memory.
    Objects,
}

impl Allocation {
    /// The first address of the range.
    pub fn base(&self) -> usize {
        match &self.addresses {
            Addresses::Own(addresses) => addresses.address(),
            Addresses::Reserved(base) => *base,
            Addresses::Objects => self.object.memory.address() + self.offset,
        }
    }
}

#[derive(Default)]
pub struct Registry {
    by_base: BTreeMap<usize, Allocation>,
    last_id: u64,
    /// By the number of a device's place.
    pools: HashMap<u32, Pool>,
    pub virtual_memory: VirtualMemory,
    pub fetched: FetchedFds,
    /// The memory of event pools.
    shared: Vec<Weak<Object>>,
}

/// The pool that takes new allocations of a place. It ends with its last allocation.
#[derive(Default)]
struct Pool {
    object: Weak<Object>,
    used: usize,
}

/// Locks the registry of this process.
pub fn registry() -> MutexGuard<'static, Registry> {
    static REGISTRY: LazyLock<Mutex<Registry>> = LazyLock::new(Mutex::default);
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Registry {
    /// Allocates memory of a device, or of the host. `exportable` memory never comes from a pool.
    pub fn allocate(
        &mut self,
        device: Option<&'static Device>,
        bytes: usize,
        exportable: bool,
    ) -> Result<usize, Failure> {
        if bytes == 0 || bytes > DEVICE_BYTES {
            return Err(ze_result_t::ZE_RESULT_ERROR_UNSUPPORTED_SIZE.into());
        }
        let kind = if device.is_some() { Kind::Device } else { Kind::Host };
        let pooled = settings().is_ok_and(|settings| settings.pool)
            && !exportable
            && bytes <= POOL_LARGEST_BYTES;
        let place = device.map(Device::place);
        let (object, offset) = match place {
            Some(place) if pooled => {
                self.pools.entry(place.number()).or_default().take(bytes, place)?
            }
            _ => (Object::allocate(pages(bytes), place)?, 0),
        };
        let addresses = addresses(kind, bytes)?;
        let has_two = device.is_some_and(Device::is_split);
        let second = if has_two { Some(Object::allocate(pages(1), place)?) } else { None };
        let base = self.add(device, Origin::Allocated, object, offset..offset + bytes, addresses);
        let allocation = self.by_base.get_mut(&base).expect("added just now");
        if let Some(second) = second {
            second.write_number(allocation.id);
            allocation.second = Some(second);
        }
        Ok(base)
    }

    /// Counts the memory of an event pool, while it lives.
    pub fn note_shared(&mut self, object: &Arc<Object>) {
        self.shared.retain(|other| other.strong_count() > 0);
        self.shared.push(Arc::downgrade(object));
    }

    /// Maps imported memory as a whole, for a device or the host; answers the address at `offset`.
    pub fn import(
        &mut self,
        device: Option<&'static Device>,
        origin: Origin,
        object: Arc<Object>,
        offset: usize,
    ) -> Result<usize, Failure> {
        let bytes = object.memory.bytes();
        let kind = if device.is_some() { Kind::Device } else { Kind::Host };
        let addresses = addresses(kind, bytes)?;
        let base = self.add(device, origin, object, 0..bytes, addresses);
        let pointer = base + offset;
        self.by_base.get_mut(&base).expect("added just now").pointer = pointer;
        Ok(pointer)
    }

    /// Makes the first bytes of a device's memory visible at a reserved address.
    pub fn map(
        &mut self,
        address: usize,
        bytes: usize,
        (object, device): (Arc<Object>, &'static Device),
    ) {
        let addresses = Addresses::Reserved(address);
        self.add(Some(device), Origin::Mapped, object, 0..bytes, addresses);
    }

    /// Adds an allocation, and answers its first address.
    fn add(
        &mut self,
        device: Option<&'static Device>,
        origin: Origin,
        object: Arc<Object>,
        place: Range<usize>,
        addresses: Addresses,
    ) -> usize {
        self.last_id += 1;
        let mut allocation = Allocation {
            id: self.last_id,
            kind: if device.is_some() { Kind::Device } else { Kind::Host },
            device,
            origin,
            object,
            second: None,
            offset: place.start,
            bytes: place.len(),
            pointer: 0,
            gets: 0,
            addresses,
        };
        let base = allocation.base();
        allocation.pointer = base;
        self.by_base.insert(base, allocation);
        base
    }

    /// The allocation that contains the address.
    pub fn find(&mut self, address: usize) -> Option<&mut Allocation> {
        let (base, allocation) = self.by_base.range_mut(..=address).next_back()?;
        (address - base < allocation.bytes).then_some(allocation)
    }

    /// Ends the allocation whose pointer is `pointer`, when `may_end` accepts its origin.
    pub fn end(&mut self, pointer: usize, may_end: fn(Origin) -> bool) -> Result<(), Failure> {
        let base = match self.find(pointer) {
            Some(found) if found.pointer == pointer && may_end(found.origin) => found.base(),
            _ => return Err(ze_result_t::ZE_RESULT_ERROR_INVALID_ARGUMENT.into()),
        };
        self.remove(base);
        Ok(())
    }

    /// Ends what is mapped in a range of reserved addresses, or of one object.
    pub fn unmap(&mut self, is_one: impl Fn(&Allocation) -> bool) {
        let is_one = |one: &&Allocation| one.origin == Origin::Mapped && is_one(one);
        let bases: Vec<usize> =
            self.by_base.values().filter(is_one).map(Allocation::base).collect();
        bases.into_iter().for_each(|base| self.remove(base));
    }

    fn remove(&mut self, base: usize) {
        let Some(ended) = self.by_base.remove(&base) else { return };
        // A pool and its exported fd live on, without the Gets of this allocation.
        ended.object.take_back(ended.gets, false);
        if let Origin::Opened { fetched: Some(from) } = ended.origin {
            self.fetched.release(from);
        }
    }

    /// All allocations and imports, in no order that matters.
    pub fn all(&mut self) -> impl Iterator<Item = &mut Allocation> {
        self.by_base.values_mut()
    }

    pub fn counters(&self) -> Counters {
        let mut counters =
            Counters { fetched_fds: self.fetched.count() as u64, ..Counters::default() };
        let mut objects = HashSet::new();
        let mut count = |counters: &mut Counters, object: &Arc<Object>| {
            if objects.insert(Arc::as_ptr(object)) {
                counters.objects += 1;
                counters.bytes += object.memory.bytes() as u64;
                counters.exported_fds += u64::from(object.exported_now().is_some());
            }
        };
        for object in self.virtual_memory.objects() {
            count(&mut counters, object);
        }
        for object in self.shared.iter().filter_map(Weak::upgrade) {
            count(&mut counters, &object);
        }
        for allocation in self.by_base.values() {
            match allocation.origin {
                Origin::Allocated | Origin::Mapped => counters.allocations += 1,
                _ => counters.imports += 1,
            }
            counters.gets += allocation.gets;
            count(&mut counters, &allocation.object);
            if let Some(second) = &allocation.second {
                count(&mut counters, second);
            }
        }
        counters
    }
}

impl Pool {
    fn take(&mut self, bytes: usize, place: Place) -> Result<(Arc<Object>, usize), Failure> {
        let object = match self.object.upgrade() {
            Some(object) if self.used + pages(bytes) <= POOL_BYTES => object,
            _ => {
                let object = Object::allocate(POOL_BYTES, Some(place))?;
                *self = Self { object: Arc::downgrade(&object), used: POOL_FIRST_OFFSET };
                object
            }
        };
        let offset = self.used;
        self.used += pages(bytes);
        Ok((object, offset))
    }
}

/// New addresses for an allocation.
fn addresses(kind: Kind, bytes: usize) -> Result<Addresses, Failure> {
    match kind {
        Kind::Device => Mapping::reserved(pages(bytes)).map(Addresses::Own),
        Kind::Host => Ok(Addresses::Objects),
    }
}

fn pages(bytes: usize) -> usize {
    const PAGE_BYTES: usize = 4096;
    bytes.next_multiple_of(PAGE_BYTES)
}
