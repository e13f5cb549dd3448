//! This process's connection, made at its first use. Must never use one that a parent has made.

use fdbroker_client::{Client, Registration};
use std::collections::HashMap;
use std::os::fd::RawFd;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The connection, and what this process has registered by virtual fd. Never freed: in a child it is its parent's.
pub struct Broker {
    pub client: Client,
    pub registered: Mutex<HashMap<RawFd, Vec<Registration>>>,
}

static CURRENT: AtomicPtr<Broker> = AtomicPtr::new(null_mut());

/// The connection that this process made before.
pub fn known() -> Option<&'static Broker> {
    // SAFETY: null, or a box that is never freed.
    let broker = unsafe { CURRENT.load(Ordering::Acquire).as_ref() };
    broker.filter(|broker| !broker.client.is_forked_copy())
}

/// The connection, made now when there is none. Two threads may both make one; one of them is dropped.
pub fn connected() -> Option<&'static Broker> {
    let before = CURRENT.load(Ordering::Acquire);
    if let Some(broker) = known() {
        return Some(broker);
    }
    let client = Client::connect().ok()?;
    let made = Box::into_raw(Box::new(Broker { client, registered: Mutex::default() }));
    match CURRENT.compare_exchange(before, made, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: made above, and never freed from now on.
        Ok(_) => Some(unsafe { &*made }),
        Err(faster) => {
            // SAFETY: made above, and nobody has seen it.
            drop(unsafe { Box::from_raw(made) });
            // SAFETY: what is there is never freed.
            Some(unsafe { &*faster })
        }
    }
}
