//! Registering and unregistering: deposits in chunks of credit, export window and 253, in their
//! order. Must never send an fd without credit, nor hold more exports than the window allows.

use crate::deadline::Deadline;
use crate::deposit::{Deposit, Export, Registration};
use crate::error::Error;
use crate::limits::{MAX_CREDITS_WANTED, ROW_CREDITS};
use crate::requests::acquire::is_final;
use crate::wire::again::Again;
use crate::wire::call::{Call, Reply, check_count};
use crate::wire::connection::Connection;
use crate::wire::credits::Claim;
use fdbroker_protocol::message::{RegisterHead, RegisterReplyHead, Registered};
use fdbroker_protocol::{DecodeError, ErrorCode, Kind, Resource, Scope, Status, Writer};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

/// One outcome per deposit, in their order.
pub(crate) type Registrations = Vec<Result<Registration, Error>>;

/// What to register and where its fds come from.
pub(crate) struct Batch<'a, 'fd> {
    pub deposits: &'a [Deposit],
    /// Makes the fd of the deposit at an index; called at most once each, in order, just before it
    /// is sent.
    pub export: &'a mut dyn FnMut(usize) -> Result<Export<'fd>, Error>,
    /// Whether it makes new fds, which count in the window.
    pub fresh: bool,
}

/// Registers a batch of any size.
pub(crate) fn register(
    connection: &Connection,
    batch: &mut Batch<'_, '_>,
    deadline: Deadline,
) -> Registrations {
    let mut results = Registrations::with_capacity(batch.deposits.len());
    while results.len() < batch.deposits.len() {
        if let Err(error) = register_some(connection, batch, deadline, &mut results) {
            results.resize_with(batch.deposits.len(), || Err(error.clone()));
        }
    }
    results
}

