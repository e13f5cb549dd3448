//! Producers: registering the fds of allocations, and finding the handle of a pointer.
//! Must never keep or close the caller's fd.

use crate::callbacks::is_open;
use crate::context::{context, fdbroker_t};
use crate::errors::fdbroker_code_t;
use crate::failure::Failure;
use crate::guard::guard;
use crate::handle::{fdbroker_handle_t, one};
use crate::sized::{Answers, Growable, Input, Results, place, plain, slice};
use fdbroker_client::{
    Deadline, Deposit, Drained, DriverData, Error, ErrorCode, Facts, Gpu, Handle, MemoryKind, Share,
};
use fdbroker_protocol::limits::DRIVER_DATA_BYTES;
use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;

/// A dma-buf: the broker proves its size.
pub const FDBROKER_KIND_DMA_BUF: u32 = 1;
/// A CUDA VMM export: the broker takes the size that you claim.
pub const FDBROKER_KIND_CUDA_VMM: u32 = 2;
/// A range of a memfd with F_SEAL_SHRINK and F_SEAL_SEAL: size proved. For more than its uid it
/// needs F_SEAL_GROW, too.
pub const FDBROKER_KIND_MEMFD: u32 = 3;

/// Clients of the same socket and user may acquire it.
pub const FDBROKER_SHARE_UID: u32 = 0;
/// Clients of the same socket that have the owner's group may, too.
pub const FDBROKER_SHARE_GID: u32 = 1;
/// Every client that has the handle may.
pub const FDBROKER_SHARE_ANY: u32 = 2;

/// The recall callback can export it again, so the broker may close its fd.
pub const FDBROKER_RECALLABLE: u32 = 1;
/// The allocation outlives this process for a time (the broker's limits.keep_ttl_ms): its handle
/// still works, and the broker does not close its fd before. Charged to kept_allocations;
/// FDBROKER_NO_QUOTA when these are used up.
pub const FDBROKER_KEEP: u32 = 2;
/// The handle gets a virtual fd (fdbroker_handle_virtual_fd()), for programs that pass fd numbers
/// by value. An allocation that is registered without one already (with the same base) keeps the
/// handle that it has.
pub const FDBROKER_VIRTUAL_FD: u32 = 8;

/// One allocation, to be registered.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fdbroker_allocation_t {
    /// sizeof(fdbroker_allocation_t), set by the caller; in an array: of the first one, for all.
    pub struct_size: u64,
    /// FDBROKER_KIND_*.
    pub kind: u32,
    /// FDBROKER_SHARE_*.
    pub share: u32,
    /// The owner's own number of the device, at most 65535: recalls have it, and addresses of
    /// different devices never overlap. It means nothing in other processes: see gpu.
    pub device: u32,
    /// FDBROKER_RECALLABLE, FDBROKER_KEEP and FDBROKER_VIRTUAL_FD, combined by |.
    pub flags: u32,
    /// Its size in bytes, more than 0.
    pub size_bytes: u64,
    /// Where in the fd's memory it begins, in bytes.
    pub fd_offset: u64,
    /// The owner's number of the allocation (Level Zero's allocation id, CUDA's buffer id). Another
    /// number at the same address is another allocation.
    pub owner_allocation_id: u64,
    /// Its address in this process; 0: it has none.
    pub base: u64,
    /// The bytes of the driver's handle, which come with each grant. The library copies them.
    pub driver_data: *const c_void,
    /// The number of these bytes, at most 64.
    pub driver_data_len: u64,
    /// The GPU that it is on, in the form of fdbroker_grant_t; all 0: none, or not said. Who asks
    /// for the owner's device finds it by this alone.
    pub gpu: [u8; 24],
}

// SAFETY: repr(C), struct_size first, no padding (2 * 2 * 4, then 8 each); the pointer may hold any
// bits until used.
unsafe impl Growable for fdbroker_allocation_t {
    const NAME: &'static str = "fdbroker_allocation_t";
    const LEAST_BYTES: u64 = 32;
}

