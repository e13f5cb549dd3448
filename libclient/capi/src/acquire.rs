//! Consumers that want fds: grants go out, leases stay here by number until they are given back.
//! Must never lose a grant: one that the caller does not get is given back.

use crate::context::{context, fdbroker_t};
use crate::errors::fdbroker_code_t;
use crate::failure::Failure;
use crate::guard::{guard, guard_value};
use crate::handle::{fdbroker_handle_t, many};
use crate::leases::Leases;
use crate::sized::{Answers, Growable, Output, Results, slice};
use fdbroker_client::{Deadline, Error, Grant, Lease};
use fdbroker_protocol::FactsItem;
use std::os::fd::{AsRawFd, IntoRawFd};

/// A duplicate fd of an allocation, with its lease: the broker's record that this process holds the
/// allocation.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fdbroker_grant_t {
    /// sizeof(fdbroker_grant_t), set by the caller; in an array: of the first one, the library sets
    /// the others.
    pub struct_size: u64,
    /// Close-on-exec, to be closed by the caller; -1: none.
    pub fd: i32,
    /// FDBROKER_KIND_*.
    pub kind: u32,
    /// This context's number of the lease, to be released once; 0: none.
    pub lease: u64,
    /// The allocation's size in bytes: it bounds every offset, whatever the handle says.
    pub size_bytes: u64,
    /// Where in the fd's memory the allocation begins, in bytes.
    pub fd_offset: u64,
    pub owner_allocation_id: u64,
    /// The owner's own number of the device, which means nothing in other processes: see gpu.
    pub device: u32,
    pub slot: u32,
    pub generation: u32,
    pub driver_data_len: u32,
    /// The bytes of the driver's handle, as the owner registered them.
    pub driver_data: [u8; 64],
    /// The GPU that the memory is on, as its owner claims: 16 bytes of UUID, the PCI address in 4
    /// (little-endian: domain 16 bits, bus 8, device 5, function 3; all ones: not known), the tile
    /// (255: all of the GPU), FDBROKER_DRIVER_*, and two of 0. All 0: none, or not said.
    pub gpu: [u8; 24],
}

// SAFETY: repr(C), struct_size first, no padding (4 + 4 beside each other, 16 * 8 bytes in all),
// integers only.
unsafe impl Growable for fdbroker_grant_t {
    const NAME: &'static str = "fdbroker_grant_t";
    const LEAST_BYTES: u64 = 24;
    fn absent() -> Self {
        fdbroker_grant_t { fd: -1, ..Self::zeroed() }
    }
}

/// Acquires one allocation: grant->fd is a duplicate of its fd, grant->lease its lease. Import the
/// memory with your driver, close the fd and call fdbroker_lease_mapped(); when the memory is
/// unmapped again, call fdbroker_release(). For memory that the CPU can map, fdbroker_import() does
/// all of this. On failure fd is -1 and lease 0. Waits until the deadline at most.
///
/// Errors: FDBROKER_WRONG_NODE, FDBROKER_BAD_HANDLE, FDBROKER_STALE, FDBROKER_NOT_PERMITTED,
/// FDBROKER_NO_QUOTA, FDBROKER_OWNER_GONE, FDBROKER_OWNER_SILENT, FDBROKER_LOCAL_FD_LIMIT (nothing
/// lost: retry), FDBROKER_TIMED_OUT, FDBROKER_NOT_CONNECTED, FDBROKER_NOT_SUPPORTED (inside a
/// callback), FDBROKER_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_acquire(
    broker: *mut fdbroker_t,
    handle: *const fdbroker_handle_t,
    deadline_ms: u32,
    grant: *mut fdbroker_grant_t,
) -> fdbroker_code_t {
    // SAFETY: the caller's pointers, as the header states.
    guard(|| unsafe { acquire_all(broker, 1, handle, deadline_ms, grant, std::ptr::null_mut()) })
}

/// Acquires count allocations, 253 per message. Fills all grants and all codes (codes may be NULL)
/// in the order of the handles; the grant of a failure has fd -1 and lease 0. All these fds are
/// open at once: for a large working set prefer fdbroker_import_many(), which keeps no fd. Answers
/// FDBROKER_OK when all were granted, else the first failure.
///
/// Errors: for each handle those of fdbroker_acquire().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_acquire_many(
    broker: *mut fdbroker_t,
    count: usize,
    handles: *const fdbroker_handle_t,
    deadline_ms: u32,
    grants: *mut fdbroker_grant_t,
    codes: *mut fdbroker_code_t,
) -> fdbroker_code_t {
    // SAFETY: the caller's pointers, as the header states.
    guard(|| unsafe { acquire_all(broker, count, handles, deadline_ms, grants, codes) })
}

/// # Safety
/// The pointers are as the header states.
unsafe fn acquire_all(
    broker: *mut fdbroker_t,
    count: usize,
    handles: *const fdbroker_handle_t,
    deadline_ms: u32,
    grants: *mut fdbroker_grant_t,
    codes: *mut fdbroker_code_t,
) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    let mut grants = unsafe { Grants::new(count, grants, codes) }?;
    // SAFETY: as above.
    let found = unsafe { context(broker, "acquire") };
    // SAFETY: as above.
    let handles = found.and_then(|context| Ok((context, unsafe { many(handles, count) }?)));
    let outcomes = handles.and_then(|(context, handles)| {
        let outcomes = context.client.acquire_many(&handles, Deadline::from_ms(deadline_ms))?;
        Ok((context, outcomes))
    });
    match outcomes {
        Ok((context, outcomes)) => grants.fill(&context.leases, outcomes),
        Err(failure) => grants.0.fill::<_, Failure>(Err::<NoGrants, _>(failure)),
    }
}

