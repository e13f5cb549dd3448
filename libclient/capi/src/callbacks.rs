//! The two callbacks: what the broker asks and tells on its own, in the terms of C.
//! Must never hold a lock while a callback runs, nor lose an fd that a callback gave.

use crate::errors::fdbroker_code_t;
use crate::failure::Failure;
use crate::leases::Leases;
use crate::sized::Growable;
use crate::slot::Slot;
use fdbroker_client::{AllocationId, ErrorCode, Facts, Notice, Recall, RecallAnswer};
use std::ffi::c_void;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// A recall: the broker has closed its fd of an allocation of this process, and asks for a new one.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fdbroker_recall_t {
    /// Bytes of this struct in the library; it has no fields beyond them.
    pub struct_size: u64,
    /// With generation: the allocation, as in fdbroker_handle_info_t.
    pub slot: u32,
    pub generation: u32,
    /// From here on: as registered.
    pub owner_allocation_id: u64,
    pub base: u64,
    pub size_bytes: u64,
    pub fd_offset: u64,
    pub device: u32,
    pub reserved: u32,
}

/// The answer to a recall. It comes filled in as registered, with fd -1.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fdbroker_recall_answer_t {
    /// Bytes of this struct in the library; do not change it.
    pub struct_size: u64,
    /// The new export. After FDBROKER_OK the library owns it: sends it and closes it.
    pub fd: i32,
    pub reserved: u32,
    /// Where in the fd's memory the allocation begins now, in bytes.
    pub fd_offset: u64,
    /// Must be as registered.
    pub size_bytes: u64,
    /// The id of the memory at this address, read again after the export.
    pub owner_allocation_id: u64,
}

/// Answers a recall. FDBROKER_OK: answer->fd is the new export. FDBROKER_STALE: the memory is gone,
/// and the allocation ends. Any other code: not now; an fd then stays the callback's.
///
/// Runs on the library thread, with all signals blocked; with FDBROKER_OPEN_DISPATCH inside
/// fdbroker_dispatch() or a call that waits. A context runs one callback at a time (with
/// FDBROKER_OPEN_RECALL_THREAD one of each kind). It must return soon, and must not throw, longjmp
/// or wait: calls that wait answer FDBROKER_NOT_SUPPORTED there. It may call functions that never
/// wait, such as fdbroker_release(), fdbroker_host_free() and fdbroker_stats().
pub type fdbroker_recall_fn = Option<
    unsafe extern "C" fn(
        user: *mut c_void,
        recall: *const fdbroker_recall_t,
        answer: *mut fdbroker_recall_answer_t,
    ) -> fdbroker_code_t,
>;

/// An allocation that this process has a lease of has ended. code says why: FDBROKER_STALE,
/// FDBROKER_OWNER_GONE or FDBROKER_LOST, or FDBROKER_NO_QUOTA when a broker that came back had no
/// room for the lease. The memory stays mapped, and the lease counted, until the lease is released.
/// lease is 0 when it belongs to the import cache.
pub const FDBROKER_NOTICE_REVOKED: u32 = 1;
/// The last lease of an ended allocation of this process is gone: its memory may be used anew.
pub const FDBROKER_NOTICE_DRAINED: u32 = 2;
/// The broker asks for this lease back, if it is not in use. (The import cache gives its own back.)
pub const FDBROKER_NOTICE_RECLAIM: u32 = 3;
/// The broker is about to end or to restart.
pub const FDBROKER_NOTICE_GOING_AWAY: u32 = 4;
/// The connection is lost. Until FDBROKER_NOTICE_RECONNECTED the broker grants nothing. Keep
/// handles, leases and pointers: they go on after it.
pub const FDBROKER_NOTICE_DISCONNECTED: u32 = 5;
/// Connected again. All handles, leases and registrations go on, except those that
/// FDBROKER_NOTICE_REVOKED and FDBROKER_NOTICE_REGISTRATION_LOST named before this notice.
pub const FDBROKER_NOTICE_RECONNECTED: u32 = 6;
/// A registration of this process did not survive the loss of the broker: it is neither
/// FDBROKER_RECALLABLE nor was it kept, or the broker that came back did not take it. Its handle is
/// void: register again and pass on the new handle.
pub const FDBROKER_NOTICE_REGISTRATION_LOST: u32 = 7;

