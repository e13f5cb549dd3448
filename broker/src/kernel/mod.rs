//! System calls that nix has no safe wrapper for. Must never be used for what it has one for.

mod features;
mod files;
mod process;

pub use features::{
    KernelFeatures, accept_rights, is_same_file, message_us, peer_groups, peer_pidfd, pidfd_open,
    refuse_rights,
};
pub use files::{Device, Stat, accept, adopt, grow_fd_table, is_readable, leave_fd_table, stat};
pub use process::{
    RobustListHead, Start, clone_with_fds, ignore_signals_of_writes, monotonic_us, random,
    set_robust_list, thread_cpu_us, thread_id, trim_memory,
};
