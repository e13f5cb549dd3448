//! Handles that the broker has told of ahead: of the allocations that an owner registered after one that was asked for. A
//! program that fetches the fds of a tensor one by one asks the broker once for each, not twice. Must never decide what a
//! number leads to: the broker refuses the handle of an allocation that has ended, and is asked for the number then.

use fdbroker_client::{Client, Deadline, Error, ErrorCode, Grant, Handle};
use fdbroker_virtual_fds::VirtualFd;
use std::sync::{Mutex, PoisonError};

/// How many handles are told ahead: a tensor of 512 MiB has 26 segments in PyTorch. The protocol's most.
const TOLD_AHEAD: u32 = 31;

/// Those of the last answer, each used once.
#[derive(Default)]
pub struct Neighbours(Mutex<Vec<Handle>>);

impl Neighbours {
    /// The fd behind a number.
    ///
    /// # Errors
    /// Those of [`Client::acquire_virtual`].
    pub fn acquire(
        &self,
        client: &Client,
        number: VirtualFd,
        deadline: Deadline,
    ) -> Result<Grant, Error> {
        if let Some(handle) = self.take(number) {
            match client.acquire(&handle, deadline) {
                Err(Error { code: ErrorCode::Stale | ErrorCode::BadHandle, .. }) => {}
                outcome => return outcome,
            }
        }
        let mut handles = client.resolve(number, TOLD_AHEAD, deadline)?;
        let handle = handles.remove(0);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = handles;
        client.acquire(&handle, deadline)
    }

    fn take(&self, number: VirtualFd) -> Option<Handle> {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = told.iter().position(|handle| handle.virtual_fd() == Some(number))?;
        Some(told.swap_remove(place))
    }
}