/// Registers one allocation: the broker gets a duplicate of its fd. The caller keeps its own fd and
/// may close it at once. The handle is good until fdbroker_unregister() or the end of this process.
/// An allocation that is FDBROKER_RECALLABLE survives a crash of the broker, one that is
/// FDBROKER_KEEP does where a service manager stores the broker's fds;
/// FDBROKER_NOTICE_REGISTRATION_LOST names each one that is lost.
///
/// With base set there is one registration per allocation. The same device, base, size and id again
/// give the known handle, without asking the broker. Another size or id at this address, or a range
/// that overlaps, means that the memory there was freed: the old registration ends at once.
///
/// Errors: FDBROKER_NO_QUOTA, FDBROKER_UNSUPPORTED_FD (fdbroker_last_error() says what it is),
/// FDBROKER_STALE (another thread registered other memory there meanwhile), FDBROKER_NOT_SUPPORTED
/// (inside a callback; or FDBROKER_RECALLABLE while no recall callback is set), FDBROKER_TIMED_OUT,
/// FDBROKER_NOT_CONNECTED, FDBROKER_INVALID_ARGUMENT (also: the fd is not open). *handle is all
/// zero then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_register(
    broker: *mut fdbroker_t,
    allocation: *const fdbroker_allocation_t,
    fd: c_int,
    deadline_ms: u32,
    handle: *mut fdbroker_handle_t,
) -> fdbroker_code_t {
    let (fds, codes) = (&raw const fd, std::ptr::null_mut());
    // SAFETY: the caller's pointers, as the header states.
    guard(|| unsafe { register_all(broker, 1, allocation, fds, deadline_ms, handle, codes) })
}

/// Registers count allocations, 253 per message. fds[i] belongs to allocations[i]; the same fd may
/// stand there many times. Fills all handles and all codes (codes may be NULL) in this order; the
/// handle of a failure is all zero. Answers FDBROKER_OK when all were registered, else the first
/// failure.
///
/// Errors: for each allocation those of fdbroker_register().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_register_many(
    broker: *mut fdbroker_t,
    count: usize,
    allocations: *const fdbroker_allocation_t,
    fds: *const c_int,
    deadline_ms: u32,
    handles: *mut fdbroker_handle_t,
    codes: *mut fdbroker_code_t,
) -> fdbroker_code_t {
    // SAFETY: the caller's pointers, as the header states.
    guard(|| unsafe { register_all(broker, count, allocations, fds, deadline_ms, handles, codes) })
}

/// # Safety
/// The pointers are as the header states.
unsafe fn register_all(
    broker: *mut fdbroker_t,
    count: usize,
    allocations: *const fdbroker_allocation_t,
    fds: *const c_int,
    deadline_ms: u32,
    handles: *mut fdbroker_handle_t,
    codes: *mut fdbroker_code_t,
) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    let mut answers = unsafe { answers(count, handles, codes) }?;
    let register = || {
        // SAFETY: as above; the fds stay open over the call.
        let (context, wanted) = unsafe {
            let context = context(broker, "register")?;
            (context, Wanted::new(context, count, allocations, fds)?)
        };
        let Wanted { deposits, fds, refused } = wanted;
        let deadline = Deadline::from_ms(deadline_ms);
        Ok(refused.fill(context.exports.register_many(&deposits, &fds, deadline)?))
    };
    answers.fill(register())
}

/// The caller's arrays for handles and codes.
///
/// # Safety
/// `handles` and `codes` are NULL or point to `count` of them, which nobody else uses meanwhile.
pub(crate) unsafe fn answers<'a>(
    count: usize,
    handles: *mut fdbroker_handle_t,
    codes: *mut fdbroker_code_t,
) -> Result<Answers<'a, impl Results<fdbroker_handle_t> + use<'a>>, Failure> {
    let none = || fdbroker_handle_t::NONE;
    // SAFETY: the caller's promise.
    unsafe { Answers::new(count, plain(handles, count, "handle", none), codes) }
}

/// What a call is to register.
pub(crate) struct Wanted<'fd> {
    pub deposits: Vec<Deposit>,
    pub fds: Vec<BorrowedFd<'fd>>,
    pub refused: Refused,
}

