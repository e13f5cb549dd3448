//! What becomes of a virtual fd, a granted fd and the layer's own fds in each call. The answers are
//! the kernel's: a value, or an errno negated. Must never hold more than one look for other fds:
//! then comes the system call.

pub mod child;
pub mod close;
pub mod duplicate;
pub mod memory;
pub mod pidfd;
pub mod poll;
pub mod refused;
pub mod send;
