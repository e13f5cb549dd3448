//! Registering early: what a program will most likely register next is sent in one message while
//! it does other things, and answered when it asks. Must never make anybody wait before that, nor
//! leave a registration that nobody takes.

use super::register::{Registrations, Request, registered};
use crate::deadline::Deadline;
use crate::deposit::{Deposit, Registration, RegistrationRef};
use crate::error::Error;
use crate::interrupt::{Condvar, now, wait_until};
use crate::limits::ROW_CREDITS;
use crate::sync::lock;
use crate::wire::call::{Call, Reply};
use crate::wire::connection::Connection;
use std::mem::replace;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

/// A registration that was sent, and whose answer is still to be taken; see
/// [`crate::Client::register_early`]. Dropping it ends it, without waiting. It does not keep its
/// client connected.
#[derive(Debug)]
#[must_use = "dropping it ends the registration"]
pub struct EarlyRegistration {
    sent: Arc<Sent>,
    /// Its place in the message.
    index: usize,
}

/// One message, and its answer.
#[derive(Debug)]
struct Sent {
    connection: Arc<Connection>,
    deposits: Vec<Deposit>,
    answer: Mutex<Answer>,
    has_come: Condvar,
}

#[derive(Debug)]
enum Answer {
    /// To the request of this number, which nobody has asked for; of the deposits at these places
    /// nobody will.
    Unread(u64, Vec<usize>),
    /// A thread waits for it.
    Awaited(Vec<usize>),
    /// What nobody has taken, by place.
    Come(Vec<Option<Result<Registration, Error>>>),
}

/// Sends the first of `deposits` for which credits, fds and room are at hand.
pub(crate) fn begin(
    connection: &Arc<Connection>,
    deposits: &[Deposit],
    export: impl FnMut(usize) -> Option<OwnedFd>,
    deadline: Deadline,
) -> Vec<EarlyRegistration> {
    let is_sound = |deposit: &&Deposit| connection.common.check_deposit(deposit).is_ok();
    let wanted = deposits.iter().take_while(is_sound).count();
    let claimed = claim(connection, u32::try_from(wanted).expect("a message's"));
    let fds: Vec<OwnedFd> = (0..claimed as usize).map_while(export).collect();
    let deposits = &deposits[..fds.len()];
    let request = if fds.is_empty() { None } else { send(connection, deposits, &fds, deadline) };
    let sent = request.map_or(0, |_| fds.len());
    connection.credits.give_back(claimed - u32::try_from(sent).expect("at most what is claimed"));
    let Some(id) = request else { return Vec::new() };
    let sent = Arc::new(Sent {
        connection: Arc::clone(connection),
        deposits: deposits.to_vec(),
        answer: Mutex::new(Answer::Unread(id, Vec::new())),
        has_come: Condvar::new(),
    });
    let early = |index| EarlyRegistration { sent: Arc::clone(&sent), index };
    (0..deposits.len()).map(early).collect()
}

/// Claims credits that are here, or in what was answered and nobody has read.
fn claim(connection: &Connection, wanted: u32) -> u32 {
    if wanted == 0 {
        return 0;
    }
    match connection.credits.claim_at_hand(wanted) {
        0 if connection.read_if_nobody_does().is_some() => connection.credits.claim_at_hand(wanted),
        claimed => claimed,
    }
}

fn send(
    connection: &Connection,
    deposits: &[Deposit],
    fds: &[OwnedFd],
    deadline: Deadline,
) -> Option<u64> {
    connection.common.holdings.supersede(deposits.iter());
    let sent: Vec<(usize, BorrowedFd<'_>)> = fds.iter().map(AsFd::as_fd).enumerate().collect();
    let request = Request { deposits, sent: &sent, follow: ROW_CREDITS, deadline };
    request.start_attended(connection).ok()?
}

/// The answer, waiting for it if it has not come yet.
pub(crate) fn take(early: EarlyRegistration, deadline: Deadline) -> Result<Registration, Error> {
    if !early.sent.connection.is_usable() {
        return Err(early.sent.connection.lost("register"));
    }
    let again = |error: Error| match error.asks_again() {
        true => error.because(
            "the broker had no room for it yet; register it in the ordinary way, which waits",
        ),
        false => error,
    };
    early.sent.answer(early.index, deadline).map_err(again)
}

impl Sent {
    fn answer(&self, index: usize, deadline: Deadline) -> Result<Registration, Error> {
        let mut answer = lock(&self.answer);
        if let Answer::Unread(id, given_up) = &mut *answer {
            let (id, given_up) = (*id, std::mem::take(given_up));
            *answer = Answer::Awaited(given_up);
            drop(answer);
            self.enter(self.read(id, deadline));
            answer = lock(&self.answer);
        }
        loop {
            if let Answer::Come(answers) = &mut *answer {
                return answers[index].take().expect("each is taken once");
            }
            if now() >= deadline.given_up_at() {
                return Err(Error::timed_out("register: another thread waits for the answer"));
            }
            answer = wait_until(&self.has_come, &self.answer, answer, deadline.given_up_at());
        }
    }

    fn read(&self, id: u64, deadline: Deadline) -> Result<Registrations, Error> {
        let deposits = &self.deposits;
        let call = Request { deposits, sent: &[], follow: 0, deadline }.call();
        let call = Call { deposits: u32::try_from(deposits.len()).expect("a message's"), ..call };
        let read = |reply: Reply<'_>| registered(&self.connection, deposits.iter(), &reply);
        self.connection.reply(id, &call, read)
    }

    fn enter(&self, read: Result<Registrations, Error>) {
        let answers = match read {
            Ok(answers) => answers.into_iter().map(Some).collect(),
            Err(error) => vec![Some(Err(error)); self.deposits.len()],
        };
        let mut answer = lock(&self.answer);
        let before = replace(&mut *answer, Answer::Come(answers));
        drop(answer);
        self.has_come.notify_all();
        if let Answer::Awaited(given_up) = before {
            given_up.into_iter().for_each(|index| self.give_up(index));
        }
    }

    /// Nobody takes the answer at this place.
    fn give_up(&self, index: usize) {
        // In a forked child the lock may be held by a thread that it does not have.
        if !self.connection.common.process.is_current() {
            return;
        }
        let mut answer = lock(&self.answer);
        match &mut *answer {
            Answer::Unread(id, given_up) => {
                given_up.push(index);
                if given_up.len() == self.deposits.len() {
                    let id = *id;
                    drop(answer);
                    self.connection.forget(id);
                }
            }
            Answer::Awaited(given_up) => given_up.push(index),
            Answer::Come(answers) => {
                let made = answers[index].take().and_then(Result::ok);
                drop(answer);
                self.connection.common.retire(made.iter().map(RegistrationRef::from));
            }
        }
    }
}

impl Drop for EarlyRegistration {
    fn drop(&mut self) {
        self.sent.give_up(self.index);
    }
}
