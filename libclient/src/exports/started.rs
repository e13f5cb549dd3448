//! Registrations under way that nobody waits for: started, tested now and then, cancelled or
//! dropped. Must never block, nor keep a range of memory claimed once it is answered.

use super::{Claim, Exports, Found};
use crate::api::client::Client;
use crate::books::due::Teller;
use crate::books::spans::place_of;
use crate::deadline::Deadline;
use crate::deposit::{Deposit, RegistrationRef};
use crate::error::Error;
use crate::limits::AGAIN_FIRST;
use crate::own_fds::OwnFd;
use crate::requests::registering::Registering;
use crate::requests::started::{Exchange, Messages, Progress, Request, Work};
use fdbroker_protocol::Handle;
use std::os::fd::BorrowedFd;
use std::time::Instant;

/// Registrations under way; see [`Exports::register_start`].
///
/// To cancel it ends what it registers, but for memory with an address that is registered already:
/// the next registration of it finds it. Until it is answered, other threads that register the same
/// memory wait for it.
pub type RegisterRequest<'a> = Request<'a, Vec<Result<Handle, Error>>>;

/// How far a [`RegisterRequest`] is.
pub type RegisterProgress<'a> = Progress<'a, Vec<Result<Handle, Error>>>;

struct Registers<'a> {
    exports: &'a Exports,
    deadline: Deadline,
    registering: Exchange<Registering>,
    /// Of each that `registering` has: its place in the call, and the right to its range if it has
    /// one.
    sent: Vec<(usize, Deposit, Option<Claim<'a>>)>,
    /// Those in whose range another is being registered.
    busy: Vec<(usize, Deposit, OwnFd)>,
    outcomes: Vec<Option<Result<Handle, Error>>>,
    /// Those without an address: nobody finds them in the table.
    made: Vec<RegistrationRef>,
}

impl Exports {
    /// Starts to register any number, `fds[i]` being that of `deposits[i]`, without waiting for
    /// anything: see [`RegisterRequest`]. The library duplicates the fds, and closes each duplicate
    /// when its deposit is answered. May be called in a callback.
    ///
    /// # Errors
    /// When nothing was started: NOT_CONNECTED. All else is said by [`Request::test`],
    /// deposit by deposit: as [`Exports::register_many`].
    ///
    /// # Panics
    /// When `deposits` and `fds` differ in length.
    pub fn register_start(
        &self,
        deposits: &[Deposit],
        fds: &[BorrowedFd<'_>],
        deadline: Deadline,
    ) -> Result<RegisterRequest<'_>, Error> {
        assert_eq!(deposits.len(), fds.len(), "one fd per deposit");
        let connection = self.connected(deposits, Client::usable)?;
        let mut request = Registers {
            exports: self,
            deadline,
            registering: Exchange::new(Registering::new(connection, deadline)),
            sent: Vec::new(),
            busy: Vec::new(),
            outcomes: deposits.iter().map(|_| None).collect(),
            made: Vec::new(),
        };
        for (place, (deposit, fd)) in deposits.iter().zip(fds).enumerate() {
            match OwnFd::duplicate(*fd, "register: duplicate the fd") {
                Ok(fd) => request.add(place, *deposit, fd),
                Err(error) => request.outcomes[place] = Some(Err(error)),
            }
        }
        request.registering.start();
        Ok(Request::of(request))
    }
}

impl Work for Registers<'_> {
    type Outcome = Vec<Result<Handle, Error>>;

    fn advance(&mut self) -> Option<Self::Outcome> {
        if self.exports.client.is_forked_copy() {
            // The locks of its claims may be held by a thread that the child does not have.
            std::mem::forget(std::mem::take(&mut self.sent));
            let forked = self.outcomes.iter().map(|_| Err(Error::forked("register")));
            return Some(forked.collect());
        }
        self.registering.messages.connection().serve();
        loop {
            for (place, deposit, fd) in std::mem::take(&mut self.busy) {
                self.add(place, deposit, fd);
            }
            let is_idle = self.registering.go_on().is_some();
            let answered = self.registering.messages.take_answered();
            if answered.is_empty() {
                return (is_idle && self.busy.is_empty()).then(|| self.done());
            }
            for (index, answer) in answered {
                let (place, deposit, claim) = &mut self.sent[index];
                // What is done with the claim frees its range for those that are busy.
                self.outcomes[*place] = Some(match claim.take() {
                    Some(claim) => answer.and_then(|made| claim.keep(deposit, &made)),
                    None => answer.map(|made| {
                        self.made.push((&made).into());
                        made.handle
                    }),
                });
            }
        }
    }

    fn tell(&mut self, teller: &Teller) {
        self.registering.tell(teller);
    }

    fn goes_on_at(&self) -> Instant {
        let at = self.registering.goes_on_at();
        // Nobody tells when another registration is over.
        if self.busy.is_empty() { at } else { at.min(Instant::now() + AGAIN_FIRST) }
    }
}

impl Registers<'_> {
    /// Finds one in the table, or sends it when its range is free.
    fn add(&mut self, place: usize, deposit: Deposit, fd: OwnFd) {
        let claim = match place_of(&deposit).map(|range| self.exports.find(range, &deposit)) {
            None => None,
            Some(Found::Claimed(claim)) => Some(claim),
            Some(Found::Known(handle)) => return self.outcomes[place] = Some(Ok(handle)),
            Some(Found::Busy) if self.deadline.has_passed() => {
                let context = "register: another thread is registering this memory";
                return self.outcomes[place] = Some(Err(Error::timed_out(context)));
            }
            Some(Found::Busy) => return self.busy.push((place, deposit, fd)),
        };
        self.sent.push((place, deposit, claim));
        self.registering.messages.add(deposit, fd);
    }

    fn done(&mut self) -> Vec<Result<Handle, Error>> {
        self.made.clear();
        let outcomes = std::mem::take(&mut self.outcomes);
        let outcome = |one: Option<_>| one.expect("known, answered or refused");
        outcomes.into_iter().map(outcome).collect()
    }
}

impl Drop for Registers<'_> {
    fn drop(&mut self) {
        if self.exports.client.is_forked_copy() {
            std::mem::forget(std::mem::take(&mut self.sent))
        } else {
            self.exports.client.common().retire(self.made.drain(..))
        }
    }
}

impl std::fmt::Debug for Registers<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registers").field("registering", &self.registering).finish_non_exhaustive()
    }
}
