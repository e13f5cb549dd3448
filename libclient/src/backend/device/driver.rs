//! What the loading of drivers has in common. Must never know a driver.

use crate::error::Error;
use crate::sync::lock;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::sync::{Mutex, OnceLock};

/// The driver of this process, loaded by the first call that succeeds: what was missing may have
/// come.
pub fn loaded<D>(
    driver: &'static OnceLock<D>,
    load: impl FnOnce() -> Result<D, Error>,
) -> Result<&'static D, Error> {
    static LOADING: Mutex<()> = Mutex::new(());
    if driver.get().is_none() {
        let _loading = lock(&LOADING);
        if driver.get().is_none() {
            // Nobody else sets it: this thread holds the lock.
            let _ = driver.set(load()?);
        }
    }
    Ok(driver.get().expect("set above"))
}

/// Whether this process has not `count` more fds to open.
pub fn lacks_fds(count: usize) -> bool {
    let one = || EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC);
    let made: Vec<_> = (0..count).map_while(|_| one().ok()).collect();
    made.len() < count
}
