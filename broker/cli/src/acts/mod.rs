//! What evict and revoke have in common: what they are for, and how a broker is made to do it, a portion a message. Must
//! never say that something is done which the broker has not said.

pub mod left;

use crate::acts::left::owner;
use crate::admin::{Admin, Selection};
use crate::error::{Error, Result, exit};
use crate::output::say;
use crate::output::{Column, Columns, Output, Side, human_size};
use crate::subject::{self, Subject};
use fdbroker_protocol::admin::{ActOutcome, ActRecord, act_flags};
use fdbroker_protocol::{AllocationId, ErrorCode, Kind};
use serde::Serialize;
use std::collections::BTreeMap;
use zerocopy::little_endian::U32;

/// Which act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Close the broker's fd.
    Evict,
    /// End the allocation.
    Revoke,
}

impl Verb {
    fn kinds(self) -> (Kind, Kind) {
        match self {
            Verb::Evict => (Kind::AdminEvict, Kind::AdminEvictReply),
            Verb::Revoke => (Kind::AdminRevoke, Kind::AdminRevokeReply),
        }
    }

    /// As the command is called.
    pub fn name(self) -> &'static str {
        match self {
            Verb::Evict => "evict",
            Verb::Revoke => "revoke",
        }
    }

    /// `evicted`, `revoked`.
    pub fn done(self) -> &'static str {
        match self {
            Verb::Evict => "evicted",
            Verb::Revoke => "revoked",
        }
    }
}

/// What an act is for, with the words it was named by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    words: String,
    /// One; of a job's name, one for each job that is called so.
    selections: Vec<Selection>,
    /// It names one allocation.
    pub is_one: bool,
}

impl Target {
    /// Everything.
    pub fn all() -> Self {
        Target { words: "anybody".into(), selections: vec![Selection::ALL], is_one: false }
    }

    /// What `subject` names on the broker's node.
    pub fn of(subject: Subject, admin: &mut Admin) -> Result<Self> {
        let (words, selection, is_one) = match subject {
            Subject::Handle(handle) => {
                let id = subject::handle::id(&handle, admin)?;
                return Self::of(Subject::Allocation(id), admin);
            }
            Subject::Allocation(id) => (id.to_string(), Selection::allocation(id), true),
            Subject::Pid(pid) => (format!("process {pid}"), Selection::pid(pid), false),
            Subject::Uid(uid) => (format!("user {uid}"), Selection::uid(uid), false),
            Subject::Job(name) => {
                let selections = subject::jobs(&name, admin)?;
                return Ok(Target { words: format!("job {name}"), selections, is_one: false });
            }
        };
        Ok(Target { words, selections: vec![selection], is_one })
    }

    fn not_found(&self) -> Error {
        Error::NotFound(match self.is_one {
            true => format!(
                "no allocation {}: it has ended, or never was; `fdbroker ls` lists those that are",
                self.words
            ),
            false => format!("no allocation is of {}; `fdbroker ls` lists all", self.words),
        })
    }
}

/// What a command is to act upon.
#[derive(Debug)]
pub struct Targets {
    known: Vec<Target>,
    /// What the broker knows no such thing of.
    missing: Missing,
}

impl Targets {
    /// Everything.
    pub fn all() -> Self {
        Targets { known: vec![Target::all()], missing: Missing::default() }
    }

    /// What `subjects` name, or all.
    pub fn of(subjects: Vec<Subject>, admin: &mut Admin) -> Result<Self> {
        if subjects.is_empty() {
            return Ok(Self::all());
        }
        let mut targets = Targets { known: Vec::new(), missing: Missing::default() };
        for subject in subjects {
            match Target::of(subject, admin) {
                Ok(target) => targets.known.push(target),
                Err(Error::NotFound(why)) => targets.missing.0.push(why),
                Err(error) => return Err(error),
            }
        }
        Ok(targets)
    }
}

