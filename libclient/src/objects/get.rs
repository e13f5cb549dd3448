//! Getting: names in, open memory out. All names are resolved in one moment; then memory is opened,
//! a group at a time, its fd is closed and its lease reported as mapped. Must never lose a grant:
//! what cannot be handed over is given back.

use super::info::ObjectInfo;
use super::memory::Shared;
use super::object::Object;
use super::options::Whose;
use super::wire::{self, Answer, AnswerItem, Names};
use crate::books::due::{Due, Teller};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::inherited::Way;
use crate::limits::{AGAIN_FIRST, METADATA_TRIES};
use crate::requests::started::{Progress, due_at};
use crate::wire::again::Again;
use crate::wire::connection::Connection;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A get under way; see [`crate::Objects::get_start`]. For progress engines: nothing here waits for
/// the broker or a maker. Memory is opened by the test that finds the answer.
///
/// [`GetRequest::test`] drives it. Dropping it is [`GetRequest::cancel`].
#[derive(Debug)]
#[must_use = "dropping a request cancels it"]
pub struct GetRequest {
    state: Box<State>,
}

/// How far a [`GetRequest`] is; its outcome is that of [`crate::Objects::get_many`].
pub type GetProgress = Progress<GetRequest, Result<Vec<Object>, Error>>;

#[derive(Debug)]
struct State {
    whose: Whose,
    connection: Arc<Connection>,
    names: Names,
    deadline: Deadline,
    tries: usize,
    again: Again,
    step: Step,
    teller: Option<Teller>,
}

/// What the next test has to do.
#[derive(Debug)]
enum Step {
    /// Send the get, but not before then.
    Send(Instant),
    /// Look for its answer.
    Look(u64),
    /// Ask for the metadata that was not in it.
    SendStat(Vec<Object>, Vec<usize>),
    LookForStat(u64, Vec<Object>, Vec<usize>),
}

pub(super) fn get<N: AsRef<str>>(
    whose: &Whose,
    names: &[N],
    deadline: Deadline,
) -> Result<Vec<Object>, Error> {
    let connection = whose.client.connection("get", deadline)?;
    let names = Names::for_get(names)?;
    for _ in 0..METADATA_TRIES {
        let answer = wire::get(&connection, whose.flags(), &names, deadline)?;
        let (mut got, lacking) = open(&connection, whose, &names, answer)?;
        if lacking.is_empty() {
            return Ok(got);
        }
        let asked: Vec<&str> = lacking.iter().map(|at| names.get(*at)).collect();
        let infos = wire::stat(&connection, whose.flags(), &asked, deadline)?;
        if fill(&mut got, &lacking, infos) {
            return Ok(got);
        }
    }
    Err(moved(&names))
}

/// Opens the memory of an answer; which objects still lack their metadata.
fn open(
    connection: &Connection,
    whose: &Whose,
    names: &Names,
    answer: Answer,
) -> Result<(Vec<Object>, Vec<usize>), Error> {
    let handing_over = connection.hand_over();
    let Answer { grants, items } = answer;
    let open = |(index, grant)| {
        let way = || way(names, &items, index, whose.flags());
        Shared::open(grant, &whose.devices, way).map(Arc::new)
    };
    let opened = grants.into_iter().enumerate().map(open).collect::<Result<Vec<_>, Error>>();
    drop(handing_over);
    let opened = opened?;
    let (mut got, mut lacking) = (Vec::with_capacity(names.len()), Vec::new());
    for (at, item) in items.into_iter().enumerate() {
        let memory = &opened[item.grant];
        let place = memory.place(item.version, item.offset, item.size_bytes)?;
        if item.metadata.len() != item.metadata_bytes {
            lacking.push(at);
        }
        let name = Arc::clone(names.shared(at));
        got.push(Object::new(Arc::clone(memory), place, name, item.metadata));
    }
    Ok((got, lacking))
}

/// How children lease the group of a grant anew.
fn way(names: &Names, items: &[AnswerItem], grant: usize, flags: u32) -> Way {
    let of_group = || items.iter().enumerate().filter(|(_, item)| item.grant == grant);
    let names = of_group().map(|(at, _)| Arc::clone(names.shared(at))).collect();
    let version = of_group().next().map_or(0, |(_, item)| item.version);
    Way::Names { names, version, flags }
}

/// Puts in the metadata that was asked for; `false`: an object has lost its name meanwhile.
fn fill(got: &mut [Object], lacking: &[usize], infos: Vec<Option<ObjectInfo>>) -> bool {
    lacking.iter().zip(infos).all(|(at, info)| match info {
        Some(info) if info.version == got[*at].version() => {
            got[*at].set_metadata(info.metadata.into_boxed_slice());
            true
        }
        _ => false,
    })
}

fn moved(names: &Names) -> Error {
    let why = "it was replaced again and again while it was asked for; allow its makers more time between two versions";
    Error::timed_out(format!("get {}", names.get(0))).because(why)
}

impl GetRequest {
    pub(super) fn start<N: AsRef<str>>(
        whose: &Whose,
        names: &[N],
        deadline: Deadline,
    ) -> Result<Self, Error> {
        let connection = whose.client.usable("get")?;
        let mut state = Box::new(State {
            whose: whose.clone(),
            connection,
            names: Names::for_get(names)?,
            deadline,
            tries: 0,
            again: Again::new(),
            step: Step::Send(Instant::now()),
            teller: None,
        });
        // An error is seen by the first test.
        state.send();
        Ok(GetRequest { state })
    }

