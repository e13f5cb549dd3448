//! Registers under way that nobody waits for: tested now and then, given up by being dropped. Must
//! never block, send an fd without credit, nor lose a registration: what comes too late is undone.

use super::acquire::is_final;
use super::register::{Claimed, Registrations, Request, claim_start, look_for_credit};
use super::started::Messages;
use crate::deadline::Deadline;
use crate::deposit::{Deposit, Registration};
use crate::error::Error;
use crate::limits::AGAIN_FIRST;
use crate::own_fds::{CLOSED_HERE, OwnFd};
use crate::wire::again::Again;
use crate::wire::connection::Connection;
use fdbroker_protocol::{ErrorCode, Kind};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// What is to be registered, and how far that is.
#[derive(Debug)]
pub(crate) struct Registering {
    connection: Arc<Connection>,
    deadline: Deadline,
    deposits: Vec<Deposit>,
    /// Each until its deposit is answered.
    fds: Vec<Option<OwnFd>>,
    /// What is still to be sent.
    open: VecDeque<usize>,
    /// Those in the message under way; none: it asks for credit.
    sent: Vec<usize>,
    /// What that was answered.
    answers: Registrations,
    answered: Vec<(usize, Result<Registration, Error>)>,
    again: Again,
}

impl Registering {
    pub fn new(connection: Arc<Connection>, deadline: Deadline) -> Self {
        Registering {
            connection,
            deadline,
            deposits: Vec::new(),
            fds: Vec::new(),
            open: VecDeque::new(),
            sent: Vec::new(),
            answers: Vec::new(),
            answered: Vec::new(),
            again: Again::new(),
        }
    }

    /// Adds one; `take_answered` names it by this number: how many there were before.
    pub fn add(&mut self, deposit: Deposit, fd: OwnFd) {
        let index = self.deposits.len();
        match self.connection.common.check_deposit(&deposit) {
            Ok(()) => self.open.push_back(index),
            Err(error) => self.answered.push((index, Err(error))),
        }
        self.deposits.push(deposit);
        self.fds.push(Some(fd));
    }

    /// Those answered since this was asked last.
    pub fn take_answered(&mut self) -> Vec<(usize, Result<Registration, Error>)> {
        std::mem::take(&mut self.answered)
    }

    /// What the program has closed since it began has another's number now.
    fn fail_closed(&mut self) {
        let is_closed =
            |index: &usize| self.fds[*index].as_ref().is_none_or(|it| it.proved().is_none());
        let closed: Vec<usize> = self.open.iter().copied().filter(is_closed).collect();
        self.open.retain(|index| !closed.contains(index));
        for index in closed {
            let error = Error::new(ErrorCode::UnsupportedFd, "register").because(CLOSED_HERE);
            self.answer(index, Err(error));
        }
    }

    fn fail_open(&mut self, error: &Error) {
        for index in std::mem::take(&mut self.open) {
            self.answer(index, Err(error.clone()));
        }
    }

    fn answer(&mut self, index: usize, answer: Result<Registration, Error>) {
        self.fds[index] = None;
        self.answered.push((index, answer));
    }

    /// Some of the deposits, each with its fd.
    fn parts(&self, chunk: &[usize]) -> Vec<(usize, BorrowedFd<'_>)> {
        let fd = |index: &usize| self.fds[*index].as_ref().expect("it is not answered").polled();
        chunk.iter().map(|index| (*index, fd(index))).collect()
    }

    fn request<'a>(&'a self, sent: &'a [(usize, BorrowedFd<'a>)]) -> Request<'a> {
        let follow = self.open.len().saturating_sub(sent.len());
        Request { deposits: &self.deposits, sent, follow, deadline: self.deadline }
    }
}

impl Messages for Registering {
    /// All are answered, until there is another one.
    type Outcome = ();
    const WHAT: &'static str = "register";

    fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    fn deadline(&self) -> Deadline {
        self.deadline
    }

    fn outcome(&mut self) -> Option<()> {
        self.open.is_empty().then_some(())
    }

    fn kind(&self) -> Kind {
        Kind::Register
    }

    fn send(&mut self) -> Result<Option<u64>, Error> {
        let connection = Arc::clone(&self.connection);
        let most = self.open.len().min(connection.facts.max_batch);
        if most == 0 {
            return Ok(None);
        }
        let most = u32::try_from(most).expect("at most 253");
        match claim_start(&connection, most, self.open.len(), self.deadline)? {
            // Answers to others will bring some.
            None => Ok(None),
            Some(Claimed::Asked(id)) => Ok(Some(id)),
            Some(Claimed::Credits(count)) => {
                self.fail_closed();
                let chunk: Vec<usize> = self.open.iter().take(count as usize).copied().collect();
                let deposits = chunk.iter().map(|index| &self.deposits[*index]);
                connection.common.holdings.supersede(deposits);
                let unused = count - u32::try_from(chunk.len()).expect("at most 253");
                connection.credits.give_back(unused);
                if chunk.is_empty() {
                    return Ok(None);
                }
                let sent = self.request(&self.parts(&chunk)).start(&connection);
                if !matches!(sent, Ok(Some(_))) {
                    connection.credits.give_back(count - unused);
                }
                Ok(sent?.inspect(|_| {
                    self.open.drain(..chunk.len());
                    self.sent = chunk;
                }))
            }
        }
    }

    fn look(&mut self, id: u64) -> Option<Result<(), Error>> {
        if self.sent.is_empty() {
            return look_for_credit(&self.connection, id, self.deadline);
        }
        let looked = self.request(&self.parts(&self.sent)).look(&self.connection, id)?;
        Some(looked.map(|answers| self.answers = answers))
    }

    /// What cannot be said yet is sent again.
    fn settle(&mut self, answered: Result<(), Error>) -> Duration {
        let chunk = std::mem::take(&mut self.sent);
        match answered {
            Ok(()) => {
                let answers = std::mem::take(&mut self.answers);
                let asks_again = |it: &Result<_, Error>| it.as_ref().is_err_and(Error::asks_again);
                let has_time = answers.iter().any(asks_again) && self.again.has_time(self.deadline);
                for (index, answer) in chunk.into_iter().zip(answers) {
                    if has_time && asks_again(&answer) {
                        self.open.push_back(index)
                    } else {
                        self.answer(index, answer.map_err(Error::not_again))
                    }
                }
            }
            // The broker was replaced while this asked for credit: its successor is asked.
            Err(error) if chunk.is_empty() => match self.again.is_due(error, self.deadline) {
                Ok(()) => return AGAIN_FIRST,
                Err(error) => self.fail_open(&error),
            },
            Err(error) => {
                chunk.into_iter().for_each(|index| self.answer(index, Err(error.clone())));
                if is_final(error.code) {
                    self.fail_open(&error);
                }
            }
        }
        Duration::ZERO
    }
}