/// For each allocation of a call why it cannot be registered; `None`: it is in `Wanted`.
#[derive(Default)]
pub(crate) struct Refused(Vec<Option<Failure>>);

impl<'fd> Wanted<'fd> {
    /// # Safety
    /// The arrays are as the header states, and the fds stay open as long as the result is used.
    pub unsafe fn new(
        context: &fdbroker_t,
        count: usize,
        allocations: *const fdbroker_allocation_t,
        fds: *const c_int,
    ) -> Result<Self, Failure> {
        // SAFETY: the caller's promise.
        let (allocations, fds) =
            unsafe { (Input::new(allocations, count)?, slice(fds, count, "fds")?) };
        let has_recall = context.callbacks.recall.is_set();
        let refused = Refused(Vec::with_capacity(count));
        let mut wanted = Wanted { deposits: Vec::new(), fds: Vec::new(), refused };
        for (index, fd) in fds.iter().enumerate() {
            // SAFETY: as above; its driver data too.
            let one = unsafe {
                let deposit = allocations.get(index).and_then(|it| it.deposit());
                deposit.and_then(|deposit| match deposit.recallable && !has_recall {
                    true => Err(fdbroker_client::layer::no_recall_callback().into()),
                    false => Ok((deposit, borrow(*fd)?)),
                })
            };
            wanted.refused.0.push(match one {
                Ok((deposit, fd)) => {
                    wanted.deposits.push(deposit);
                    wanted.fds.push(fd);
                    None
                }
                Err(failure) => Some(failure),
            });
        }
        Ok(wanted)
    }
}

impl Refused {
    /// One outcome per allocation of the call, in their order.
    pub fn fill(
        self,
        registered: Vec<Result<Handle, Error>>,
    ) -> Vec<Result<fdbroker_handle_t, Failure>> {
        let mut registered = registered.into_iter();
        let outcome = |refused: Option<Failure>| match refused {
            Some(failure) => Err(failure),
            None => {
                let made = registered.next().expect("one outcome per deposit");
                made.map(fdbroker_handle_t::from).map_err(Failure::from)
            }
        };
        self.0.into_iter().map(outcome).collect()
    }
}

/// # Safety
/// `fd`, when it is open, stays open as long as the result is used.
unsafe fn borrow<'fd>(fd: c_int) -> Result<BorrowedFd<'fd>, Failure> {
    if is_open(fd) {
        // SAFETY: open, and the caller's promise.
        Ok(unsafe { BorrowedFd::borrow_raw(fd) })
    } else {
        Err(Failure::argument(format!("register: fd {fd} is not open")))
    }
}

fn unknown(act: &str, what: &str, value: u64) -> Failure {
    Failure::argument(format!("{act}: {what} is {value}, which fdbroker.h does not have"))
}

impl fdbroker_allocation_t {
    /// What it says.
    ///
    /// # Safety
    /// `driver_data` is NULL or points to `driver_data_len` bytes.
    pub(crate) unsafe fn deposit(&self) -> Result<Deposit, Failure> {
        let refuse = |what: &str, value: u64| Err(unknown("register", what, value));
        let fdbroker_allocation_t { kind, share, flags, size_bytes, .. } = *self;
        let memory = memory_kind("register", kind)?;
        let circle = share_of("register", share)?;
        if flags & !(FDBROKER_RECALLABLE | FDBROKER_KEEP | FDBROKER_VIRTUAL_FD) != 0 {
            return refuse("flags", flags.into());
        }
        if size_bytes == 0 {
            return Err(Failure::argument("register: size_bytes is 0; an allocation has bytes"));
        }
        let base = self.base;
        if base.checked_add(size_bytes).is_none() {
            let text = format!(
                "register: base {base:#x} and size_bytes {size_bytes} pass the last address"
            );
            return Err(Failure::argument(text));
        }
        let fdbroker_allocation_t { device, fd_offset, owner_allocation_id, .. } = *self;
        if u16::try_from(device).is_err() {
            return refuse("device", device.into());
        }
        let gpu = Gpu::from_bytes(self.gpu);
        if !gpu.is_sound() {
            return Err(Failure::argument("register: gpu is no GPU; see fdbroker_grant_t"));
        }
        let facts = Facts::new(memory, size_bytes)
            .device(device)
            .gpu(gpu)
            .fd_offset(fd_offset)
            .owner_allocation_id(owner_allocation_id);
        // SAFETY: the caller's promise.
        let driver_data = unsafe { driver_data(self) }?;
        Ok(Deposit::from(facts)
            .base(base)
            .driver_data(driver_data)
            .recallable(flags & FDBROKER_RECALLABLE != 0)
            .keep(flags & FDBROKER_KEEP != 0)
            .virtual_fd(flags & FDBROKER_VIRTUAL_FD != 0)
            .share(circle))
    }
}

