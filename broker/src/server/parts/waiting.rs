//! Clients whose messages with fds wait: until fds of their uid have been closed, until an fd has
//! been looked at, or until a lane has dropped the message. Must never hold fds: the fd table has
//! them. At most one message of a uid waits for a look, and lanes drop at most one message of a uid
//! at a time.

use crate::fds::closing::Reading;
use fdbroker_core::{ClientId, Now};
use std::collections::{HashMap, HashSet, VecDeque};

/// Which of a client's two sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Channel {
    /// Requests and replies.
    Main,
    /// Events and supplies.
    Event,
}

/// A message that waits until one of its fds has been looked at. Its client is not read from
/// meanwhile.
pub(crate) struct Suspended {
    pub client: ClientId,
    /// Tells the client from a later one of the same number.
    pub serial: u64,
    pub channel: Channel,
    /// The number of the request.
    pub id: u64,
    pub bytes: Vec<u8>,
}

/// A message that was refused and is to be dropped: it lies in this socket of the client, which is
/// not read from meanwhile.
#[derive(Clone, Copy)]
pub(crate) struct Refused {
    pub client: ClientId,
    /// As for [`Suspended`].
    pub serial: u64,
    pub channel: Channel,
}

#[derive(Default)]
pub(crate) struct Waiting {
    /// Ready clients that are not read from, by uid.
    paused: HashMap<u32, HashSet<ClientId>>,
    /// The earliest time at which one of them has waited long enough.
    until: Option<Now>,
    /// By uid.
    suspended: HashMap<u32, Suspended>,
    /// By uid; a lane drops the first one.
    refused: HashMap<u32, VecDeque<Refused>>,
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

    /// Gives back the clients of each uid that waits no longer: its fds may be read now, or are
    /// refused from now on.
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

    /// A message of `uid` is to be dropped. `true`: no other one of the uid is.
    pub fn refuse(&mut self, uid: u32, message: Refused) -> bool {
        let refused = self.refused.entry(uid).or_default();
        refused.push_back(message);
        refused.len() == 1
    }

    /// The first message of `uid` has been dropped: this message, and the one that is first now.
    pub fn take_refused(&mut self, uid: u32) -> (Option<Refused>, Option<Refused>) {
        let Some(refused) = self.refused.get_mut(&uid) else { return (None, None) };
        let (dropped, next) = (refused.pop_front(), refused.front().copied());
        if next.is_none() {
            self.refused.remove(&uid);
        }
        (dropped, next)
    }

    fn wait_until(&mut self, until: Now) {
        self.until = Some(self.until.map_or(until, |former| former.min(until)));
    }
}
