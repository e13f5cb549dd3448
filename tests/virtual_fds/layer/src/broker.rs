//! This process's connection, and what it has registered through it. Must never use one that a
//! parent has made.

use fdbroker_client::{Error, ErrorCode, Recall, RecallAnswer, Registration};
use fdbroker_layer::{Connected, Connection, State, Voice};
use fdbroker_virtual_fds::VirtualFd;
use nix::errno::Errno;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

static CONNECTION: Connection<Registered> = Connection::new();
static VOICE: Voice = Voice::new("test layer");

/// The registrations of each virtual fd.
#[derive(Default)]
pub struct Registered(Mutex<HashMap<VirtualFd, Vec<Registration>>>);

impl Registered {
    pub fn add(&self, fd: VirtualFd, registration: Registration) {
        self.with(|all| all.entry(fd).or_default().push(registration));
    }

    fn take(&self, fd: VirtualFd) -> Option<Registration> {
        self.with(|all| {
            let of_number = all.get_mut(&fd)?;
            let one = of_number.pop();
            if of_number.is_empty() {
                all.remove(&fd);
            }
            one
        })
    }

    fn with<T>(&self, body: impl FnOnce(&mut HashMap<VirtualFd, Vec<Registration>>) -> T) -> T {
        body(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl State for Registered {
    fn connection() -> &'static Connection<Self> {
        &CONNECTION
    }

    fn recall(&self, _: &Recall) -> Result<RecallAnswer, ErrorCode> {
        // Nothing is deposited as recallable.
        Err(ErrorCode::NotSupported)
    }

    fn end(&self) {}

    fn close(connected: &Connected<Self>, fd: VirtualFd) -> Result<(), Errno> {
        let one = connected.state.take(fd).ok_or(Errno::EBADF)?;
        connected.client.unregister(&one).map_err(|_| Errno::EBADF)?;
        Ok(())
    }

    fn numbers(connected: &Connected<Self>) -> Vec<VirtualFd> {
        connected.state.with(|all| all.keys().copied().collect())
    }

    fn say_absent(_: bool, error: &Error) {
        VOICE.once(1, error);
    }

    fn say_waiting(error: &Error) {
        VOICE.once(2, error);
    }
}
