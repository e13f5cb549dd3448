//! Getting: names in, open memory out. All names are resolved in one moment; then memory is opened,
//! a group at a time, its fd is closed and its lease reported as mapped. Must never lose a grant:
//! what cannot be handed over is given back.

use super::info::ObjectInfo;
use super::memory::Shared;
use super::object::Object;
use super::options::Whose;
use super::wire::{self, Answer, AnswerItem, Names};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::inherited::Way;
use crate::limits::METADATA_TRIES;
use crate::requests::started::{Exchange, Messages, Progress, Request};
use crate::wire::again::Again;
use crate::wire::connection::Connection;
use fdbroker_protocol::Kind;
use std::sync::Arc;
use std::time::Duration;

/// A get under way; see [`crate::Objects::get_start`]; its outcome is that of
/// [`crate::Objects::get_many`]. Memory is opened by the test that finds the answer.
pub type GetRequest = Request<'static, Result<Vec<Object>, Error>>;

/// How far a [`GetRequest`] is.
pub type GetProgress = Progress<'static, Result<Vec<Object>, Error>>;

#[derive(Debug)]
struct Getting {
    whose: Whose,
    connection: Arc<Connection>,
    names: Names,
    deadline: Deadline,
    tries: usize,
    again: Again,
    /// What is open, with the places of those whose metadata was not in the answer: it is asked
    /// for.
    lacking: Option<(Vec<Object>, Vec<usize>)>,
    outcome: Option<Result<Vec<Object>, Error>>,
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

pub(super) fn start<N: AsRef<str>>(
    whose: &Whose,
    names: &[N],
    deadline: Deadline,
) -> Result<GetRequest, Error> {
    Ok(Request::of(Exchange::started(Getting {
        connection: whose.client.usable("get")?,
        names: Names::for_get(names)?,
        whose: whose.clone(),
        deadline,
        tries: 0,
        again: Again::new(),
        lacking: None,
        outcome: None,
    })))
}

impl Messages for Getting {
    type Outcome = Result<Vec<Object>, Error>;
    const WHAT: &'static str = "get";

    fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    fn deadline(&self) -> Deadline {
        self.deadline
    }

    fn outcome(&mut self) -> Option<Self::Outcome> {
        self.outcome.take()
    }

    fn kind(&self) -> Kind {
        Kind::ObjectGet
    }

    fn send(&mut self) -> Result<Option<u64>, Error> {
        let Getting { connection, whose, names, deadline, .. } = self;
        match &self.lacking {
            None => wire::start_get(connection, whose.flags(), names, *deadline),
            Some((_, places)) => {
                wire::start_stat(connection, whose.flags(), &names.some(places), *deadline)
            }
        }
    }

    fn look(&mut self, id: u64) -> Option<Result<(), Error>> {
        let Getting { connection, names, deadline, .. } = self;
        if let Some((_, places)) = &self.lacking {
            let asked = names.some(places);
            let infos = wire::look_for_stat(connection, id, &asked, *deadline)?;
            return Some(infos.and_then(|infos| self.fill(infos)));
        }
        let answer = wire::look_for_got(connection, id, names, *deadline)?;
        let opened = answer.and_then(|answer| open(connection, &self.whose, names, answer));
        Some(opened.map(|(got, places)| self.has(got, places)))
    }

    fn settle(&mut self, answered: Result<(), Error>) -> Duration {
        self.again.settle(answered, self.deadline, |error| self.outcome = Some(Err(error)))
    }
}

impl Getting {
    /// Those at these places have no metadata yet.
    fn has(&mut self, got: Vec<Object>, places: Vec<usize>) {
        if places.is_empty() {
            self.outcome = Some(Ok(got));
        } else {
            self.lacking = Some((got, places));
        }
    }

    fn fill(&mut self, infos: Vec<Option<ObjectInfo>>) -> Result<(), Error> {
        let (mut got, mut places) = self.lacking.take().unwrap_or_default();
        // One answer may have less than all.
        let filled = places.len().min(infos.len());
        if fill(&mut got, &places[..filled], infos) {
            places.drain(..filled);
            self.has(got, places);
            return Ok(());
        }
        // All of it anew.
        self.tries += 1;
        if self.tries < METADATA_TRIES { Ok(()) } else { Err(moved(&self.names)) }
    }
}
