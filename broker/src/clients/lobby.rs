//! The lobby: connections that have not said hello, nor which client's further socket they are.
//! Each domain has a part of it, so that one that only connects keeps the others out of nothing.
//! Must never count a connection twice.

use crate::fds::jobs::Process;
use crate::limits::{LOBBY, LOBBY_PER_DOMAIN};
use fdbroker_core::{DomainKey, Now};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::OwnedFd;

/// A connection whose first message has not come.
#[derive(Debug)]
pub struct Caller {
    pub socket: OwnedFd,
    pub domain: DomainKey,
    pub pid: u32,
    /// It has to say something by then.
    pub until: Now,
    /// It is a user that looks, and no client.
    pub is_viewer: bool,
    /// The facts about its process, where it was looked at first.
    pub process: Option<Process>,
    /// Its process is looked at before anything of it is read.
    pub is_looked_at: bool,
    /// The loop waits for its message.
    pub is_watched: bool,
    /// It is in the list of those whose message may have come.
    pub is_ready: bool,
}

impl Caller {
    /// One that has just come, and has to say something until then.
    pub fn new(socket: OwnedFd, domain: DomainKey, pid: u32, until: Now) -> Self {
        Caller {
            socket,
            domain,
            pid,
            until,
            is_viewer: false,
            process: None,
            is_looked_at: false,
            is_watched: false,
            is_ready: false,
        }
    }

    /// Its pod counts: nothing of it is read before its process has been looked at.
    pub fn looked_at_first(self) -> Self {
        Caller { is_looked_at: true, ..self }
    }
}

#[derive(Debug)]
pub struct Lobby {
    /// Those in it, with connections whose hello is about to be read.
    of: HashMap<DomainKey, u32>,
    all: u32,
    /// A broker of one user shares nothing.
    is_shared: bool,
    /// By the order in which they came, hence by time.
    callers: BTreeMap<u64, Caller>,
    last: u64,
    /// Those whose message may have come.
    ready: VecDeque<u64>,
}

impl Lobby {
    pub fn new(is_shared: bool) -> Self {
        let (of, callers, ready) = (HashMap::new(), BTreeMap::new(), VecDeque::new());
        Lobby { of, all: 0, is_shared, callers, last: 0, ready }
    }

    /// Keeps a caller, who has entered, until its first message has come. Its number, which is
    /// never given again.
    pub fn keep(&mut self, caller: Caller) -> u64 {
        self.last += 1;
        self.callers.insert(self.last, caller);
        self.note(self.last);
        self.last
    }

    /// A caller's message may have come.
    pub fn note(&mut self, number: u64) {
        let Some(caller) = self.callers.get_mut(&number) else { return };
        if !caller.is_looked_at && !std::mem::replace(&mut caller.is_ready, true) {
            self.ready.push_back(number);
        }
    }

    /// The next caller whose message may have come; one that has left meanwhile, too.
    pub fn next_ready(&mut self) -> Option<u64> {
        let number = self.ready.pop_front()?;
        self.callers.get_mut(&number).into_iter().for_each(|caller| caller.is_ready = false);
        Some(number)
    }

    /// Whether there is one.
    pub fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// When the first caller's time is over.
    pub fn due(&self) -> Option<Now> {
        self.callers.first_key_value().map(|(_, caller)| caller.until)
    }

    /// A caller whose time is over.
    pub fn next_expired(&self, now: Now) -> Option<u64> {
        self.callers.first_key_value().filter(|it| it.1.until <= now).map(|it| *it.0)
    }

    /// A caller that is here.
    pub fn get_mut(&mut self, number: u64) -> Option<&mut Caller> {
        self.callers.get_mut(&number)
    }

    /// Lets go of a caller, which still has to leave.
    pub fn take(&mut self, number: u64) -> Option<Caller> {
        self.callers.remove(&number)
    }

    /// All callers, by number.
    pub fn callers(&self) -> &BTreeMap<u64, Caller> {
        &self.callers
    }

    /// The process of a caller has been looked at.
    pub fn note_process(&mut self, number: u64, domain: DomainKey, process: Process) {
        let Some(caller) = self.callers.get_mut(&number) else { return };
        (caller.domain, caller.process, caller.is_looked_at) = (domain, Some(process), false);
        self.note(number);
    }

    /// Whether another connection of this domain may come in.
    pub fn has_room(&self, domain: DomainKey) -> bool {
        let of_domain = self.of.get(&domain).copied().unwrap_or(0);
        !self.is_shared || (self.all < LOBBY && of_domain < LOBBY_PER_DOMAIN)
    }

    /// A connection has come in.
    pub fn enter(&mut self, domain: DomainKey) {
        *self.of.entry(domain).or_default() += 1;
        self.all += 1;
    }

    /// It has said hello, or has ended before.
    pub fn leave(&mut self, domain: DomainKey) {
        let of_domain = self.of.get_mut(&domain).expect("it came in before");
        (*of_domain, self.all) = (*of_domain - 1, self.all - 1);
        if *of_domain == 0 {
            self.of.remove(&domain);
        }
    }

    /// Nobody is in it any more; those that were.
    pub fn clear(&mut self) -> impl Iterator<Item = Caller> + use<> {
        (self.all, self.of, self.ready) = (0, HashMap::new(), VecDeque::new());
        std::mem::take(&mut self.callers).into_values()
    }

    /// As of a broker of several users.
    #[cfg(test)]
    pub fn share(&mut self) {
        self.is_shared = true;
    }

    /// Nobody is in it.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.all == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lobby_when_a_domain_has_its_part_then_only_others_come_in_until_one_leaves() {
        let (mine, other) = (DomainKey::new(0, 1), DomainKey::new(0, 2));
        let mut lobby = Lobby::new(true);
        (0..LOBBY_PER_DOMAIN).for_each(|_| lobby.enter(mine));
        assert!(!lobby.has_room(mine) && lobby.has_room(other));
        lobby.leave(mine);
        assert!(lobby.has_room(mine));
        (0..LOBBY_PER_DOMAIN - 1).for_each(|_| lobby.leave(mine));
        assert!(lobby.is_empty());
    }

    #[test]
    fn lobby_when_full_then_nobody_comes_in_but_to_a_private_broker() {
        let domain = |uid| DomainKey::new(0, uid);
        let (mut shared, mut private) = (Lobby::new(true), Lobby::new(false));
        for uid in 0..LOBBY {
            shared.enter(domain(uid));
            private.enter(domain(0));
        }
        assert!(!shared.has_room(domain(LOBBY)) && private.has_room(domain(0)));
    }
}