/// The kind of a number.
pub(crate) fn memory_kind(act: &str, kind: u32) -> Result<MemoryKind, Failure> {
    let known = u8::try_from(kind).ok().and_then(MemoryKind::from_number);
    known.ok_or_else(|| unknown(act, "kind", kind.into()))
}

/// The circle of a number.
pub(crate) fn share_of(act: &str, share: u32) -> Result<Share, Failure> {
    let known = u8::try_from(share).ok().and_then(Share::from_number);
    known.ok_or_else(|| unknown(act, "share", share.into()))
}

/// # Safety
/// As [`deposit`].
unsafe fn driver_data(allocation: &fdbroker_allocation_t) -> Result<DriverData, Failure> {
    let len = allocation.driver_data_len;
    let count = usize::try_from(len).ok().filter(|count| *count <= DRIVER_DATA_BYTES);
    let count = count.ok_or_else(|| {
        Failure::argument(format!("register: driver_data_len is {len}; at most 64 bytes travel"))
    })?;
    // SAFETY: the caller's promise.
    let bytes = unsafe { slice(allocation.driver_data.cast::<u8>(), count, "driver_data") }?;
    Ok(DriverData::new(bytes)?)
}

/// Ends the registration of the allocation that a handle names: the broker grants it no more,
/// closes its fd and tells every holder. Consumers that have the memory keep it until they release
/// it. Use the memory anew after FDBROKER_NOTICE_DRAINED, or at once when
/// fdbroker_unregister_drained() says so. Host memory ends by fdbroker_host_free() alone. Waits at
/// most 10 s for the broker's answer.
///
/// What is this context's ends whatever becomes of the broker. FDBROKER_OK while the broker is
/// away: the next one does not hear of it, and no notice says when its consumers have released it;
/// of kept memory it hears, and the notice comes. FDBROKER_TIMED_OUT: it ends when the broker reads
/// the message, and FDBROKER_NOTICE_DRAINED follows.
///
/// Errors: FDBROKER_STALE (it ended before), FDBROKER_BAD_HANDLE, FDBROKER_NOT_PERMITTED (another
/// client's, or of host memory), FDBROKER_NOT_SUPPORTED (inside a callback), FDBROKER_TIMED_OUT,
/// FDBROKER_NOT_CONNECTED (in a forked child), FDBROKER_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_unregister(
    broker: *mut fdbroker_t,
    handle: *const fdbroker_handle_t,
) -> fdbroker_code_t {
    // SAFETY: the caller's pointers, as the header states.
    guard(|| unsafe { unregister(broker, handle, UNREGISTER_MS) }.map(drop))
}

/// As fdbroker_unregister(). *drained is 1 when no lease was left: then the memory may be used anew
/// at once, and FDBROKER_NOTICE_DRAINED does not come. Otherwise, and on failure, it is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_unregister_drained(
    broker: *mut fdbroker_t,
    handle: *const fdbroker_handle_t,
    drained: *mut i32,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointer, as the header states.
        let out = unsafe { place(drained, "drained", 0) }?;
        // SAFETY: as above.
        *out = unsafe { unregister(broker, handle, UNREGISTER_MS) }?.0.into();
        Ok(())
    })
}

