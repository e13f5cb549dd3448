//! Names to a new broker what this client had at the one before: registrations first, then leases.
//! Must never wait: it goes on when an answer is there. One message is under way at a time, so it
//! ends after as many round trips as there are messages, each within ANSWER_TIMEOUT, or the
//! connection does.

use crate::books::holdings::{Declaring, Holdings, Named, Naming, RefusedLease};
use crate::books::one_way::OneWay;
use crate::error::Error;
use crate::limits::{ANSWER_TIMEOUT, SEND_SLICE};
use crate::wire::call::{Call, Reply, check_count};
use crate::wire::connection::Connection;
use fdbroker_protocol::message::{GrantItem, RegisterHead, RegisterReplyHead, Registered};
use fdbroker_protocol::{DecodeError, ErrorCode, Kind, Writer};
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// How far it is.
#[derive(Debug)]
pub(crate) struct Resume {
    asked: Option<Asked>,
    /// The broker has still to hear that all that is alive is named.
    is_incomplete: bool,
    begun: Instant,
    pub sums: Sums,
    /// Leases of ended memory that were told of: the broker's own word of them is still to come.
    pub told: HashSet<u64>,
}

/// What became of all.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    pub registrations: usize,
    pub lost: usize,
    pub leases: usize,
    pub refused: usize,
}

/// A message to be sent or answered.
#[derive(Debug)]
struct Asked {
    what: What,
    /// Its number; `None`: the socket was full.
    id: Option<u64>,
    until: Instant,
}

#[derive(Debug)]
enum What {
    Naming(Naming),
    Declaring(Declaring),
}

/// What came of naming.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub named: Named,
    pub refused: Vec<RefusedLease>,
    /// Leases that the broker has taken, and whose memory has ended.
    pub ended: Vec<RefusedLease>,
}

/// A number (of a lease; for a registration, 1 = drained), and why the memory has ended, if it has;
/// or why not.
type Answer = Result<(u64, Option<ErrorCode>), ErrorCode>;

impl Resume {
    /// At a first connection: what is named there was registered over no other.
    pub fn new() -> Self {
        let sums = Sums::default();
        let told = HashSet::new();
        Resume { asked: None, is_incomplete: false, begun: Instant::now(), sums, told }
    }

    /// At the connection after one that was lost.
    pub fn after_loss() -> Self {
        Resume { is_incomplete: true, ..Resume::new() }
    }

    /// Whether a message is under way.
    pub fn is_under_way(&self) -> bool {
        self.asked.is_some()
    }

    /// When to look again without an event.
    pub fn within(&self) -> Option<Duration> {
        // A reply may be read by another thread, and a full socket is called writable late.
        self.asked.as_ref().map(|_| SEND_SLICE)
    }

    /// Goes as far as it can now. `None`: nothing was answered.
    pub fn advance(&mut self, connection: &Connection) -> Option<Outcome> {
        let holdings = &connection.common.holdings;
        let mut all: Option<Outcome> = None;
        while connection.is_usable() {
            let asked = self.asked.take().or_else(|| self.next(connection, holdings));
            let Some(asked) = asked else { break };
            match self.ask(asked, connection) {
                Some(outcome) => {
                    let all = all.get_or_insert_default();
                    all.named.lost.extend(outcome.named.lost);
                    all.named.adopted.extend(outcome.named.adopted);
                    all.named.drained.extend(outcome.named.drained);
                    all.refused.extend(outcome.refused);
                    all.ended.extend(outcome.ended);
                }
                None => break,
            }
        }
        all
    }

    /// What to say next: the registrations, that these are all, and the leases.
    fn next(&mut self, connection: &Connection, holdings: &Holdings) -> Option<Asked> {
        let most = connection.facts.max_batch;
        let naming = holdings.take_unnamed(most);
        let what = if !naming.items.is_empty() {
            What::Naming(naming)
        } else {
            // After an AGAIN some may still wait.
            if self.is_incomplete && !holdings.has_waiting() {
                self.is_incomplete = false;
                connection.post(OneWay::Complete);
            }
            What::Declaring(holdings.take_undeclared(most))
        };
        let until = Instant::now() + ANSWER_TIMEOUT;
        (what.len() > 0).then_some(Asked { what, id: None, until })
    }

