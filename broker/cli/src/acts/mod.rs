//! Acts of an administrator upon allocations, for evict, revoke and drain: finds the targets and
//! has the broker act upon them page by page. Must never report an act as done unless the broker
//! says so.

pub mod left;

use crate::acts::left::owner;
use crate::admin::{Admin, Selection};
use crate::error::{Error, Result, exit};
use crate::output::{Column, Columns, Output, Side, human_size, printable, say};
use crate::subject::{self, Subject};
use fdbroker_protocol::admin::{ActOutcome, ActRecord, act_flags};
use fdbroker_protocol::{AllocationId, ErrorCode, Kind};
use serde::Serialize;
use std::collections::BTreeMap;
use zerocopy::little_endian::U32;

/// An act upon allocations.
#[derive(Clone, Copy, Debug)]
pub struct Verb {
    /// The name of the command.
    name: &'static str,
    query: Kind,
}

impl Verb {
    /// Close the broker's fd.
    pub const EVICT: Verb = Verb { name: "evict", query: Kind::AdminEvict };
    /// End the allocation, whoever has it open.
    pub const REVOKE: Verb = Verb { name: "revoke", query: Kind::AdminRevoke };
}

/// A subject of an act.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    words: String,
    /// One selection; several if several jobs have the name.
    selections: Vec<Selection>,
    /// The subject is a single allocation.
    pub is_one: bool,
}

impl Target {
    pub fn all() -> Self {
        Target { words: "anybody".into(), selections: vec![Selection::ALL], is_one: false }
    }

    /// Looks `subject` up at the broker.
    pub fn of(subject: &Subject, admin: &mut Admin) -> Result<Self> {
        let selections = subject.selections(admin)?;
        Ok(Target { words: subject.to_string(), selections, is_one: subject.is_allocation() })
    }

    fn not_found(&self) -> Error {
        if self.is_one {
            subject::no_allocation(&self.words)
        } else {
            Error::NotFound(format!(
                "no allocation is of {}; `fdbroker ls` lists all. Its leases of others' memory (`fdbroker holders`) can be closed by \
                 itself alone: end it, or lower client.open_leases",
                self.words
            ))
        }
    }
}

/// The subjects of a command.
#[derive(Debug)]
pub struct Targets {
    known: Vec<Target>,
    /// Messages about subjects that the broker does not know.
    missing: Missing,
}

impl Targets {
    pub fn all() -> Self {
        Targets { known: vec![Target::all()], missing: Missing::default() }
    }

    /// Looks `subjects` up at the broker; none means all allocations.
    pub fn of(subjects: Vec<Subject>, admin: &mut Admin) -> Result<Self> {
        if subjects.is_empty() {
            return Ok(Self::all());
        }
        let mut targets = Targets { known: Vec::new(), missing: Missing::default() };
        for subject in subjects {
            match Target::of(&subject, admin) {
                Ok(target) => targets.known.push(target),
                Err(Error::NotFound(why)) => targets.missing.0.push(why),
                Err(error) => return Err(error),
            }
        }
        Ok(targets)
    }
}

/// Acts upon each of `targets`, and hands each allocation with its outcome to `each`. Gives
/// messages about targets without allocations; they do not stop the others.
///
/// # Errors
/// NOT_FOUND if no target has an allocation; any other error at once.
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
    if is_any { Ok(missing) } else { Err(Error::NotFound(missing.0.join("\nfdbroker: "))) }
}

/// Messages about targets without allocations.
#[derive(Clone, Debug, Default)]
pub struct Missing(Vec<String>);

impl Missing {
    /// Prints the messages on stderr.
    pub fn say(&self) {
        self.say_beside(&Missing::default());
    }

    /// Prints the messages on stderr, except the ones in `before`.
    pub fn say_beside(&self, before: &Missing) {
        let new = self.0.iter().filter(|why| !before.0.contains(why));
        new.for_each(|why| say!("fdbroker: {why}"));
    }

    /// The exit status of a command that has acted upon the other targets.
    pub fn exit_status(&self) -> u8 {
        if self.0.is_empty() { exit::OK } else { exit::NOT_FOUND }
    }
}

/// Has the broker act upon one target, or only say what it would do, and hands each allocation with
/// its outcome to `each`.
///
/// # Errors
/// NOT_FOUND if the target has no allocation; the first error of `each`.
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
    // All allocations may be none.
    if found || target.words == Target::all().words { Ok(()) } else { Err(target.not_found()) }
}

