//! The end of registrations: what is ended here, and how the broker hears of it. Must never end one
//! here of which the broker of the moment goes on to know.

use crate::books::common::Common;
use crate::books::holdings::Ending;
use crate::books::one_way::{OneWay, Unregister};
use crate::deadline::Deadline;
use crate::deposit::{Drained, RegistrationRef};
use crate::error::Error;
use crate::wire::call::{Call, check_count};
use crate::wire::connection::Connection;
use fdbroker_protocol::limits::ENDS_PER_MESSAGE;
use fdbroker_protocol::message::AllocationItem;
use fdbroker_protocol::{ErrorCode, Kind, Status, Writer};
use std::sync::Arc;

/// Ends many, one outcome each, in their order. `connection` is the program's, if there is one.
pub(crate) fn unregister(
    common: &Common,
    connection: Option<&Connection>,
    what: impl Iterator<Item = RegistrationRef>,
    deadline: Deadline,
) -> Vec<Result<Drained, Error>> {
    let endings: Vec<Ended> = what.map(|one| Ended::new(common, one)).collect();
    for one in endings.iter().filter(|one| !one.is_asked(connection)) {
        // It has been named to the next broker, whose connection is not the program's yet.
        if let Ending::Tell(line) = &one.ending {
            line.post(OneWay::Unregister(one.of));
        }
    }
    let asked = endings.iter().filter(|one| one.is_asked(connection));
    let asked: Vec<Unregister> = asked.map(|one| one.of).collect();
    let answered = connection.map(|it| ask(it, &asked, deadline));
    let mut answered = answered.unwrap_or_default().into_iter();
    let outcomes = endings.iter().map(|one| {
        let answer = one.is_asked(connection).then(|| answered.next()).flatten();
        one.outcome(answer)
    });
    outcomes.collect()
}

/// A registration that was to be ended.
struct Ended {
    of: Unregister,
    /// Of its connection, if it was said.
    epoch: Option<u64>,
    ending: Ending,
}

impl Ended {
    fn new(common: &Common, one: RegistrationRef) -> Self {
        let of = Unregister { id: one.id, key: common.holdings.key_of(one.id) };
        let is_kept = common.is_a_buffers(one.id);
        let ending = if is_kept { Ending::Kept } else { common.holdings.end(one, false) };
        Ended { of, epoch: one.epoch, ending }
    }

    /// Whether its end is asked for over this connection.
    fn is_asked(&self, connection: Option<&Connection>) -> bool {
        let Some(connection) = connection else { return false };
        match &self.ending {
            Ending::Tell(line) => std::ptr::addr_eq(Arc::as_ptr(line), connection),
            // One that is not known here may be known there.
            Ending::Absent => self.epoch.is_none_or(|epoch| epoch == connection.epoch),
            Ending::Counted | Ending::Away | Ending::Draining | Ending::Kept => false,
        }
    }

    fn outcome(&self, answer: Option<Result<Drained, Error>>) -> Result<Drained, Error> {
        match (&self.ending, answer) {
            // The broker was lost, and it is not named to the next one, or as ended.
            (Ending::Tell(_), Some(Err(error))) if error.code == ErrorCode::NotConnected => {
                Ok(Drained(false))
            }
            (_, Some(answer)) => answer,
            (Ending::Tell(_) | Ending::Counted | Ending::Away, None) => Ok(Drained(false)),
            (Ending::Kept, None) => {
                let context = format!("unregister {}: it is a buffer of this library", self.of.id);
                let why = "a buffer ends its registration itself; free the buffer instead";
                Err(Error::new(ErrorCode::NotPermitted, context).because(why))
            }
            (Ending::Draining | Ending::Absent, None) => {
                let context = format!("unregister {}: it had ended before", self.of.id);
                Err(Error::new(ErrorCode::Stale, context))
            }
        }
    }
}

/// One outcome each, in their order. The broker hears of all of them, those that time is over for
/// included; when they are drained, the thread that serves says so then.
fn ask(
    connection: &Connection,
    ends: &[Unregister],
    deadline: Deadline,
) -> Vec<Result<Drained, Error>> {
    let mut results = Vec::with_capacity(ends.len());
    for chunk in ends.chunks(connection.facts.max_batch.min(ENDS_PER_MESSAGE)) {
        match ask_some(connection, chunk, deadline) {
            Ok(statuses) => {
                let holdings = &connection.common.holdings;
                chunk.iter().for_each(|end| holdings.note_heard(end.id));
                results.extend(chunk.iter().zip(statuses).map(
                    |(end, status)| match status.is_ok() {
                        true => Ok(Drained(status.value == 1)),
                        false => Err(Error::from_status(status, format!("unregister {}", end.id))),
                    },
                ));
            }
            Err(error) => {
                results.resize_with(results.len() + chunk.len(), || Err(error.clone()));
            }
        }
    }
    results
}

fn ask_some(
    connection: &Connection,
    ends: &[Unregister],
    deadline: Deadline,
) -> Result<Vec<Status>, Error> {
    let call = Call::new("unregister", Kind::Unregister, Kind::UnregisterReply, deadline);
    let call = Call { ends, ..call };
    let write = |writer: &mut Writer| {
        for Unregister { id, .. } in ends {
            let (slot, generation) = (id.slot.into(), id.generation.into());
            writer.push(&AllocationItem { slot, generation });
        }
        ends.len()
    };
    let late = |error: Error| match error.code {
        ErrorCode::TimedOut => error.because(LATE),
        _ => error,
    };
    let id = connection.request(&call, &[], write).map_err(|error| {
        if error.code == ErrorCode::TimedOut {
            // It did not fit in time: it goes when it does.
            connection.post_all(ends.iter().copied().map(OneWay::Unregister));
        }
        late(error)
    })?;
    let answered = connection.reply(id, &call, |reply| {
        let statuses = reply.message.statuses()?;
        check_count(Kind::UnregisterReply, statuses.len(), ends.len())?;
        Ok(statuses.collect())
    });
    answered.map_err(late)
}

/// What becomes of an unregister that was not answered in time.
const LATE: &str = "the broker has not answered by the deadline; the registration ends when it reads the message, and a \
     notice of the drain says when the memory may be used anew";
