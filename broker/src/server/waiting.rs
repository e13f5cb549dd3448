//! Clients whose messages with fds wait: until fds of their uid have been closed, or until an fd has been looked at. Must
//! never hold fds: the fd table has them. At most one message of a uid waits for a look.

use crate::fds::table::Reading;
use fdbroker_core::{ClientId, Now};
use std::collections::{HashMap, HashSet};

/// Which of a client's two sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Channel {
    /// Requests and replies.
    Main,
    /// Events and supplies.
    Event,
}

/// A message that waits until one of its fds has been looked at. Its client is not read from meanwhile.
pub(crate) struct Suspended {
    pub client: ClientId,
    /// Tells the client from a later one of the same number.
    pub serial: u64,
    pub channel: Channel,
    pub bytes: Vec<u8>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Waiting {
    /// Ready clients that are not read from, by uid.
    paused: HashMap<u32, HashSet<ClientId>>,
    /// The earliest time at which one of them has waited long enough.
    until: Option<Now>,
    /// By uid.
    suspended: HashMap<u32, Suspended>,
}

impl Waiting {
    /// Takes the client's turns away until fds of its uid are closed, or their time is over.
    pub fn pause(&mut self, uid: u32, client: ClientId, until: Now) {
        self.paused.entry(uid).or_default().insert(client);
        self.wait_until(until);
    }

    /// When a client has waited long enough.
    pub fn due(&self) -> Option<Now> {
        self.until
    }

    /// Gives up the clients of each uid whose fds may be read now, or are read no more.
    pub fn resume(&mut self, reading: impl Fn(u32) -> Reading) -> Vec<(u32, HashSet<ClientId>)> {
        self.until = None;
        let mut resumed = Vec::new();
        for (uid, clients) in std::mem::take(&mut self.paused) {
            if let Reading::Wait(until) = reading(uid) {
                self.wait_until(until);
                self.paused.insert(uid, clients);
            } else {
                resumed.push((uid, clients));
            }
        }
        resumed
    }

    /// Whether a message of the client waits for a look: then nothing behind it is read.
    pub fn is_suspended(&self, uid: u32, client: ClientId) -> bool {
        // Nearly always empty: then nothing is hashed.
        !self.suspended.is_empty() && self.suspended.get(&uid).is_some_and(|it| it.client == client)
    }

    /// A message of `uid` waits for a look.
    pub fn suspend(&mut self, uid: u32, message: Suspended) {
        self.suspended.insert(uid, message);
    }

    /// The message of `uid` that waits for a look.
    pub fn take_suspended(&mut self, uid: u32) -> Option<Suspended> {
        self.suspended.remove(&uid)
    }

    /// Uids with a message that waits for a look.
    pub fn suspended_uids(&self) -> Vec<u32> {
        self.suspended.keys().copied().collect()
    }

    fn wait_until(&mut self, until: Now) {
        self.until = Some(self.until.map_or(until, |former| former.min(until)));
    }
}
