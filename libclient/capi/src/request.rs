//! Acquiring, importing and registering without waiting, for progress engines: start, test, cancel.
//! Must never wait, keep a request that is done, nor answer FDBROKER_AGAIN for one that is.

use crate::acquire::{Grants, fdbroker_grant_t};
use crate::context::{context, fdbroker_t};
use crate::due::{due_of, fdbroker_due_t};
use crate::errors::fdbroker_code_t;
use crate::failure::Failure;
use crate::guard::{guard, guard_value};
use crate::handle::{fdbroker_handle_t, many};
use crate::import::{answers, fdbroker_import_t, mode, taken_apart};
use crate::leases::Leases;
use crate::object_get::{Taken, opening};
use crate::object_make::Started;
use crate::object_table::ObjectTable;
use crate::objects::{
    FDBROKER_OBJECT_JOB, FDBROKER_OBJECT_NO_WAIT, fdbroker_object_options_t, fdbroker_object_t,
    names_of, options_of,
};
use crate::register::{self, Refused, Wanted, fdbroker_allocation_t};
use crate::sized::{place, take_back};
use crate::slot::refuse_in_callback;
use fdbroker_client::{
    AcquireRequest, CreateRequest, Deadline, Due, Error, ErrorCode, GetRequest, ImportRequest,
    Progress, PutRequest, RegisterRequest, Request, SealRequest,
};
use std::ffi::{c_char, c_int};
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

/// A request under way. Only one thread at a time may use it.
pub struct fdbroker_request_t {
    count: usize,
    pub(crate) what: What,
}

impl fdbroker_request_t {
    /// For the caller to test or cancel.
    pub(crate) fn boxed(count: usize, what: What) -> *mut Self {
        Box::into_raw(Box::new(fdbroker_request_t { count, what }))
    }
}

pub(crate) enum What {
    /// The request is `None` only inside `fdbroker_request_test`.
    Acquire(Option<AcquireRequest>, Arc<Leases>),
    /// The same inside `fdbroker_import_test`.
    Import(Option<ImportRequest<'static>>),
    /// The same inside `fdbroker_object_get_test`.
    Get(Option<GetRequest>, Arc<ObjectTable>),
    /// The same inside `fdbroker_register_test`.
    Register(Option<RegisterRequest<'static>>, Refused),
    /// The same inside `fdbroker_object_create_test`.
    Create(Option<CreateRequest>),
    /// The same inside `fdbroker_object_seal_test`.
    Seal(Option<SealRequest>, Started),
    /// The same inside `fdbroker_object_put_test`.
    Put(Option<PutRequest>),
}

/// What all kinds of requests have.
trait Tells {
    fn tell(&mut self, due: &Due, token: u64);
    fn due_within(&self) -> Option<Duration>;
}

impl<T> Tells for Option<Request<'static, T>> {
    fn tell(&mut self, due: &Due, token: u64) {
        self.iter_mut().for_each(|request| request.tell(due, token));
    }

    fn due_within(&self) -> Option<Duration> {
        self.as_ref().map(Request::due_within)
    }
}

impl What {
    fn tells(&mut self) -> &mut dyn Tells {
        match self {
            What::Acquire(request, _) => request,
            What::Import(request) => request,
            What::Get(request, _) => request,
            What::Register(request, _) => request,
            What::Create(request) => request,
            What::Seal(request, _) => request,
            What::Put(request) => request,
        }
    }
}

/// The caller's request.
///
/// # Safety
/// `request` is NULL or a request that no other thread uses meanwhile.
pub(crate) unsafe fn under_way<'a>(
    request: *mut fdbroker_request_t,
) -> Result<&'a mut fdbroker_request_t, Failure> {
    // SAFETY: the caller's promise.
    unsafe { request.as_mut() }.ok_or_else(|| Failure::argument("request is NULL"))
}

/// What a request has come to; until it is done it stays in its slot.
pub(crate) fn look<T>(slot: &mut Option<Request<'static, T>>) -> Result<T, Failure> {
    match slot.take().expect("put back while under way").test() {
        Progress::UnderWay(under_way) => {
            *slot = Some(under_way);
            Err(Failure::NotReady)
        }
        Progress::Done(done) => Ok(done),
    }
}

