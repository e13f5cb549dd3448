//! Registrations under way that nobody waits for: started, tested now and then, cancelled or
//! dropped. Must never block, nor keep a range of memory claimed once it is answered.

use super::{Claim, Exports, Found};
use crate::api::client::Client;
use crate::books::spans::place_of;
use crate::deadline::Deadline;
use crate::deposit::{Deposit, RegistrationRef};
use crate::error::Error;
use crate::own_fds::OwnFd;
use crate::requests::registering::Registering;
use crate::requests::started::Progress;
use fdbroker_protocol::Handle;
use std::os::fd::BorrowedFd;

/// Registrations under way; see [`Exports::register_start`]. For progress engines: nothing here
/// ever waits.
///
/// [`RegisterRequest::test`] drives it. Dropping it cancels it: what it registers is ended, but for
/// memory with an address that is registered already: the next registration of it finds it. Until
/// it is answered, other threads that register the same memory wait for it.
#[must_use = "dropping a request cancels it"]
pub struct RegisterRequest<'a> {
    exports: &'a Exports,
    deadline: Deadline,
    registering: Box<Registering>,
    /// Of each that `registering` has: its place in the call, and the right to its range if it has
    /// one.
    sent: Vec<(usize, Deposit, Option<Claim<'a>>)>,
    /// Those in whose range another is being registered.
    busy: Vec<(usize, Deposit, OwnFd)>,
    outcomes: Vec<Option<Result<Handle, Error>>>,
    /// Those without an address: nobody finds them in the table.
    made: Vec<RegistrationRef>,
}

/// How far a [`RegisterRequest`] is.
pub type RegisterProgress<'a> = Progress<RegisterRequest<'a>, Vec<Result<Handle, Error>>>;

impl Exports {
    /// Starts to register any number, `fds[i]` being that of `deposits[i]`, without waiting for
    /// anything: see [`RegisterRequest`]. The library duplicates the fds, and closes each duplicate
    /// when its deposit is answered. May be called in a callback.
    ///
    /// # Errors
    /// When nothing was started: NOT_CONNECTED. All else is said by [`RegisterRequest::test`],
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
        let mut request = RegisterRequest {
            exports: self,
            deadline,
            registering: Box::new(Registering::new(connection, deadline)),
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
        // Done already is seen by the first test.
        request.registering.advance();
        Ok(request)
    }
}

impl<'a> RegisterRequest<'a> {
    /// Does what can be done now, without waiting, and says how far it is; in dispatch mode that is
    /// to serve, too. May be called in a callback. All answer NOT_CONNECTED in a child of fork(2).
    pub fn test(mut self) -> RegisterProgress<'a> {
        if self.exports.client.is_forked_copy() {
            // The locks of its claims may be held by a thread that the child does not have.
            std::mem::forget(std::mem::take(&mut self.sent));
            let forked = self.outcomes.iter().map(|_| Err(Error::forked("register")));
            return Progress::Done(forked.collect());
        }
        self.registering.serve();
        loop {
            for (place, deposit, fd) in std::mem::take(&mut self.busy) {
                self.add(place, deposit, fd);
            }
            let is_idle = self.registering.advance();
            let answered = self.registering.take_answered();
            if answered.is_empty() {
                return if is_idle && self.busy.is_empty() {
                    self.done()
                } else {
                    Progress::UnderWay(self)
                };
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

    /// Gives it up, like drop. Never waits.
    pub fn cancel(self) {}

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
        self.registering.add(deposit, fd);
    }

    fn done(mut self) -> RegisterProgress<'a> {
        self.made.clear();
        let outcomes = std::mem::take(&mut self.outcomes);
        let outcome = |one: Option<_>| one.expect("known, answered or refused");
        Progress::Done(outcomes.into_iter().map(outcome).collect())
    }
}

impl Drop for RegisterRequest<'_> {
    fn drop(&mut self) {
        if self.exports.client.is_forked_copy() {
            std::mem::forget(std::mem::take(&mut self.sent))
        } else {
            self.exports.client.common().retire(self.made.drain(..))
        }
    }
}

impl std::fmt::Debug for RegisterRequest<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RegisterRequest")
            .field("registering", &self.registering)
            .finish_non_exhaustive()
    }
}