/// Registers the next chunk. An error is of all that is left; one of the chunk alone is in
/// `results`.
fn register_some(
    connection: &Connection,
    batch: &mut Batch<'_, '_>,
    deadline: Deadline,
    results: &mut Registrations,
) -> Result<(), Error> {
    let left = batch.deposits.len() - results.len();
    let is_in_a_row = connection.credits.is_in_a_row();
    let claimed = claim(connection, left, deadline)?;
    let until = deadline.given_up_at();
    let places = if batch.fresh {
        let wanted = u32::try_from(claimed).expect("at most 253");
        let window = &connection.common.window;
        let places = connection.patiently(until, |until| window.take(wanted, until));
        let places = places.ok_or_else(|| {
            connection.credits.give_back(wanted);
            Error::timed_out("register: other threads hold all exports of the window")
        })?;
        Some(places)
    } else {
        None
    };
    let chunk = places.as_ref().map_or(claimed, |places| places.count());

    let begin = results.len();
    let mut exports: Vec<Export<'_>> = Vec::with_capacity(chunk);
    let mut sent: Vec<usize> = Vec::with_capacity(chunk);
    for index in begin..begin + chunk {
        let checked = connection.common.check_deposit(&batch.deposits[index]);
        match checked.and_then(|()| (batch.export)(index)) {
            Ok(export) => {
                exports.push(export);
                sent.push(index);
                // Replaced by the broker's answer.
                results.push(Err(Error::timed_out("register")));
            }
            Err(error) => results.push(Err(error)),
        }
    }
    let unused = u32::try_from(claimed - sent.len()).expect("at most 253");
    connection.credits.give_back(unused);
    if sent.is_empty() {
        return Ok(());
    }

    connection.common.holdings.supersede(sent.iter().map(|index| &batch.deposits[*index]));
    let mut open: Vec<(usize, BorrowedFd<'_>)> =
        sent.into_iter().zip(exports.iter().map(AsFd::as_fd)).collect();
    let follow = match batch.deposits {
        // A program under a layer cannot say how many it will export.
        [one] if one.virtual_fd && is_in_a_row => ROW_CREDITS,
        all => all.len() - results.len(),
    };
    let mut request = Request { deposits: batch.deposits, sent: &open, follow, deadline };
    let mut again = Again::new();
    let outcome = loop {
        match request.make(connection) {
            Ok(answers) => {
                for ((index, _), answer) in open.iter().zip(answers) {
                    results[*index] = answer;
                }
            }
            Err(error) => {
                for (index, _) in &open {
                    results[*index] = Err(error.clone());
                }
                break if is_final(error.code) { Err(error) } else { Ok(()) };
            }
        }
        // Their credit was taken back, or each overlaps more old allocations than one message ends:
        // some of them are gone by now.
        open.retain(|(index, _)| results[*index].as_ref().is_err_and(Error::asks_again));
        if open.is_empty() {
            break Ok(());
        }
        let claimed = if again.has_time(deadline) {
            claim(connection, open.len(), deadline)
        } else {
            Err(Error::not_ready("register"))
        };
        match claimed {
            Ok(count) => {
                request =
                    Request { deposits: batch.deposits, sent: &open[..count], follow, deadline };
            }
            Err(error) => {
                open.iter().for_each(|(index, _)| results[*index] = Err(error.clone()));
                break Err(error);
            }
        }
    };
    // The exports are closed before their places are given to others.
    drop(open);
    drop(exports);
    drop(places);
    outcome
}

/// Claims 1 to `wanted` credits (at most one message's), asking the broker when there are none.
pub(crate) fn claim(
    connection: &Connection,
    wanted: usize,
    deadline: Deadline,
) -> Result<usize, Error> {
    let mut again = Again::new();
    let most = wanted.min(connection.facts.max_batch);
    let most = u32::try_from(most).expect("at most 253");
    loop {
        let claimed = connection.patiently(deadline.at(), |until| {
            let claim = match connection.credits.claim(most, until) {
                // In dispatch mode this was one look: what brings credits may lie unread.
                Claim::TimedOut if connection.read_if_nobody_does().is_some() => {
                    connection.credits.claim(most, Instant::now())
                }
                claim => claim,
            };
            (claim != Claim::TimedOut).then_some(claim)
        });
        match claimed.unwrap_or(Claim::TimedOut) {
            Claim::Granted(count) => return Ok(count as usize),
            Claim::Closed => return Err(connection.lost("register")),
            Claim::TimedOut => {
                let context = "register: waited for the credits of other threads";
                return Err(Error::timed_out(context));
            }
            Claim::Ask => {
                let asked = ask_for_credit(connection, wanted, deadline);
                connection.credits.asked();
                // The broker was replaced while this waited: its successor is asked.
                asked.or_else(|error| again.is_due(error, deadline))?;
            }
        }
    }
}

/// What [`claim_start`] has come to.
pub(crate) enum Claimed {
    Credits(u32),
    /// A message that asks for credit is under way: [`look_for_credit`].
    Asked(u64),
}

/// Claims 1 to `wanted` credits without waiting; `follow`: fds that are to be sent in all. `None`:
/// answers to others will bring some, or the message that asks for them does not fit.
pub(crate) fn claim_start(
    connection: &Connection,
    wanted: u32,
    follow: usize,
    deadline: Deadline,
) -> Result<Option<Claimed>, Error> {
    match connection.credits.claim(wanted, Instant::now()) {
        Claim::Closed => Err(connection.lost("register")),
        Claim::TimedOut => Ok(None),
        Claim::Granted(count) => Ok(Some(Claimed::Credits(count))),
        Claim::Ask => {
            let asked = Request { deposits: &[], sent: &[], follow, deadline }.start(connection);
            // Nobody is to wait until this one is tested.
            connection.credits.asked();
            Ok(asked?.map(Claimed::Asked))
        }
    }
}

/// The answer to a message that asks for credit, if it has come.
pub(crate) fn look_for_credit(
    connection: &Connection,
    id: u64,
    deadline: Deadline,
) -> Option<Result<(), Error>> {
    let request = Request { deposits: &[], sent: &[], follow: 0, deadline };
    let credits = connection.look(id, &request.call(), credits)?;
    Some(has_credit(connection, credits))
}

/// A register of 0 items: waits until the broker has a place. The reader counts the credits of the
/// reply.
fn ask_for_credit(connection: &Connection, wanted: usize, deadline: Deadline) -> Result<(), Error> {
    let request = Request { deposits: &[], sent: &[], follow: wanted, deadline };
    let credits = connection.call(request.call(), &[], |writer| request.write(writer), credits);
    has_credit(connection, credits)
}

/// The credits of a reply.
fn credits(reply: Reply<'_>) -> Result<u32, DecodeError> {
    let (head, _) = reply.message.head_and_items::<RegisterReplyHead, Registered>()?;
    Ok(head.deposit_credits.get())
}

fn has_credit(connection: &Connection, credits: Result<u32, Error>) -> Result<(), Error> {
    match credits.map_err(|error| name_bound(connection, error))? {
        // A broker that has none to give says `failed`.
        0 => Err(Error::new(ErrorCode::Protocol, NO_PLACE)),
        _ => Ok(()),
    }
}

const NO_PLACE: &str = "register: no place for another fd in the broker";

/// Names the bound that this client has set for itself, which is no cap of the broker's.
fn name_bound(connection: &Connection, error: Error) -> Error {
    let most = connection.common.max_held_fds;
    let status = Status::no_quota(Resource::HeldFds, Scope::Client, most.into(), 0);
    let is_own = |said: Status| Status { pid: 0, ..said } == status;
    if most > 0 && error.status.is_some_and(is_own) {
        error.because(format!(
            "the broker holds as many fds of this process as it allows (FDBROKER_MAX_HELD, max_held_fds = {most}); register \
             memory as recallable, release registrations, or raise FDBROKER_MAX_HELD"
        ))
    } else {
        error
    }
}

/// One register message. Without deposits it asks for credit.
pub(super) struct Request<'a> {
    pub deposits: &'a [Deposit],
    /// Those in this message, and the fd of each.
    pub sent: &'a [(usize, BorrowedFd<'a>)],
    /// How many follow it.
    pub follow: usize,
    pub deadline: Deadline,
}