/// The outcomes of a request that is done. FDBROKER_AGAIN says that it is not, and is CANCELLED
/// here: who tested once more would use a request that is freed.
fn ended<T>(outcomes: Vec<Result<T, Error>>) -> Vec<Result<T, Error>> {
    outcomes.into_iter().map(|outcome| outcome.map_err(end)).collect()
}

pub(crate) fn end(mut error: Error) -> Error {
    if error.code == ErrorCode::Again {
        (error.code, error.status) = (ErrorCode::Cancelled, None);
    }
    error
}

/// Starts to acquire count handles, without waiting. On success *request is a request, which ends
/// when fdbroker_request_test() says that it is done, or by fdbroker_request_cancel(); either must
/// come before fdbroker_close(). The handles are copied. Also inside a callback. On failure
/// *request is NULL.
///
/// For every kind of request FDBROKER_AGAIN means that it is not done. Where other functions answer
/// FDBROKER_AGAIN, an item of a request ends with FDBROKER_CANCELLED: the import cache is
/// suspended, an opener answers it, the names to get are in too many groups.
///
/// Errors: FDBROKER_NOT_CONNECTED, FDBROKER_INVALID_ARGUMENT. fdbroker_request_test() answers all
/// others.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_acquire_start(
    broker: *mut fdbroker_t,
    count: usize,
    handles: *const fdbroker_handle_t,
    deadline_ms: u32,
    request: *mut *mut fdbroker_request_t,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let out = unsafe { place(request, "request", null_mut()) }?;
        // SAFETY: as above.
        let (context, handles) = unsafe { (context(broker, "acquire")?, many(handles, count)?) };
        let request = context.client.acquire_start(&handles, Deadline::from_ms(deadline_ms))?;
        let what = What::Acquire(Some(request), Arc::clone(&context.leases));
        *out = fdbroker_request_t::boxed(count, what);
        Ok(())
    })
}

/// Makes progress without waiting. FDBROKER_AGAIN: the request is still under way, and nothing is
/// written. Otherwise it is done and freed: all grants and codes (codes may be NULL) are filled as
/// by fdbroker_acquire_many(). Also inside a callback.
///
/// Errors: the first of those of fdbroker_acquire(); FDBROKER_INVALID_ARGUMENT (the request stays
/// as it was).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_request_test(
    request: *mut fdbroker_request_t,
    grants: *mut fdbroker_grant_t,
    codes: *mut fdbroker_code_t,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let this = unsafe { under_way(request) }?;
        let What::Acquire(acquire, leases) = &mut this.what else {
            return Err(Failure::argument("request was not started by fdbroker_acquire_start()"));
        };
        // SAFETY: as above; as many as were started.
        let mut grants = unsafe { Grants::new(this.count, grants, codes) }?;
        let outcomes = look(acquire)?;
        let leases = Arc::clone(leases);
        // SAFETY: made by fdbroker_acquire_start, and this is its last use.
        drop(unsafe { Box::from_raw(request) });
        grants.fill(&leases, ended(outcomes))
    })
}

/// Starts to import count handles through the import cache, without waiting; flags are
/// FDBROKER_IMPORT_*. Otherwise as fdbroker_acquire_start(); fdbroker_import_test() makes progress.
/// What is in the cache is in use at once.
///
/// Errors: FDBROKER_NOT_CONNECTED (unless all is in the cache), FDBROKER_INVALID_ARGUMENT. All
/// others come from fdbroker_import_test().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_import_start(
    broker: *mut fdbroker_t,
    count: usize,
    handles: *const fdbroker_handle_t,
    flags: u32,
    deadline_ms: u32,
    request: *mut *mut fdbroker_request_t,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states. The request ends before the context
        // does: it lives as long as the request needs it.
        let (out, context): (_, &'static fdbroker_t) =
            unsafe { (place(request, "request", null_mut())?, context(broker, "import")?) };
        // SAFETY: as above.
        let handles = unsafe { many(handles, count) }?;
        let deadline = Deadline::from_ms(deadline_ms);
        let started = context.cache.import_start(&handles, mode(flags)?, deadline)?;
        let what = What::Import(Some(started));
        *out = fdbroker_request_t::boxed(count, what);
        Ok(())
    })
}

