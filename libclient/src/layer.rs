//! What fdbroker's own layers and its C library need of this crate beyond its interface. No promise
//! holds for it: it may change in any version. Must never have what a program could want.

use crate::error::Error;

#[cfg(feature = "cuda")]
pub use crate::backend::cuda::driver::gpu_named as cuda_gpu_named;
#[cfg(feature = "level-zero")]
pub use crate::backend::level_zero::driver::gpu_named as level_zero_gpu_named;
#[cfg(feature = "level-zero")]
pub use crate::backend::level_zero::fd::kind_of;
pub use crate::sync::lock;

/// BAD_HANDLE for what a program gives back (a lease, a pin, a buffer) and does not have.
pub fn given_back(context: impl Into<String>) -> Error {
    Error::given_back(context)
}

/// NOT_CONNECTED in a child of fork(2).
pub fn forked(what: &str) -> Error {
    Error::forked(what)
}

/// NOT_SUPPORTED for an allocation registered as recallable that nothing here can export again.
pub fn no_recall_callback() -> Error {
    Error::no_recall_callback()
}