/// Acts upon one selection, page by page.
fn act_on(
    admin: &mut Admin,
    verb: Verb,
    selection: &Selection,
    is_dry: bool,
    mut each: impl FnMut(ActOutcome, &ActRecord) -> Result<()>,
) -> Result<()> {
    let flags = if is_dry { act_flags::DRY_RUN } else { 0 };
    let body = |cursor| selection.act(cursor, flags);
    let all = admin.pages(verb.query, body, |records: &[ActRecord]| {
        for record in records {
            let outcome = ActOutcome::from_number(record.outcome.get());
            each(outcome.ok_or_else(|| Error::Other(unknown(record.outcome)))?, record)?;
        }
        Ok(true)
    });
    all.map(drop).map_err(|error| denied(error, verb.name))
}

fn unknown(outcome: U32) -> String {
    format!(
        "the broker answers with the unknown outcome {outcome}; use a command and a broker of the same release"
    )
}

/// Replaces the broker's refusal by an error that names the act.
pub fn denied(error: Error, what: &'static str) -> Error {
    match error {
        Error::Refused(ErrorCode::NotPermitted) => Error::NotAdministrator(what),
        error => error,
    }
}

pub fn id_of(record: &ActRecord) -> AllocationId {
    let allocation = &record.allocation;
    AllocationId { slot: allocation.slot.get(), generation: allocation.generation.get() }
}

/// Number of allocations by outcome.
#[derive(Debug, Default)]
pub struct Tally {
    by_outcome: BTreeMap<ActOutcome, u64>,
    /// Bytes of the allocations with the outcome `Done`.
    pub done_bytes: u64,
}

impl Tally {
    pub fn add(&mut self, outcome: ActOutcome, record: &ActRecord) {
        *self.by_outcome.entry(outcome).or_default() += 1;
        if outcome == ActOutcome::Done {
            self.done_bytes += record.allocation.facts.size_bytes.get();
        }
    }

    /// Number of allocations with this outcome.
    pub fn of(&self, outcome: ActOutcome) -> u64 {
        self.by_outcome.get(&outcome).copied().unwrap_or(0)
    }

    /// All other outcomes, such as `3 resident, 1 recalling`.
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

/// An allocation that was not acted upon, with the reason.
#[derive(Debug, Serialize)]
pub struct Refused {
    allocation: String,
    /// The first name of the objects in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    object: Option<String>,
    reason: &'static str,
    size_bytes: u64,
    owner_pid: Option<u32>,
    owner_uid: Option<u32>,
    owner_name: String,
}

impl Refused {
    pub const COLUMNS: &'static [Column] = &[
        Column("ALLOCATION", Side::Left),
        Column("STAYS", Side::Left),
        Column("SIZE", Side::Right),
        Column("OWNER", Side::Right),
        Column("NAME", Side::Left),
        Column("OBJECT", Side::Left),
    ];

    /// From a record with this outcome.
    pub fn new(outcome: ActOutcome, record: &ActRecord) -> Self {
        let (owner_pid, owner_uid, owner_name) = owner(&record.allocation);
        let size_bytes = record.allocation.facts.size_bytes.get();
        let (allocation, reason) = (id_of(record).to_string(), outcome.name());
        let object = record.allocation.object.get();
        let object = object.map(|name| String::from_utf8_lossy(name).into_owned());
        Refused { allocation, object, reason, size_bytes, owner_pid, owner_uid, owner_name }
    }

    fn row(&self) -> Vec<String> {
        vec![
            self.allocation.clone(),
            self.reason.to_owned(),
            human_size(self.size_bytes),
            self.owner_pid.map_or_else(|| "gone".to_owned(), |pid| pid.to_string()),
            if self.owner_name.is_empty() { "-" } else { &self.owner_name }.to_owned(),
            self.object.as_deref().map_or_else(|| "-".into(), printable),
        ]
    }
}

/// The beginning of the JSON object.
const JSON_BEGIN: &str = "{\"refused\":[";

/// Prints refused allocations as they come: as rows of a table, or as elements of the array that
/// begins the command's JSON object. Prints nothing before the first one: a command that does
/// nothing prints nothing.
pub struct RefusedList {
    is_json: bool,
    table: Columns,
    is_first: bool,
}

impl RefusedList {
    pub fn new(is_json: bool) -> Self {
        RefusedList { is_json, table: Columns::new(Refused::COLUMNS, true), is_first: true }
    }

    pub fn write(&mut self, refused: &Refused, out: &mut Output) -> Result<()> {
        let is_first = std::mem::take(&mut self.is_first);
        if !self.is_json {
            return self.table.write(vec![refused.row()], out);
        }
        out.text(if is_first { JSON_BEGIN } else { "," })?;
        out.json(refused)
    }

    /// Ends the JSON array. The object stays open for more members.
    pub fn end_json(&self, out: &mut Output) -> Result<()> {
        out.text(if self.is_first { JSON_BEGIN } else { "" })?;
        out.text("]")
    }

    pub fn is_empty(&self) -> bool {
        self.is_first
    }
}