/// Makes progress without waiting. FDBROKER_AGAIN: the request is still under way, and nothing is
/// written. Otherwise it is done and freed: all imports and codes (codes may be NULL) are filled as
/// by fdbroker_import_many(). Each fd is closed as it comes. An opener (fdbroker_set_opener()) runs
/// inside this call. Not inside a callback.
///
/// Errors: the first of those of fdbroker_import(); FDBROKER_NOT_SUPPORTED (inside a callback),
/// FDBROKER_INVALID_ARGUMENT: the request stays as it was.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_import_test(
    request: *mut fdbroker_request_t,
    imports: *mut fdbroker_import_t,
    codes: *mut fdbroker_code_t,
) -> fdbroker_code_t {
    guard(|| {
        refuse_in_callback("import")?;
        // SAFETY: the caller's pointers, as the header states.
        let this = unsafe { under_way(request) }?;
        let What::Import(import) = &mut this.what else {
            return Err(Failure::argument("request was not started by fdbroker_import_start()"));
        };
        // SAFETY: as above; as many as were started.
        let mut answers = unsafe { answers(this.count, imports, codes) }?;
        let outcomes = look(import)?;
        // SAFETY: made by fdbroker_import_start, and this is its last use.
        drop(unsafe { Box::from_raw(request) });
        answers.fill(Ok::<_, Failure>(ended(outcomes).into_iter().map(|one| one.map(taken_apart))))
    })
}

/// Starts to register count allocations, without waiting; fds[i] belongs to allocations[i].
/// Otherwise as fdbroker_acquire_start(); fdbroker_register_test() makes progress. The library
/// duplicates the fds and closes each duplicate when its allocation is registered: the caller may
/// close its own at once. Until the request is done, another registration of the same memory
/// (device and base) waits for it.
///
/// Errors: FDBROKER_NOT_CONNECTED, FDBROKER_INVALID_ARGUMENT (an array). All others come from
/// fdbroker_register_test().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_register_start(
    broker: *mut fdbroker_t,
    count: usize,
    allocations: *const fdbroker_allocation_t,
    fds: *const c_int,
    deadline_ms: u32,
    request: *mut *mut fdbroker_request_t,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states. The request ends before the context
        // does: it lives as long as the request needs it.
        let (out, context): (_, &'static fdbroker_t) =
            unsafe { (place(request, "request", null_mut())?, context(broker, "register")?) };
        // SAFETY: as above; the fds stay open over the call.
        let wanted = unsafe { Wanted::new(context, count, allocations, fds) }?;
        let Wanted { deposits, fds, refused } = wanted;
        let deadline = Deadline::from_ms(deadline_ms);
        let started = context.exports.register_start(&deposits, &fds, deadline)?;
        let what = What::Register(Some(started), refused);
        *out = fdbroker_request_t::boxed(count, what);
        Ok(())
    })
}

/// Makes progress without waiting. FDBROKER_AGAIN: the request is still under way, and nothing is
/// written. Otherwise it is done and freed: all handles and codes (codes may be NULL) are filled as
/// by fdbroker_register_many(). Also inside a callback.
///
/// Errors: the first of those of fdbroker_register(); FDBROKER_LOCAL_FD_LIMIT (no fd for a
/// duplicate); FDBROKER_INVALID_ARGUMENT also when the request stays as it was, because handles is
/// NULL or it is another kind of request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_register_test(
    request: *mut fdbroker_request_t,
    handles: *mut fdbroker_handle_t,
    codes: *mut fdbroker_code_t,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let this = unsafe { under_way(request) }?;
        let What::Register(register, refused) = &mut this.what else {
            return Err(Failure::argument("request was not started by fdbroker_register_start()"));
        };
        // SAFETY: as above; as many as were started.
        let mut answers = unsafe { register::answers(this.count, handles, codes) }?;
        let outcomes = look(register)?;
        let refused = std::mem::take(refused);
        // SAFETY: made by fdbroker_register_start, and this is its last use.
        drop(unsafe { Box::from_raw(request) });
        answers.fill(Ok(refused.fill(ended(outcomes))))
    })
}

