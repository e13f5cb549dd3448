//! The consumer's side: zeMemOpenIpcHandle, and the ends of opened memory.
//! Must never open memory whose allocation has ended, keep an fd, or close the program's fd.

use crate::below::{self, MISSING};
use crate::broker::{self, Broker};
use crate::guard::guard;
use crate::key::{Bytes, Key, fd_of, with_fd};
use crate::opened::Hold;
use crate::say::{News, once};
use fdbroker_client::{AllocationInfo, Error, ErrorCode};
use fdbroker_layer::{Fetched, ProgramsFd};
use fdbroker_virtual_fds::VirtualFd;
use level_zero_sys::*;
use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

const INVALID: ze_result_t = ze_result_t::ZE_RESULT_ERROR_INVALID_ARGUMENT;
const SUCCESS: ze_result_t = ze_result_t::ZE_RESULT_SUCCESS;

/// A driver's handle to open, and what must live: the fd until it is open, the holds until it is
/// closed.
#[derive(Debug)]
pub struct Ready {
    pub handle: Bytes,
    hold: Option<Hold>,
    fetched: Option<Fetched>,
}

impl Ready {
    /// As the program gave it.
    fn plain(handle: Bytes) -> Self {
        Ready { handle, hold: None, fetched: None }
    }

    /// The hold of what is open now: the fd is closed first.
    pub fn opened(self) -> Option<Hold> {
        self.fetched.into_iter().for_each(Fetched::close);
        self.hold
    }
}

/// Makes a handle of the program's ready for the driver.
///
/// # Errors
/// The code for the program.
pub fn ready(handle: Bytes) -> Result<Ready, ze_result_t> {
    match (Key::from_bytes(&handle), VirtualFd::new(fd_of(&handle))) {
        (Some(key), _) => ready_key(&key),
        (None, Some(fd)) if below::is_interposed() => ready_virtual(fd),
        (None, _) => Ok(ready_fetched(handle)),
    }
}

/// What the broker says of a key counts, whatever fd the program has put into it. It has said so
/// already of one that the program has fetched by the key's virtual fd.
fn ready_key(key: &Key) -> Result<Ready, ze_result_t> {
    if let Some(ready) = ready_by_programs_fd(key) {
        return Ok(ready);
    }
    // What the driver can open by itself does not wait for a broker that is away.
    let is_alone = key.virtual_fd().is_some() && !key.has_programs_fd();
    let broker = if is_alone { broker::awaited() } else { broker::connected() };
    let Some(broker) = broker else { return as_the_driver_does(key) };
    let (handle, number) = (key.handle(), key.virtual_fd());
    let tried = broker::patiently(|deadline| match broker.acquire(&handle, number, deadline) {
        Err(error) if !is_alone && broker::is_absent(&error) => Ok(Err(error)),
        outcome => outcome.map(Ok),
    });
    match tried.and_then(|outcome| outcome) {
        Ok(grant) => {
            let driver = handle_of(key, grant.info());
            ready_grant(grant, driver)
        }
        Err(error) if broker::is_absent(&error) => {
            // With the program's own fd nothing is lost.
            if !key.has_programs_fd() {
                broker::say_absent(&error);
            }
            as_the_driver_does(key)
        }
        Err(error) if key.has_programs_fd() && is_of_another_broker(&error) => {
            as_the_driver_does(key)
        }
        Err(error) => Err(refuse(&error)),
    }
}

/// One grant serves the program's pidfd_getfd(2) and this opening.
fn ready_by_programs_fd(key: &Key) -> Option<Ready> {
    let fetched = key.has_programs_fd().then(|| ProgramsFd::of(key.fd()))??;
    // SAFETY: only looked at; it is used where it is what was granted.
    let fd = unsafe { BorrowedFd::borrow_raw(key.fd()) };
    let driver = handle_of(key, fetched.info()).filter(|_| fetched.serves(fd, &key.handle()))?;
    Some(with_programs_fd(driver, fd, &fetched))
}

/// The driver's handle at a key's offset in what the owner registered.
fn handle_of(key: &Key, info: &AllocationInfo) -> Option<Bytes> {
    let mut driver = drivers_handle(info)?;
    key.put_offset(&mut driver, info.facts.size_bytes).map(|()| driver)
}

/// An fd of the program's in the driver's handle. The lease is the fd's and the import's together.
fn with_programs_fd(driver: Bytes, fd: BorrowedFd<'_>, fetched: &ProgramsFd) -> Ready {
    let handle = with_fd(driver, fd.as_raw_fd());
    Ready { hold: Some(fetched.lease()), ..Ready::plain(handle) }
}

/// Where no broker knows the key: the driver's handle, with the fd that the program has put into it
/// if it has, as without the layer.
fn as_the_driver_does(key: &Key) -> Result<Ready, ze_result_t> {
    let driver = key.driver_handle().ok_or(INVALID)?;
    Ok(Ready::plain(with_fd(driver, key.fd())))
}

/// A handle made of a virtual fd alone.
fn ready_virtual(fd: VirtualFd) -> Result<Ready, ze_result_t> {
    let grant = acquire(fd)?;
    let driver = drivers_handle(grant.info());
    ready_grant(grant, driver)
}