impl Request<'_> {
    pub fn call(&self) -> Call<'static> {
        let what = if self.sent.is_empty() { NO_PLACE } else { "register" };
        let deposits = u32::try_from(self.sent.len()).expect("at most 253");
        Call { deposits, ..Call::new(what, Kind::Register, Kind::RegisterReply, self.deadline) }
    }

    fn write(&self, writer: &mut Writer) -> usize {
        let wanted = u32::try_from(self.follow).unwrap_or(u32::MAX).min(MAX_CREDITS_WANTED);
        let deadline_ms = self.deadline.answer_ms().into();
        writer.push(&RegisterHead { credits_wanted: wanted.into(), deadline_ms });
        for (index, _) in self.sent {
            writer.push(&self.deposits[*index].to_item());
        }
        self.sent.len()
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.sent.iter().map(|(_, fd)| *fd).collect()
    }

    fn make(&self, connection: &Connection) -> Result<Registrations, Error> {
        let write = |writer: &mut Writer| self.write(writer);
        let read = |reply: Reply<'_>| self.read(connection, reply);
        connection.call(self.call(), &self.fds(), write, read)
    }

    /// Starts it, without waiting. `None`: it does not fit now.
    pub fn start(&self, connection: &Connection) -> Result<Option<u64>, Error> {
        connection.start(&self.call(), &self.fds(), |writer| self.write(writer))
    }

    /// The same of one whose answers are waited for later.
    pub fn start_attended(&self, connection: &Connection) -> Result<Option<u64>, Error> {
        connection.start_attended(&self.call(), &self.fds(), |writer| self.write(writer))
    }

    /// Takes the answers to a message started, if they have come.
    pub fn look(&self, connection: &Connection, id: u64) -> Option<Result<Registrations, Error>> {
        connection.look(id, &self.call(), |reply| self.read(connection, reply))
    }

    fn read(
        &self,
        connection: &Connection,
        reply: Reply<'_>,
    ) -> Result<Registrations, DecodeError> {
        registered(connection, self.sent.iter().map(|(index, _)| &self.deposits[*index]), &reply)
    }
}

/// The outcomes in a reply, of deposits in their order.
pub(super) fn registered<'a>(
    connection: &Connection,
    deposits: impl ExactSizeIterator<Item = &'a Deposit>,
    reply: &Reply<'_>,
) -> Result<Registrations, DecodeError> {
    let (_, items) = reply.message.head_and_items::<RegisterReplyHead, Registered>()?;
    check_count(Kind::RegisterReply, items.len(), deposits.len())?;
    let answers = items.iter().zip(deposits).map(|(item, deposit)| {
        let status = item.status.get();
        if !status.is_ok() {
            let error = Error::from_status(status, "register");
            return Err(name_bound(connection, error));
        }
        let Registered { handle, token, .. } = *item;
        let made = Registration { handle: handle.get(), token, epoch: connection.epoch };
        let holdings = &connection.common.holdings;
        let epoch = holdings.enter_registration(connection.epoch, deposit, &made);
        Ok(Registration { epoch, ..made })
    });
    Ok(answers.collect())
}