/// Starts to get count objects, without waiting; names and options as for fdbroker_object_get()
/// (not FDBROKER_OBJECT_CACHED). Otherwise as fdbroker_acquire_start(); fdbroker_object_get_test()
/// makes progress.
///
/// Errors: FDBROKER_NOT_CONNECTED, FDBROKER_TOO_LONG, FDBROKER_BAD_HANDLE (what cannot be a name),
/// FDBROKER_INVALID_ARGUMENT. All others come from fdbroker_object_get_test().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_object_get_start(
    broker: *mut fdbroker_t,
    count: usize,
    names: *const *const c_char,
    options: *const fdbroker_object_options_t,
    deadline_ms: u32,
    request: *mut *mut fdbroker_request_t,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let (out, context, names, options) = unsafe {
            let out = place(request, "request", null_mut())?;
            let context = context(broker, "get objects")?;
            (out, context, names_of(names, count)?, options_of(options, OF_GET_START)?)
        };
        let from = opening(context, &options)?;
        let mut deadline = Deadline::from_ms(deadline_ms);
        if options.flags & FDBROKER_OBJECT_NO_WAIT != 0 {
            deadline = deadline.answered_within(Duration::ZERO);
        }
        let started = from.get_start(&names, deadline)?;
        let what = What::Get(Some(started), Arc::clone(&context.object_table));
        *out = fdbroker_request_t::boxed(count, what);
        Ok(())
    })
}

const OF_GET_START: u32 = FDBROKER_OBJECT_JOB | FDBROKER_OBJECT_NO_WAIT;

/// Makes progress without waiting. FDBROKER_AGAIN: the request is still under way, and all elements
/// of objects are zero but struct_size. Otherwise it is done and freed, and objects are as after
/// fdbroker_object_get(); memory is opened inside this call. Also inside a callback.
///
/// Errors: those of fdbroker_object_get(); FDBROKER_INVALID_ARGUMENT (the request stays as it was).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_object_get_test(
    request: *mut fdbroker_request_t,
    objects: *mut fdbroker_object_t,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let this = unsafe { under_way(request) }?;
        let What::Get(get, table) = &mut this.what else {
            return Err(Failure::argument(
                "request was not started by fdbroker_object_get_start()",
            ));
        };
        // SAFETY: as above; as many as were started.
        let mut out = unsafe { Taken::new(objects, this.count) }?;
        let outcome = look(get)?;
        let table = Arc::clone(table);
        // SAFETY: made by fdbroker_object_get_start, and this is its last use.
        drop(unsafe { Box::from_raw(request) });
        out.fill(&table, outcome.map_err(end)?);
        Ok(())
    })
}

/// From now on a request tells due this token when there is something to test: an answer has come,
/// a place for its message is free, or the connection has ended.
///
/// Errors: FDBROKER_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_request_tell(
    request: *mut fdbroker_request_t,
    due: *mut fdbroker_due_t,
    token: u64,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let (this, due) = unsafe { (under_way(request)?, due_of(due)?) };
        this.what.tells().tell(due, token);
        Ok(())
    })
}

/// In how many milliseconds a request is to be tested though it has not told: its deadline comes
/// then, or a pause is over before it asks again. To be asked after each test. 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_request_due_ms(request: *mut fdbroker_request_t) -> u32 {
    guard_value(0, || {
        // SAFETY: the caller's pointer, as the header states.
        let within = unsafe { under_way(request) }?.what.tells().due_within();
        let ms = within.map_or(0, |within| within.as_nanos().div_ceil(1_000_000));
        Ok(u32::try_from(ms).unwrap_or(u32::MAX))
    })
}

/// Cancels a request and frees it: the broker is told, and what it has got or still gets is given
/// back (memory with a base that is registered already stays so, and the next registration of it
/// finds it; what was being sealed or put is given up, unless it is sealed by then). Never waits;
/// also inside a callback. NULL: does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_request_cancel(
    request: *mut fdbroker_request_t,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: made by one of the functions that start one, and this is its last use.
        unsafe { take_back(request) }
    })
}