/// The same for each of `targets`. One that nothing is of does not keep the others from being acted upon, nor from being told
/// of: it is in what is given back.
///
/// # Errors
/// NOT_FOUND when nothing is of any of them, and nothing has been done; others at once.
pub fn act_on_each(
    admin: &mut Admin,
    verb: Verb,
    targets: &Targets,
    is_dry: bool,
    mut each: impl FnMut(&Target, ActOutcome, &ActRecord) -> Result<()>,
) -> Result<Missing> {
    let mut missing = targets.missing.clone();
    let mut is_any = false;
    for target in &targets.known {
        match act(admin, verb, target, is_dry, |outcome, record| each(target, outcome, record)) {
            Ok(()) => is_any = true,
            Err(Error::NotFound(why)) => missing.0.push(why),
            Err(error) => return Err(error),
        }
    }
    match is_any {
        true => Ok(missing),
        false => Err(Error::NotFound(missing.0.join("\nfdbroker: "))),
    }
}

/// Why nothing was done to some of several targets.
#[derive(Clone, Debug, Default)]
pub struct Missing(Vec<String>);

impl Missing {
    /// Says why, a line each.
    pub fn say(&self) {
        self.say_beside(&Missing::default());
    }

    /// Says why, but for what was said `before`.
    pub fn say_beside(&self, before: &Missing) {
        let new = self.0.iter().filter(|why| !before.0.contains(why));
        new.for_each(|why| say!("fdbroker: {why}"));
    }

    /// Of a command that has done the rest.
    pub fn exit_status(&self) -> u8 {
        if self.0.is_empty() { exit::OK } else { exit::NOT_FOUND }
    }
}

/// Has the broker do it, or say what it would, and hands each allocation with what became of it to `each`.
///
/// # Errors
/// NOT_FOUND when nothing is of the target; and that of `each`, at once.
fn act(
    admin: &mut Admin,
    verb: Verb,
    target: &Target,
    is_dry: bool,
    mut each: impl FnMut(ActOutcome, &ActRecord) -> Result<()>,
) -> Result<()> {
    let mut found = false;
    for selection in &target.selections {
        act_on(admin, verb, selection, is_dry, |outcome, record| {
            if outcome == ActOutcome::NotFound {
                return Err(target.not_found());
            }
            found = true;
            each(outcome, record)
        })?;
    }
    // To act upon nothing of everybody's is done when there is nothing.
    match found || target.words == Target::all().words {
        true => Ok(()),
        false => Err(target.not_found()),
    }
}

/// All pages of one selection.
fn act_on(
    admin: &mut Admin,
    verb: Verb,
    selection: &Selection,
    is_dry: bool,
    mut each: impl FnMut(ActOutcome, &ActRecord) -> Result<()>,
) -> Result<()> {
    let (query, reply) = verb.kinds();
    let flags = if is_dry { act_flags::DRY_RUN } else { 0 };
    let body = |cursor| selection.act(cursor, flags);
    let all = admin.pages(query, reply, body, |records: &[ActRecord]| {
        for record in records {
            let outcome = ActOutcome::from_number(record.outcome.get());
            each(outcome.ok_or_else(|| Error::Other(unknown(record.outcome)))?, record)?;
        }
        Ok(true)
    });
    all.map(drop).map_err(|error| denied(error, verb.name()))
}

fn unknown(outcome: U32) -> String {
    format!(
        "the broker answers with the unknown outcome {outcome}; use a command and a broker of the same release"
    )
}

/// The broker's refusal of an act, as it is meant.
pub fn denied(error: Error, what: &'static str) -> Error {
    match error {
        Error::Refused(ErrorCode::NotPermitted) => Error::NotAdministrator(what),
        error => error,
    }
}

/// The id of an allocation acted upon.
pub fn id_of(record: &ActRecord) -> AllocationId {
    let allocation = &record.allocation;
    AllocationId { slot: allocation.slot.get(), generation: allocation.generation.get() }
}

