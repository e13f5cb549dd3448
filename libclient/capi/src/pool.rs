//! CUDA memory for allocators that call functions without a context, as PyTorch's MemPool does.
//! Must never wait for the broker, nor free memory that it did not allocate.

use crate::context::{context, fdbroker_t};
use crate::errors::fdbroker_code_t;
use crate::failure::Failure;
use crate::gpus::{Driver, Gpus};
use crate::guard::{guard, guard_value};
use fdbroker_client::{ErrorCode, Share};
use std::ffi::{c_int, c_void};
use std::sync::{Arc, OnceLock};

/// The context whose memory the functions give out. One for the process: an allocator has no
/// argument for it. Never replaced, so that no lock is needed, which a forked child could find
/// taken.
static POOL: OnceLock<Arc<Gpus>> = OnceLock::new();

/// The pool, unless this is a forked child.
fn pool() -> Result<&'static Gpus, Failure> {
    let pool = POOL.get().ok_or_else(|| Failure::argument("pool: no pool is set"))?;
    if pool.client().is_forked_copy() {
        Err(fdbroker_client::layer::forked("pool").into())
    } else {
        Ok(pool)
    }
}

/// Has fdbroker_pool_alloc() allocate for this context from now on. What it has given out stays
/// until fdbroker_pool_free(), also after fdbroker_close() of the context, from when on it cannot
/// be shared any more. The first context stays the process's for good.
///
/// Errors: FDBROKER_EXISTS (another context has it), FDBROKER_NOT_SUPPORTED (CUDA is not there;
/// fdbroker_last_error() says what is missing), FDBROKER_NOT_CONNECTED (in a forked child),
/// FDBROKER_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_pool_set(broker: *mut fdbroker_t) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's context, as the header states.
        let context = unsafe { context(broker, "pool set") }?;
        Driver::Cuda.count()?;
        let known = POOL.get_or_init(|| Arc::clone(&context.gpus));
        if Arc::ptr_eq(known, &context.gpus) {
            Ok(())
        } else {
            let text = "pool set: another context of this process has the pool";
            Err(Failure::new(ErrorCode::Exists, text))
        }
    })
}

/// Allocates CUDA memory that can be shared: fdbroker_get_handle() of any address in it registers
/// it. For torch.cuda.memory.CUDAPluggableAllocator and its like, whose functions have these
/// arguments; stream is not looked at. NULL: no pool is set, or fdbroker_last_error() says why.
/// Sends nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_pool_alloc(
    size_bytes: usize,
    device: c_int,
    _stream: *mut c_void,
) -> *mut c_void {
    guard_value(std::ptr::null_mut(), || {
        let pool = pool()?;
        let ordinal = u32::try_from(device)
            .map_err(|_| Failure::argument(format!("pool alloc: device is {device}")))?;
        let buffer = pool.alloc(Driver::Cuda, ordinal, size_bytes, Share::Uid)?;
        let ptr = buffer.ptr();
        pool.keep(buffer, true);
        Ok(ptr)
    })
}

/// Frees what fdbroker_pool_alloc() gave, and ends its registration. The caller has waited for the
/// streams that use it, as PyTorch's caching allocator does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_pool_free(
    ptr: *mut c_void,
    _size_bytes: usize,
    _device: c_int,
    _stream: *mut c_void,
) {
    guard_value((), || match ptr.is_null() || pool()?.free(ptr.addr() as u64) {
        true => Ok(()),
        false => {
            let text = format!("pool free: {ptr:p} begins no memory of the pool");
            Err(Failure::given_back(text))
        }
    });
}