/// Makes the handle of an event pool ready for the driver.
///
/// # Errors
/// The code for the program.
pub fn ready_pool(handle: Bytes) -> Result<Ready, ze_result_t> {
    let number = fd_of(&handle);
    match VirtualFd::new(number).filter(|_| below::is_interposed()) {
        Some(fd) => ready_grant(acquire(fd)?, Some(handle)),
        None => {
            let hold = ProgramsFd::of(number).map(|fd| fd.lease());
            Ok(Ready { hold, ..Ready::plain(handle) })
        }
    }
}

/// The fd behind a virtual fd.
///
/// # Errors
/// The code for the program.
fn acquire(fd: VirtualFd) -> Result<Fetched, ze_result_t> {
    let broker = broker::awaited().ok_or(INVALID)?;
    let granted = broker::patiently(|deadline| broker.acquire_number(fd, deadline));
    granted.map_err(|error| {
        if broker::is_absent(&error) {
            broker::say_absent(&error);
        }
        refuse(&error)
    })
}

fn ready_grant(fetched: Fetched, driver: Option<Bytes>) -> Result<Ready, ze_result_t> {
    let Some(driver) = driver else {
        let id = fetched.info().id;
        let context = format!("open {id}: the handle does not fit the allocation");
        return Err(refuse(&Error::new(ErrorCode::BadHandle, context)));
    };
    let fetched = fetched.guarded();
    let handle = with_fd(driver, fetched.as_fd().as_raw_fd());
    Ok(Ready { handle, hold: Some(fetched.lease()), fetched: Some(fetched) })
}

/// A handle with an fd of the program's own. One that it has fetched by a virtual fd, alone in the
/// handle, gets the rest of the driver's handle.
fn ready_fetched(handle: Bytes) -> Ready {
    let Some(fetched) = ProgramsFd::of(fd_of(&handle)) else { return Ready::plain(handle) };
    let is_alone = handle[4..].iter().all(|byte| *byte == 0);
    // SAFETY: it has a lease: the program has it open.
    let fd = unsafe { BorrowedFd::borrow_raw(fd_of(&handle)) };
    let driver = drivers_handle(fetched.info()).filter(|_| is_alone);
    let whole = driver.map(|driver| with_programs_fd(driver, fd, &fetched));
    whole.unwrap_or_else(|| Ready { hold: Some(fetched.lease()), ..Ready::plain(handle) })
}

/// The driver's handle that the owner registered; `None`: what is registered is no memory of Level
/// Zero's.
fn drivers_handle(info: &AllocationInfo) -> Option<Bytes> {
    Bytes::try_from(info.driver_data.as_bytes()).ok()
}

/// Opens one handle at `pointer`.
///
/// # Safety
/// As zeMemOpenIpcHandle.
pub unsafe extern "C" fn open(
    context: ze_context_handle_t,
    device: ze_device_handle_t,
    handle: ze_ipc_mem_handle_t,
    flags: ze_ipc_memory_flags_t,
    pointer: *mut *mut c_void,
) -> ze_result_t {
    guard(|| {
        let Some(below) = below::OPEN.get() else { return MISSING };
        let ready = match ready(handle.to_bytes()) {
            Ok(ready) => ready,
            Err(code) => return code,
        };
        let handle = ze_ipc_mem_handle_t::from_bytes(ready.handle);
        // SAFETY: the caller's promise; the fd stays ours.
        let code = unsafe { below(context, device, handle, flags, pointer) };
        if code == SUCCESS {
            // SAFETY: the driver has just written there.
            keep(unsafe { *pointer }.addr(), ready.opened());
        }
        code
    })
}

/// Keeps the holds of what is open now at an address or under a handle.
pub fn keep(address: usize, holds: impl IntoIterator<Item = Hold>) {
    let holds: Vec<Hold> = holds.into_iter().collect();
    if !holds.is_empty()
        && let Some(broker) = broker::known()
    {
        broker.opened().add(address, holds);
    }
}

/// Has the driver close or free memory, and gives its leases back if it was opened. They are taken
/// out first: once the driver has closed the memory, another thread may get this address.
pub fn end<H>(handle: *const H, below: impl FnOnce() -> ze_result_t) -> ze_result_t {
    let take = |broker: Broker| broker.opened().take(handle.addr());
    let holds = broker::known().and_then(take);
    let code = below();
    if let Some(holds) = holds.filter(|_| code != SUCCESS) {
        // The memory is still open.
        keep(handle.addr(), holds);
    }
    code
}

/// Whether the broker here has never known the key: another broker of this node made it, and only
/// that one knows whether its memory still lives.
fn is_of_another_broker(error: &Error) -> bool {
    matches!(error.code, ErrorCode::BadHandle | ErrorCode::WrongNode)
}

/// The code that the program gets; the user gets the reason on stderr.
pub fn refuse(error: &Error) -> ze_result_t {
    let news = match error.code {
        ErrorCode::WrongNode => News::OtherNode,
        _ => News::NotOpened,
    };
    once(news, format_args!("an IPC handle cannot be opened: {error}"));
    match error.code {
        // Later it may succeed: the driver's answer when no fd is free. OWNER_SILENT is also the
        // owner's own lack of fds.
        ErrorCode::LocalFdLimit
        | ErrorCode::NoQuota
        | ErrorCode::TimedOut
        | ErrorCode::Again
        | ErrorCode::OwnerSilent => ze_result_t::ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY,
        _ => INVALID,
    }
}
