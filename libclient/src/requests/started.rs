//! Requests under way that nobody waits for: started, tested now and then, cancelled or dropped.
//! Must never block, and never lose what they get: what comes too late is given back.

use crate::books::due::{Due, Teller};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::limits::AGAIN_FIRST;
use crate::wire::connection::Connection;
use fdbroker_protocol::Kind;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Something under way, for progress engines and event loops: nothing here waits for the broker or
/// another process. What it comes to, and what a test does, is said by what starts it.
///
/// [`Request::test`] drives it: it sends what did not fit before, reads what has come, and asks
/// again for what is not ready yet. Dropping it is [`Request::cancel`]. It does not keep its client
/// connected.
#[derive(Debug)]
#[must_use = "dropping a request cancels it"]
pub struct Request<'a, T> {
    work: Box<dyn Work<Outcome = T> + 'a>,
    teller: Option<Teller>,
}

/// How far a [`Request`] is: either still to be tested, or done and gone.
#[derive(Debug)]
#[must_use = "dropping it cancels the request, or gives back what it got"]
pub enum Progress<'a, T> {
    /// It is not done: test it again later.
    UnderWay(Request<'a, T>),
    /// What it has come to. Values or errors are in the order in which they were asked for.
    Done(T),
}

/// What a request does.
pub(crate) trait Work: Debug + Send {
    type Outcome;

    /// Does what can be done now; in dispatch mode that is to serve, too. Its outcome, once.
    fn advance(&mut self) -> Option<Self::Outcome>;

    /// Has it tell when what it waits for has come. To be asked after each advance.
    fn tell(&mut self, teller: &Teller);

    /// When it goes on without being told.
    fn goes_on_at(&self) -> Instant;
}

impl<'a, T> Request<'a, T> {
    pub(crate) fn of(work: impl Work<Outcome = T> + 'a) -> Self {
        Request { work: Box::new(work), teller: None }
    }

    /// Does what can be done now, without waiting, and says how far it is; in dispatch mode it
    /// serves recalls, too. May be called in a callback. NOT_CONNECTED in a child of fork(2).
    pub fn test(mut self) -> Progress<'a, T> {
        match self.work.advance() {
            Some(outcome) => Progress::Done(outcome),
            None => {
                self.teller.iter().for_each(|teller| self.work.tell(teller));
                Progress::UnderWay(self)
            }
        }
    }

    /// From now on it tells `due` this token when there is something to test: an answer has come,
    /// a place for its message is free, or the connection has ended. Test it as well when
    /// [`Request::due_within`] has passed.
    pub fn tell(&mut self, due: &Due, token: u64) {
        let teller = self.teller.insert(Teller::new(due, token));
        self.work.tell(teller);
    }

    /// When to test it though it has not told: a pause is over, or its deadline has come. To be
    /// asked after each test.
    pub fn due_within(&self) -> Duration {
        // A moment at least, for what did not fit the last time.
        self.work.goes_on_at().saturating_duration_since(Instant::now()).max(AGAIN_FIRST)
    }

    /// Gives it up, like drop: the broker is told, and what it has got or still gets is given back.
    /// Never waits.
    pub fn cancel(self) {}
}

/// What is got by messages to the broker, one after the other.
pub(crate) trait Messages: Debug + Send {
    type Outcome;
    /// The name of the request in its errors: "acquire".
    const WHAT: &'static str;

    fn connection(&self) -> &Arc<Connection>;

    fn deadline(&self) -> Deadline;

    /// What it has come to; `None`: another message is to be sent.
    fn outcome(&mut self) -> Option<Self::Outcome>;

    /// The kind of that message.
    fn kind(&self) -> Kind;

    /// Sends it if it fits now; its id.
    fn send(&mut self) -> Result<Option<u64>, Error>;

    /// Takes the answer to it if it has come.
    fn look(&mut self, id: u64) -> Option<Result<(), Error>>;