/// The broker has refused the fd that answered a recall; code says why. FDBROKER_UNSUPPORTED_FD: it
/// cannot be shared, or is a memfd other than the one that the handle names. The allocation stays
/// as it was, and its holders keep what they have.
pub const FDBROKER_NOTICE_SUPPLY_REFUSED: u32 = 8;
/// Of fdbroker_notice_next(): notices were lost, for the program did not read them;
/// owner_allocation_id is their number.
pub const FDBROKER_NOTICE_LOST: u32 = 9;

/// A notice from the broker. Fields that its kind does not have are 0.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct fdbroker_notice_t {
    /// For a callback, the bytes of this struct in the library; for fdbroker_notice_next(),
    /// sizeof(fdbroker_notice_t), set by the caller. It has no fields beyond them.
    pub struct_size: u64,
    /// FDBROKER_NOTICE_*; ignore kinds that you do not know.
    pub kind: u32,
    /// Why: of FDBROKER_NOTICE_REVOKED, FDBROKER_NOTICE_REGISTRATION_LOST and
    /// FDBROKER_NOTICE_SUPPLY_REFUSED.
    pub code: fdbroker_code_t,
    /// With generation: the allocation, as in fdbroker_handle_info_t.
    pub slot: u32,
    pub generation: u32,
    /// Of FDBROKER_NOTICE_REVOKED and FDBROKER_NOTICE_RECLAIM; as in fdbroker_grant_t.
    pub lease: u64,
    /// Of FDBROKER_NOTICE_DRAINED and FDBROKER_NOTICE_REGISTRATION_LOST; as registered.
    pub owner_allocation_id: u64,
    /// Of the same kinds; as registered.
    pub base: u64,
}

// SAFETY: repr(C), struct_size first, no padding (8, 4 * 4, 3 * 8 bytes), integers only.
unsafe impl Growable for fdbroker_notice_t {
    const NAME: &'static str = "fdbroker_notice_t";
    const LEAST_BYTES: u64 = 48;
}

/// Receives a notice, under the rules of fdbroker_recall_fn. The struct lives until the callback
/// returns. With FDBROKER_OPEN_RECALL_THREAD it runs inside fdbroker_dispatch(), and calls that
/// wait are fine there.
pub type fdbroker_notice_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, notice: *const fdbroker_notice_t)>;

type RecallCall = unsafe extern "C" fn(
    *mut c_void,
    *const fdbroker_recall_t,
    *mut fdbroker_recall_answer_t,
) -> fdbroker_code_t;
type NoticeCall = unsafe extern "C" fn(*mut c_void, *const fdbroker_notice_t);

/// The two callbacks of a context.
#[derive(Default)]
pub(crate) struct Callbacks {
    pub recall: Slot<RecallCall>,
    pub notice: Slot<NoticeCall>,
}

impl Callbacks {
    /// Removes both callbacks; returns when neither runs any more.
    pub fn clear(&self) -> Result<(), Failure> {
        let recall = self.recall.set(None);
        self.notice.set(None).and(recall)
    }

    /// Passes a notice to the callback.
    pub fn tell(&self, notice: &fdbroker_notice_t) {
        // SAFETY: the application's function and argument; the struct lives over the call.
        self.notice.run(|callback| unsafe { (callback.call)(callback.user, &raw const *notice) });
    }
}