    /// Does what can be done now, without waiting for the broker, and says how far it is; in
    /// dispatch mode it serves recalls, too. May be called in a callback.
    pub fn test(mut self) -> GetProgress {
        self.state.connection.serve();
        match self.state.advance() {
            Some(outcome) => Progress::Done(outcome),
            None => Progress::UnderWay(self),
        }
    }

    /// From now on it tells `due` this token when there is something to test: an answer has come,
    /// or the connection has ended. Test it as well when [`GetRequest::due_within`] has passed.
    pub fn tell(&mut self, due: &Due, token: u64) {
        self.state.teller = Some(Teller::new(due, token));
        self.state.have_told();
    }

    /// When to test it though it has not told: a pause is over, or its deadline has come.
    pub fn due_within(&self) -> Duration {
        match self.state.step {
            Step::Send(not_before) => due_at(not_before),
            Step::SendStat(..) => AGAIN_FIRST,
            Step::Look(_) | Step::LookForStat(..) => due_at(self.state.deadline.given_up_at()),
        }
    }

    /// Gives it up, like drop: the broker is told, and what it grants all the same is given back.
    /// Never waits.
    pub fn cancel(self) {}
}

impl State {
    fn have_told(&self) {
        if let (Step::Look(id) | Step::LookForStat(id, ..), Some(teller)) =
            (&self.step, &self.teller)
        {
            self.connection.tell(*id, teller);
        }
    }

    /// Sends the get if it fits now.
    fn send(&mut self) -> Option<Error> {
        match wire::start_get(&self.connection, self.whose.flags(), &self.names, self.deadline) {
            Ok(Some(id)) => {
                self.step = Step::Look(id);
                self.have_told();
            }
            Ok(None) if Instant::now() < self.deadline.given_up_at() => {}
            Ok(None) => return Some(Error::timed_out("get: no room for another request")),
            Err(error) => return Some(error),
        }
        None
    }

    /// Goes on until there is nothing to do but wait; its outcome.
    fn advance(&mut self) -> Option<Result<Vec<Object>, Error>> {
        loop {
            match std::mem::replace(&mut self.step, Step::Send(Instant::now())) {
                Step::Send(not_before) => {
                    self.step = Step::Send(not_before);
                    if Instant::now() < not_before {
                        return None;
                    }
                    // What is in the way may be replies that wait to be read.
                    self.connection.read_if_nobody_does();
                    return self.send().map(Err);
                }
                Step::Look(id) => {
                    match wire::look_for_got(&self.connection, id, &self.names, self.deadline) {
                        None => {
                            self.step = Step::Look(id);
                            return None;
                        }
                        Some(answer) => {
                            match answer
                                .and_then(|it| open(&self.connection, &self.whose, &self.names, it))
                            {
                                Ok((got, lacking)) if lacking.is_empty() => return Some(Ok(got)),
                                Ok((got, lacking)) => self.step = Step::SendStat(got, lacking),
                                Err(error) => match self.again.is_due(error, self.deadline) {
                                    Ok(()) => self.step = Step::Send(Instant::now() + AGAIN_FIRST),
                                    Err(error) => return Some(Err(error)),
                                },
                            }
                        }
                    }
                }
                Step::SendStat(got, lacking) => {
                    let asked = self.asked(&lacking);
                    let flags = self.whose.flags();
                    match wire::start_stat(&self.connection, flags, &asked, self.deadline) {
                        Ok(Some(id)) => {
                            self.step = Step::LookForStat(id, got, lacking);
                            self.have_told();
                        }
                        Ok(None) if Instant::now() < self.deadline.given_up_at() => {
                            self.step = Step::SendStat(got, lacking);
                        }
                        Ok(None) => {
                            return Some(Err(Error::timed_out("get: no room for another request")));
                        }
                        Err(error) => return Some(Err(error)),
                    }
                    return None;
                }
                Step::LookForStat(id, mut got, mut lacking) => {
                    let asked = self.asked(&lacking);
                    let Some(looked) =
                        wire::look_for_stat(&self.connection, id, &asked, self.deadline)
                    else {
                        self.step = Step::LookForStat(id, got, lacking);
                        return None;
                    };
                    let infos = match looked {
                        Ok(infos) => infos,
                        Err(error) => return Some(Err(error)),
                    };
                    // One answer may have less than all.
                    let (done, count) = (lacking.len().min(infos.len()), lacking.len());
                    if fill(&mut got, &lacking[..done], infos) {
                        if done == count {
                            return Some(Ok(got));
                        }
                        lacking.drain(..done);
                        self.step = Step::SendStat(got, lacking);
                        continue;
                    }
                    self.tries += 1;
                    if self.tries >= METADATA_TRIES {
                        return Some(Err(moved(&self.names)));
                    }
                    self.step = Step::Send(Instant::now() + AGAIN_FIRST);
                }
            }
        }
    }

    fn asked(&self, lacking: &[usize]) -> Names {
        self.names.some(lacking)
    }
}

impl Drop for State {
    fn drop(&mut self) {
        if let Step::Look(id) | Step::LookForStat(id, ..) = self.step {
            self.connection.forget(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_when_made_then_may_go_to_another_thread() {
        fn assert_send<T: Send>() {}
        assert_send::<GetRequest>();
        assert_send::<GetProgress>();
    }
}