/// As fdbroker_unregister_drained(), within a deadline; drained may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_unregister_within(
    broker: *mut fdbroker_t,
    handle: *const fdbroker_handle_t,
    deadline_ms: u32,
    drained: *mut i32,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointer, as the header states.
        let mut out = unsafe { drained.as_mut() };
        if let Some(out) = &mut out {
            **out = 0;
        }
        // SAFETY: as above.
        let done = unsafe { unregister(broker, handle, deadline_ms) }?;
        if let Some(out) = out {
            *out = done.0.into();
        }
        Ok(())
    })
}

/// Ends an allocation of this context, memory of fdbroker_host_alloc() and fdbroker_gpu_alloc(),
/// too, and waits until nobody has it any more: it is granted no more, and holders are told
/// (FDBROKER_NOTICE_REVOKED) and let go of what they do not use. The memory stays this context's:
/// from FDBROKER_OK on it may be used anew, though not be shared again, and is freed as before.
/// After FDBROKER_TIMED_OUT it can be called again, to wait for longer.
///
/// Errors: FDBROKER_TIMED_OUT (others have it still; fdbroker_last_error() says how to see who),
/// FDBROKER_STALE (it had ended before, or with its broker, and nobody knows who has it),
/// FDBROKER_BAD_HANDLE, FDBROKER_NOT_PERMITTED (another client's), FDBROKER_NOT_SUPPORTED (inside a
/// callback), FDBROKER_NOT_CONNECTED (nothing was ended), FDBROKER_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_retire(
    broker: *mut fdbroker_t,
    handle: *const fdbroker_handle_t,
    deadline_ms: u32,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let (context, handle) = unsafe { (context(broker, "retire")?, one(handle)?) };
        Ok(context.client.retire(&handle, Deadline::from_ms(deadline_ms))?)
    })
}

/// How long an unregister without a deadline waits, in ms.
const UNREGISTER_MS: u32 = 10_000;

/// # Safety
/// The pointers are as the header states.
unsafe fn unregister(
    broker: *mut fdbroker_t,
    handle: *const fdbroker_handle_t,
    deadline_ms: u32,
) -> Result<Drained, Failure> {
    // SAFETY: the caller's promise.
    let (context, handle) = unsafe { (context(broker, "unregister")?, one(handle)?) };
    let deadline = Deadline::from_ms(deadline_ms);
    Ok(context.exports.unregister_handle(&handle, deadline)?)
}

/// Finds the handle of the allocation that pointer points into, with the offset inside it: host
/// memory, GPU memory, or an allocation registered with a base. It looks in this process's tables
/// and sends nothing, with one exception: a buffer of an arena or of fdbroker_gpu_alloc() that is
/// not registered now is registered here, within the deadline. All pointers into one allocation
/// share one registration.
///
/// Also inside a callback; there it registers nothing.
///
/// Errors: FDBROKER_STALE (nothing at this address is registered now; FDBROKER_HOST_ISOLATED and
/// FDBROKER_HOST_DMA_HEAP memory cannot be shared any more after a crash of the broker), those of
/// fdbroker_register(), FDBROKER_NOT_CONNECTED, FDBROKER_INVALID_ARGUMENT. *handle is all zero
/// then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_get_handle(
    broker: *mut fdbroker_t,
    pointer: *const c_void,
    device: u32,
    deadline_ms: u32,
    handle: *mut fdbroker_handle_t,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let out = unsafe { place(handle, "handle", fdbroker_handle_t::NONE) }?;
        // SAFETY: as above.
        let context = unsafe { context(broker, "get handle") }?;
        let address = pointer.addr();
        let (deadline, place) = (Deadline::from_ms(deadline_ms), address as u64);
        let mut found = context.arenas.handle_at(address, deadline)?;
        if found.is_none() {
            found = context.gpus.handle_at(place, deadline)?;
        }
        let found = found.or_else(|| context.exports.lookup(device, place));
        *out = found.map(fdbroker_handle_t::from).ok_or_else(|| {
            let text = format!(
                "get handle: {pointer:p} (device {device}) is in no memory that is registered now"
            );
            Failure::new(ErrorCode::Stale, text)
        })?;
        Ok(())
    })
}