/// Has the C callback answer a recall, on the thread that serves events.
pub(crate) fn deliver_recall(
    callbacks: &Callbacks,
    recall: &Recall,
) -> Result<RecallAnswer, ErrorCode> {
    let Facts { device, size_bytes, fd_offset, owner_allocation_id, .. } = recall.facts;
    let question = fdbroker_recall_t {
        struct_size: size_of::<fdbroker_recall_t>() as u64,
        slot: recall.id.slot,
        generation: recall.id.generation,
        owner_allocation_id,
        base: recall.base,
        size_bytes,
        fd_offset,
        device,
        reserved: 0,
    };
    let mut answer = fdbroker_recall_answer_t {
        struct_size: size_of::<fdbroker_recall_answer_t>() as u64,
        fd: -1,
        reserved: 0,
        fd_offset,
        size_bytes,
        owner_allocation_id,
    };
    let code = callbacks
        .recall
        // SAFETY: the application's function and argument; both structs live over the call.
        .run(|callback| unsafe {
            (callback.call)(callback.user, &raw const question, &raw mut answer)
        })
        .ok_or(ErrorCode::NotSupported)?;
    if code != 0 {
        // An unknown number counts as "not now".
        let known = u16::try_from(code).ok().and_then(ErrorCode::from_number);
        return Err(known.unwrap_or(ErrorCode::Again));
    }
    let fd = taken(answer.fd).ok_or_else(|| {
        log::error!(
            "the recall callback answered FDBROKER_OK with fd {}, which is not open",
            answer.fd
        );
        ErrorCode::Internal
    })?;
    let fdbroker_recall_answer_t { fd_offset, size_bytes, owner_allocation_id, .. } = answer;
    let facts = recall.facts.fd_offset(fd_offset).size_bytes(size_bytes);
    Ok(RecallAnswer::new(fd, facts.owner_allocation_id(owner_allocation_id)))
}

/// The application's fd, which the library owns from now on; `None`: it is not open.
fn taken(fd: RawFd) -> Option<OwnedFd> {
    // SAFETY: it is open, and the application has handed it over.
    is_open(fd).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Whether the number is an open fd, fcntl(2). The kernel refuses a message with one bad fd as a
/// whole.
pub(crate) fn is_open(fd: RawFd) -> bool {
    // SAFETY: F_GETFD takes no argument and changes nothing.
    fd >= 0 && unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0
}

/// Says a notice in the terms of C, on the thread that serves events.
pub(crate) fn translate(leases: &Leases, notice: &Notice, tell: impl Fn(fdbroker_notice_t)) {
    let struct_size = size_of::<fdbroker_notice_t>() as u64;
    let of = |kind| fdbroker_notice_t { struct_size, kind, ..Default::default() };
    let about = |kind, id: &AllocationId| {
        let (slot, generation) = (id.slot, id.generation);
        fdbroker_notice_t { slot, generation, ..of(kind) }
    };
    match notice {
        Notice::Revoked { id, lease, code, .. } => tell(fdbroker_notice_t {
            code: fdbroker_code_t::from(*code as u16),
            lease: leases.token_of_revoked(*lease, *code),
            ..about(FDBROKER_NOTICE_REVOKED, id)
        }),
        Notice::Drained { id, owner_allocation_id, base, .. } => tell(fdbroker_notice_t {
            owner_allocation_id: *owner_allocation_id,
            base: *base,
            ..about(FDBROKER_NOTICE_DRAINED, id)
        }),
        Notice::Reclaim { leases: numbers, .. } => {
            // A lease that the program does not know is the cache's.
            for lease in numbers.iter().map(|number| leases.token_of(*number)) {
                if lease != 0 {
                    tell(fdbroker_notice_t { lease, ..of(FDBROKER_NOTICE_RECLAIM) });
                }
            }
        }
        Notice::GoingAway { .. } => tell(of(FDBROKER_NOTICE_GOING_AWAY)),
        Notice::RegistrationLost { id, owner_allocation_id, base, code, .. } => {
            tell(fdbroker_notice_t {
                code: fdbroker_code_t::from(*code as u16),
                owner_allocation_id: *owner_allocation_id,
                base: *base,
                ..about(FDBROKER_NOTICE_REGISTRATION_LOST, id)
            });
        }
        Notice::SupplyRefused { id, error, .. } => tell(fdbroker_notice_t {
            code: fdbroker_code_t::from(error.code as u16),
            ..about(FDBROKER_NOTICE_SUPPLY_REFUSED, id)
        }),
        Notice::Disconnected => {
            leases.disconnected();
            tell(of(FDBROKER_NOTICE_DISCONNECTED));
        }
        Notice::Reconnected { .. } => tell(of(FDBROKER_NOTICE_RECONNECTED)),
        // A kind of a later library, which this ABI does not have yet.
        _ => {}
    }
}
