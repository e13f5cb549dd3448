//! End to end: the real daemon, real processes, the real library, in the cases that are hard. The
//! kind of memory and the daemon's program may be chosen by FDBROKER_TEST_MEMORY and FDBROKERD, so
//! that the same program runs in a virtual machine with real dma-bufs.

#[path = "../common/mod.rs"]
mod common;
mod support;

mod ahead;
mod broken_config;
mod cache;
mod comeback;
mod counts;
mod death;
mod deposits;
mod dispatch;
mod early;
mod exports;
mod fairness;
mod fd_store;
mod flow;
mod grace;
mod handles;
mod isolation;
mod joining;
mod journal;
mod keep;
mod ledger;
mod lifetime;
mod listeners;
mod liveness;
mod local_limit;
mod messages;
mod objects;
mod old_kernel;
mod one_memory;
mod places;
mod pressure;
mod progress;
mod recall;
mod resident;
mod restart;
mod table;
mod takeover;
mod virtual_fds;

/// Every part that a helper of a test may play.
const PARTS: &[support::peer::Part] = &[
    ("rank", support::rank::play),
    ("forking", death::play_forking),
    ("crowded", local_limit::play_crowded),
    ("importing", cache::play_importing),
    ("comeback", comeback::play),
    ("hung file server", support::fuse_server::play),
    ("hung file depositor", support::fuse::play_depositor),
    objects::MAKER,
    objects::CHANGING,
    objects::CHILDREN,
];