type NoGrants = Vec<Result<fdbroker_grant_t, Failure>>;

/// The caller's arrays for grants and codes.
pub(crate) struct Grants<'a>(Answers<'a, Output<'a, fdbroker_grant_t>>);

impl Grants<'_> {
    /// # Safety
    /// `grants` is NULL or points to `count` structs of its `struct_size` bytes, `codes` is NULL or
    /// points to `count` codes; nobody else uses them meanwhile.
    pub unsafe fn new(
        count: usize,
        grants: *mut fdbroker_grant_t,
        codes: *mut fdbroker_code_t,
    ) -> Result<Self, Failure> {
        // SAFETY: the caller's promise.
        unsafe { Answers::new(count, Output::new(grants, count), codes).map(Grants) }
    }

    /// Hands the grants over; answers the first failure.
    pub fn fill(
        &mut self,
        leases: &Leases,
        outcomes: Vec<Result<Grant, Error>>,
    ) -> Result<(), Failure> {
        let outcomes = outcomes.into_iter();
        self.0.fill(Ok(outcomes.map(|outcome| hand_over(leases, outcome?))))
    }
}

impl Results<fdbroker_grant_t> for Output<'_, fdbroker_grant_t> {
    fn put(&mut self, index: usize, grant: Option<fdbroker_grant_t>) {
        self.set(index, &grant.unwrap_or_else(fdbroker_grant_t::absent));
    }
}

fn hand_over(leases: &Leases, grant: Grant) -> Result<fdbroker_grant_t, Error> {
    let described = describe(&grant);
    let Grant { fd, lease, .. } = grant;
    let lease = leases.insert(lease)?;
    Ok(fdbroker_grant_t { fd: fd.into_raw_fd(), lease, ..described })
}

/// A grant that stays the library's: its fd is borrowed, its lease is not named.
pub(crate) fn describe(grant: &Grant) -> fdbroker_grant_t {
    let info = &grant.info;
    let FactsItem { size_bytes, fd_offset, owner_allocation_id, gpu, device, kind } =
        info.facts.into();
    let data = info.driver_data.as_bytes();
    let mut driver_data = [0; 64];
    driver_data[..data.len()].copy_from_slice(data);
    fdbroker_grant_t {
        fd: grant.fd.as_raw_fd(),
        kind: kind.into(),
        size_bytes: size_bytes.get(),
        fd_offset: fd_offset.get(),
        owner_allocation_id: owner_allocation_id.get(),
        device: device.get(),
        slot: info.id.slot,
        generation: info.id.generation,
        driver_data_len: u32::try_from(data.len()).expect("at most 64"),
        driver_data,
        gpu: gpu.get().to_bytes(),
        ..fdbroker_grant_t::absent()
    }
}

/// Tells the broker that the memory is imported and the fd closed; close it first. From then on the
/// lease counts in no cap of fds. A second call changes nothing. Never waits; also inside a
/// callback. The message may be 1 ms late, to take others with it, where a library thread serves.
///
/// Errors: FDBROKER_BAD_HANDLE (no such lease, or given back before), FDBROKER_NOT_CONNECTED (in a
/// forked child).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_lease_mapped(
    broker: *mut fdbroker_t,
    lease: u64,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's context, as the header states.
        let context = unsafe { context(broker, "report mapped") }?;
        Ok(context.leases.with("report mapped", lease, Lease::mapped)?)
    })
}

/// 1 when the allocation of a lease has not ended, and the broker lives and knows the lease; else
/// 0. After a reconnect it is 1 again for a lease that the broker took over. 0 also for a lease
/// given back, for NULL, and in a forked child. Sends nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_lease_is_current(broker: *mut fdbroker_t, lease: u64) -> i32 {
    guard_value(0, || {
        // SAFETY: the caller's context, as the header states.
        let context = unsafe { context(broker, "look at a lease") }?;
        let is_current = context.leases.with("look at", lease, |lease| lease.is_current())?;
        Ok(is_current.into())
    })
}

/// Gives a lease back; close the fd and unmap the memory first. Never waits; also inside a
/// callback. FDBROKER_OK also while the broker is away: the lease is not declared to it again. The
/// message may be 1 ms late, to take others with it; not when its fd was open, its allocation has
/// ended, the broker was short within the last second, or no library thread serves.
///
/// Errors: FDBROKER_BAD_HANDLE (no such lease, or given back before; nothing changes),
/// FDBROKER_NOT_CONNECTED (in a forked child: the lease is the parent's).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_release(broker: *mut fdbroker_t, lease: u64) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's context, as the header states.
        let context = unsafe { context(broker, "release") }?;
        drop(context.leases.take(lease)?);
        Ok(())
    })
}

/// Gives count leases back, 253 per message. A number without a lease does not keep the others from
/// being given back.
///
/// Errors: the first of those of fdbroker_release().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_release_many(
    broker: *mut fdbroker_t,
    count: usize,
    leases: *const u64,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let (context, tokens) =
            unsafe { (context(broker, "release")?, slice(leases, count, "leases")?) };
        let mut first = Ok(());
        let mut take = |token: &u64| match context.leases.take(*token) {
            Ok(lease) => Some(lease),
            Err(error) => {
                if first.is_ok() {
                    first = Err(error.into());
                }
                None
            }
        };
        Lease::release_many(tokens.iter().filter_map(&mut take).collect::<Vec<_>>());
        first
    })
}