/// Counts of what became of many.
#[derive(Debug, Default)]
pub struct Tally {
    by_outcome: BTreeMap<ActOutcome, u64>,
    /// Bytes of those done.
    pub done_bytes: u64,
}

impl Tally {
    /// One more.
    pub fn add(&mut self, outcome: ActOutcome, record: &ActRecord) {
        *self.by_outcome.entry(outcome).or_default() += 1;
        if outcome == ActOutcome::Done {
            self.done_bytes += record.allocation.size_bytes.get();
        }
    }

    /// How many came to this.
    pub fn of(&self, outcome: ActOutcome) -> u64 {
        self.by_outcome.get(&outcome).copied().unwrap_or(0)
    }

    /// `3 resident, 1 recalling`: those that it was not done to.
    pub fn others(&self) -> String {
        let others = self.by_outcome.iter().filter(|(outcome, _)| **outcome != ActOutcome::Done);
        let words: Vec<String> =
            others.map(|(outcome, count)| format!("{count} {outcome}")).collect();
        words.join(", ")
    }
}

/// `1 allocation`, `12 allocations`.
pub fn allocations(count: u64) -> String {
    format!("{} allocation{}", crate::output::commas(count), if count == 1 { "" } else { "s" })
}

/// An allocation that an act was not done to, and why not.
#[derive(Debug, Serialize)]
pub struct Refused {
    allocation: String,
    reason: &'static str,
    size_bytes: u64,
    owner_pid: Option<u32>,
    owner_uid: Option<u32>,
    owner_name: String,
}

impl Refused {
    /// Columns of the table.
    pub const COLUMNS: &'static [Column] = &[
        Column("ALLOCATION", Side::Left),
        Column("STAYS", Side::Left),
        Column("SIZE", Side::Right),
        Column("OWNER", Side::Right),
        Column("NAME", Side::Left),
    ];

    /// Of this outcome.
    pub fn new(outcome: ActOutcome, record: &ActRecord) -> Self {
        let (owner_pid, owner_uid, owner_name) = owner(&record.allocation);
        let size_bytes = record.allocation.size_bytes.get();
        let (allocation, reason) = (id_of(record).to_string(), outcome.name());
        Refused { allocation, reason, size_bytes, owner_pid, owner_uid, owner_name }
    }

    fn row(&self) -> Vec<String> {
        vec![
            self.allocation.clone(),
            self.reason.to_owned(),
            human_size(self.size_bytes),
            self.owner_pid.map_or_else(|| "gone".to_owned(), |pid| pid.to_string()),
            self.owner_name.clone(),
        ]
    }
}

/// What JSON of those refused begins with.
const JSON_BEGIN: &str = "{\"refused\":[";

/// Those refused, as they come: rows of a table, or elements of the JSON array that opens the object of a whole command.
/// Nothing is written before there is one, or the end: a command that does nothing prints nothing.
pub struct RefusedList {
    is_json: bool,
    table: Columns,
    is_first: bool,
}

impl RefusedList {
    /// An empty one.
    pub fn new(is_json: bool) -> Self {
        RefusedList { is_json, table: Columns::new(Refused::COLUMNS, true), is_first: true }
    }

    /// One more.
    pub fn write(&mut self, refused: &Refused, out: &mut Output) -> Result<()> {
        let is_first = std::mem::take(&mut self.is_first);
        if !self.is_json {
            return self.table.write(vec![refused.row()], out);
        }
        out.text(if is_first { JSON_BEGIN } else { "," })?;
        out.json(refused)
    }

    /// Ends the JSON array; what follows are further members of the object.
    pub fn end_json(&self, out: &mut Output) -> Result<()> {
        out.text(if self.is_first { JSON_BEGIN } else { "" })?;
        out.text("]")
    }

    /// Whether there was none.
    pub fn is_empty(&self) -> bool {
        self.is_first
    }
}