    /// Sends it, unless that is done, and looks for its answer; keeps it while there is none.
    fn ask(&mut self, mut asked: Asked, connection: &Connection) -> Option<Outcome> {
        let call = asked.call();
        if asked.id.is_none() {
            match connection.start(&call, &[], |writer| asked.what.write(writer)) {
                Ok(id) => asked.id = id,
                Err(error) => {
                    connection.kill(&error.to_string());
                    return None;
                }
            }
        }
        let answered = asked.id.and_then(|id| asked.what.look(connection, id, &call));
        match answered {
            Some(Ok(answers)) => Some(self.settle(&asked.what, &answers, connection)),
            // As a whole.
            Some(Err(error)) if error.status.is_some() => {
                let refused = vec![Err(error.code); asked.what.len()];
                Some(self.settle(&asked.what, &refused, connection))
            }
            Some(Err(error)) => {
                connection.kill(&error.to_string());
                None
            }
            None if Instant::now() >= asked.until => {
                connection.kill("it takes no message");
                None
            }
            None => {
                self.asked = Some(asked);
                None
            }
        }
    }

    fn settle(&mut self, what: &What, answers: &[Answer], connection: &Connection) -> Outcome {
        let holdings = &connection.common.holdings;
        match what {
            What::Naming(naming) => {
                let is_drained = |answer: &Answer| answer.map(|(value, _)| value == 1);
                let answers: Vec<_> = answers.iter().map(is_drained).collect();
                // AGAIN: the broker is still busy with the end of the connection before this one.
                let may_retry = self.begun.elapsed() < ANSWER_TIMEOUT;
                let mut named = holdings.note_named(connection.epoch, naming, &answers, may_retry);
                connection.post_all(named.ended.drain(..).map(OneWay::Unregister));
                self.sums.registrations += answers.len();
                self.sums.lost += named.lost.len();
                Outcome { named, ..Outcome::default() }
            }
            What::Declaring(declaring) => {
                let numbers: Vec<_> =
                    answers.iter().map(|it| it.map(|(number, _)| number)).collect();
                let (send, refused) = holdings.note_declared(connection.epoch, declaring, &numbers);
                let ended = declaring.items.iter().zip(answers).filter_map(|(item, answer)| {
                    let (number, code) = answer.ok()?;
                    Some(RefusedLease { id: item.handle.get().id(), number, code: code? })
                });
                let ended: Vec<RefusedLease> = ended.collect();
                self.told.extend(ended.iter().map(|lease| lease.number));
                connection.post_all(send);
                self.sums.leases += answers.len();
                self.sums.refused += refused.len();
                Outcome { refused, ended, ..Outcome::default() }
            }
        }
    }
}

impl Asked {
    fn call(&self) -> Call<'static> {
        let (what, kind, answer) = match self.what {
            What::Naming(_) => ("name registrations again", Kind::Redeposit, Kind::RegisterReply),
            What::Declaring(_) => ("declare leases", Kind::Declare, Kind::Granted),
        };
        Call { what, kind, answer, until: self.until, deposits: 0, ends: &[] }
    }
}

impl What {
    fn len(&self) -> usize {
        match self {
            What::Naming(naming) => naming.items.len(),
            What::Declaring(declaring) => declaring.items.len(),
        }
    }

    fn write(&self, writer: &mut Writer) -> usize {
        match self {
            What::Naming(naming) => {
                writer.push(&RegisterHead { credits_wanted: 0.into(), deadline_ms: 0.into() });
                writer.push(naming.items.as_slice());
            }
            What::Declaring(declaring) => {
                writer.push(declaring.items.as_slice());
            }
        }
        self.len()
    }

    /// The answers, one for each.
    fn look(
        &self,
        connection: &Connection,
        id: u64,
        call: &Call<'_>,
    ) -> Option<Result<Vec<Answer>, Error>> {
        connection.look(id, call, |reply| self.read(&reply))
    }

    fn read(&self, reply: &Reply<'_>) -> Result<Vec<Answer>, DecodeError> {
        let answers: Vec<_> = match self {
            What::Naming(_) => {
                let (_, items) = reply.message.head_and_items::<RegisterReplyHead, Registered>()?;
                let value = |item: &Registered| {
                    let status = item.status.get();
                    status.result().map(|()| (status.value, None))
                };
                items.iter().map(value).collect()
            }
            What::Declaring(_) => {
                let (items, _) = reply.message.grants()?;
                let code = |value: u64| ErrorCode::from_number(u16::try_from(value).ok()?);
                let taken = |item: &GrantItem| (item.lease.get(), code(item.status.value.get()));
                items.iter().map(|item| item.status.get().result().map(|()| taken(item))).collect()
            }
        };
        check_count(reply.message.kind, answers.len(), self.len())?;
        Ok(answers)
    }
}
