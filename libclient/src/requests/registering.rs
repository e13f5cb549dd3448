//! Registers under way that nobody waits for: tested now and then, given up by being dropped. Must
//! never block, send an fd without credit, nor lose a registration: what comes too late is undone.

use super::acquire::is_final;
use super::register::{Claimed, Request, claim_start, look_for_credit};
use crate::deadline::Deadline;
use crate::deposit::{Deposit, Registration};
use crate::error::Error;
use crate::own_fds::{CLOSED_HERE, OwnFd};
use crate::wire::again::Again;
use crate::wire::connection::Connection;
use fdbroker_protocol::ErrorCode;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

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
    answered: Vec<(usize, Result<Registration, Error>)>,
    step: Step,
    again: Again,
}

/// What is under way.
#[derive(Debug)]
enum Step {
    Nothing,
    /// A message that asks for credit.
    Credit(u64),
    /// A message with these deposits.
    Sent(u64, Vec<usize>),
}

impl Registering {
    pub fn new(connection: Arc<Connection>, deadline: Deadline) -> Self {
        Registering {
            connection,
            deadline,
            deposits: Vec::new(),
            fds: Vec::new(),
            open: VecDeque::new(),
            answered: Vec::new(),
            step: Step::Nothing,
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

    /// In dispatch mode serves what is there, without waiting.
    pub fn serve(&self) {
        self.connection.serve();
    }

    /// Goes on until there is nothing to do but wait. Whether all are answered.
    pub fn advance(&mut self) -> bool {
        loop {
            match std::mem::replace(&mut self.step, Step::Nothing) {
                Step::Nothing if self.open.is_empty() => return true,
                Step::Nothing => match self.send() {
                    Ok(step) => {
                        // The reply to a message just sent is never there yet.
                        self.step = step;
                        return false;
                    }
                    Err(error) => self.fail_open(&error),
                },
                Step::Credit(id) => match look_for_credit(&self.connection, id, self.deadline) {
                    None => {
                        self.step = Step::Credit(id);
                        return false;
                    }
                    // The broker was replaced while this waited: its successor is asked.
                    Some(answered) => answered
                        .or_else(|error| self.again.is_due(error, self.deadline))
                        .unwrap_or_else(|error| self.fail_open(&error)),
                },
                Step::Sent(id, chunk) => {
                    let looked = self.request(&self.parts(&chunk)).look(&self.connection, id);
                    match looked {
                        None => {
                            self.step = Step::Sent(id, chunk);
                            return false;
                        }
                        Some(answered) => self.settle(chunk, answered),
                    }
                }
            }
        }
    }

    /// Sends the next message if there are credit and room for it; what is under way then.
    fn send(&mut self) -> Result<Step, Error> {
        if let Some(step) = self.try_send()? {
            return Ok(step);
        }
        // What is in the way may be replies that wait to be read.
        self.connection.read_if_nobody_does();
        match self.try_send()? {
            Some(step) => Ok(step),
            None if Instant::now() < self.deadline.given_up_at() => Ok(Step::Nothing),
            None => Err(Error::timed_out("register: no room for another request")),
        }
    }

    fn try_send(&mut self) -> Result<Option<Step>, Error> {
        let connection = Arc::clone(&self.connection);
        let most = self.open.len().min(connection.facts.max_batch);
        let most = u32::try_from(most).expect("at most 253");
        match claim_start(&connection, most, self.open.len(), self.deadline)? {
            // Answers to others will bring some.
            None => Ok(None),
            Some(Claimed::Asked(id)) => Ok(Some(Step::Credit(id))),
            Some(Claimed::Credits(count)) => {
                self.fail_closed();
                let chunk: Vec<usize> = self.open.iter().take(count as usize).copied().collect();
                let deposits = chunk.iter().map(|index| &self.deposits[*index]);
                connection.common.holdings.supersede(deposits);
                let unused = count - u32::try_from(chunk.len()).expect("at most 253");
                connection.credits.give_back(unused);
                if chunk.is_empty() {
                    return Ok(Some(Step::Nothing));
                }
                let sent = self.request(&self.parts(&chunk)).start(&connection);
                if !matches!(sent, Ok(Some(_))) {
                    connection.credits.give_back(count - unused);
                }
                Ok(sent?.map(|id| {
                    self.open.drain(..chunk.len());
                    Step::Sent(id, chunk)
                }))
            }
        }
    }

    /// Takes the answers to a message; what cannot be said yet is sent again.
    fn settle(
        &mut self,
        chunk: Vec<usize>,
        answered: Result<Vec<Result<Registration, Error>>, Error>,
    ) {
        match answered {
            Ok(answers) => {
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
            Err(error) => {
                chunk.into_iter().for_each(|index| self.answer(index, Err(error.clone())));
                if is_final(error.code) {
                    self.fail_open(&error);
                }
            }
        }
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

impl Drop for Registering {
    fn drop(&mut self) {
        if let Step::Credit(id) | Step::Sent(id, _) = self.step {
            self.connection.forget(id);
        }
    }
}