    /// Draws the consequences of an answer, or of a message that could not be sent: for how long to
    /// pause before the next.
    fn settle(&mut self, answered: Result<(), Error>) -> Duration;
}

/// Messages under way.
#[derive(Debug)]
pub(crate) struct Exchange<M: Messages> {
    pub messages: M,
    step: Step,
    /// Its turn among those that wait for a place, until its message is sent.
    turn: Option<u64>,
}

/// What comes next.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// To send a message, but not before then.
    Send(Instant),
    /// To send one that did not fit the last time. Whether it is told of a place.
    SendAgain(bool),
    /// To look for the answer to the message with this id.
    Look(u64),
}

impl<M: Messages> Exchange<M> {
    pub fn new(messages: M) -> Self {
        Exchange { messages, step: Step::Send(Instant::now()), turn: None }
    }

    pub fn started(messages: M) -> Self {
        let mut this = Self::new(messages);
        this.start();
        this
    }

    /// Sends the first message if it fits. An error is seen by the first test.
    pub fn start(&mut self) {
        if let Ok(Some(id)) = self.send() {
            self.step = Step::Look(id);
        }
    }

    /// Goes on until there is nothing to do but wait.
    pub fn go_on(&mut self) -> Option<M::Outcome> {
        loop {
            let answered = match self.step {
                Step::Send(not_before) if Instant::now() < not_before => return None,
                Step::Send(_) | Step::SendAgain(_) => match self.messages.outcome() {
                    None => match self.send() {
                        Ok(Some(id)) => {
                            // The answer to a message just sent is never there yet.
                            self.step = Step::Look(id);
                            return None;
                        }
                        Ok(None) => {
                            self.step = Step::SendAgain(false);
                            return self.messages.outcome();
                        }
                        Err(error) => Err(error),
                    },
                    outcome => return outcome,
                },
                Step::Look(id) => self.messages.look(id)?,
            };
            let pause = self.messages.settle(answered);
            self.step = Step::Send(Instant::now() + pause);
        }
    }

    fn send(&mut self) -> Result<Option<u64>, Error> {
        let sent = self.try_send();
        if !matches!(sent, Ok(None)) {
            self.leave_queue();
        }
        sent
    }

    fn leave_queue(&mut self) {
        if let Some(turn) = self.turn.take() {
            self.messages.connection().leave_queue(turn);
        }
    }

    fn try_send(&mut self) -> Result<Option<u64>, Error> {
        if let Some(id) = self.messages.send()? {
            return Ok(Some(id));
        }
        // What is in the way may be replies that wait to be read.
        self.messages.connection().read_if_nobody_does();
        match self.messages.send()? {
            None if Instant::now() >= self.messages.deadline().given_up_at() => {
                Err(Error::timed_out(format!("{}: no room for another request", M::WHAT)))
            }
            sent => Ok(sent),
        }
    }
}

impl<M: Messages> Work for Exchange<M> {
    type Outcome = M::Outcome;

    fn advance(&mut self) -> Option<M::Outcome> {
        self.messages.connection().serve();
        self.go_on()
    }

    fn tell(&mut self, teller: &Teller) {
        let Exchange { messages, step, turn } = self;
        match step {
            Step::Send(_) => {}
            Step::SendAgain(is_told) => {
                let kind = messages.kind();
                *is_told = messages.connection().tell_of_place(kind, turn, teller);
            }
            Step::Look(id) => messages.connection().tell(*id, teller),
        }
    }

    fn goes_on_at(&self) -> Instant {
        match self.step {
            Step::Send(not_before) => not_before,
            Step::SendAgain(false) => Instant::now(),
            Step::SendAgain(true) | Step::Look(_) => self.messages.deadline().given_up_at(),
        }
    }
}

impl<M: Messages> Drop for Exchange<M> {
    fn drop(&mut self) {
        self.leave_queue();
        if let Step::Look(id) = self.step {
            self.messages.connection().forget(id);
        }
    }
}
