//! The broker's status in JSON, and values that columns of several records have in common. Names
//! are the protocol's, and numbers in JSON are exact. Must never decide what is shown, only how.

pub mod allocations;
pub mod clients;
pub mod gpus;
pub mod jobs;
pub mod leases;
pub mod objects;
mod users;

pub use users::user;

use crate::admin::{OWN_PART, WHOLE};
use crate::output::{commas, counted, human_size, is_shown, seconds};
use crate::table::{Column, Kind, Value};
use fdbroker_protocol::admin::{NodeStatus, Use};
use fdbroker_protocol::{
    AllocationId, ByCounter, ByGauge, ByResource, Gauge, Resource, Scope, Unit,
};
use nix::errno::Errno;
use serde::{Serialize, Serializer};
use zerocopy::little_endian::{U32, U64};

/// The owner's uid of an allocation that no owner has declared since a crash. No process has this
/// uid.
pub const NOBODYS_UID: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct UseView {
    pub now: u64,
    /// Kept for what is to come: the cap counts this, too.
    pub reserved: u64,
    /// Most ever in use.
    pub peak: u64,
    /// The cap; `None`: no cap.
    pub cap: Option<u64>,
    /// It is counted of what is shown. JSON leaves others out.
    #[serde(skip)]
    pub is_counted: bool,
}

impl UseView {
    fn new(item: &Use, reserved: u64, is_counted: bool) -> Self {
        let (now, peak, cap) = (item.now.get(), item.peak.get(), item.known_cap());
        UseView { now, reserved, peak, cap, is_counted }
    }

    /// What the cap counts.
    pub fn counted(&self) -> u64 {
        self.now.saturating_add(self.reserved)
    }
}

fn as_seconds<S: Serializer>(ms: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(seconds(*ms))
}

/// Writes milliseconds as seconds; `None` as null.
pub fn as_seconds_or_null<S: Serializer>(ms: &Option<u64>, to: S) -> Result<S::Ok, S::Error> {
    ms.map(seconds).serialize(to)
}

/// The status of the node, or of a user's own part. In JSON all rows of the three tables stand
/// beside the other members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StatusView {
    /// What it is of: `node`, or `own`.
    pub scope: &'static str,
    /// The broker's pid.
    pub pid: u32,
    pub draining: bool,
    /// Time since the broker's start; in JSON in seconds.
    #[serde(rename = "uptime_seconds", serialize_with = "as_seconds")]
    pub uptime_ms: u64,
    pub node: String,
    /// The broker's random number.
    pub incarnation: String,
    #[serde(flatten, serialize_with = "resources")]
    pub uses: ByResource<UseView>,
    /// What there is beside that.
    #[serde(flatten, serialize_with = "gauges")]
    pub gauges: ByGauge<Option<u64>>,
    /// Why sockets could not be put back, should somebody remove or replace them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sockets_unkept_because: Option<String>,
    /// What has happened since the broker's start; `None`: that is not counted of the part.
    #[serde(flatten, serialize_with = "counters")]
    pub counters: Option<ByCounter<u64>>,
}

fn resources<S: Serializer>(uses: &ByResource<UseView>, to: S) -> Result<S::Ok, S::Error> {
    let counted = uses.iter().filter(|(_, item)| item.is_counted);
    to.collect_map(counted.map(|(resource, item)| (resource.name(), item)))
}

fn gauges<S: Serializer>(gauges: &ByGauge<Option<u64>>, to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(gauges.iter().filter_map(|(gauge, count)| Some((gauge.name(), (*count)?))))
}

fn counters<S: Serializer>(counters: &Option<ByCounter<u64>>, to: S) -> Result<S::Ok, S::Error> {
    let counters = counters.iter().flat_map(ByCounter::iter);
    to.collect_map(counters.map(|(counter, count)| (counter.name(), count)))
}

impl From<&NodeStatus> for StatusView {
    fn from(status: &NodeStatus) -> Self {
        let is_whole = status.scope.get() == Scope::Node as u32;
        StatusView {
            scope: if is_whole { WHOLE } else { OWN_PART },
            pid: status.pid.get(),
            draining: status.draining.get() != 0,
            uptime_ms: status.uptime_ms.get(),
            // As text: JSON readers round numbers beyond 2^53.
            node: format!("{:016x}", status.node.get()),
            incarnation: format!("{:016x}", status.incarnation.get()),
            uses: ByResource::from_fn(|resource| {
                let is_counted = is_whole || resource.narrowest() != Scope::Node;
                UseView::new(&status.uses[resource], status.uses.reserved(resource), is_counted)
            }),
            gauges: ByGauge::from_fn(|gauge| {
                (is_whole || gauge == Gauge::Jobs).then(|| status.gauges[gauge].get())
            }),
            sockets_unkept_because: unkept_because(status.unkept_errno.get()),
            counters: is_whole.then(|| status.counters.map(|count| count.get())),
        }
    }
}

impl StatusView {
    /// What is to be said of the configuration, if the broker does not serve with it.
    pub fn config_warning(&self) -> Option<&'static str> {
        self.gauges[Gauge::ConfigRefused].filter(|refused| *refused > 0)?;
        Some(
            "the configuration file is refused: the broker serves with the settings of before; `fdbrokerd --check-config` says why, \
             `systemctl reload fdbrokerd` takes a mended one",
        )
    }

    /// What is used to so much of its cap, with the cap, that requests will soon wait or fail.
    pub fn nearly_full(&self) -> impl Iterator<Item = (Resource, &UseView, u64)> {
        let all = self.uses.iter().filter_map(|(resource, used)| Some((resource, used, used.cap?)));
        // A cap of 0 forbids, and nothing fills it.
        all.filter(|(_, _, cap)| *cap > 0).filter(|(_, used, cap)| {
            u128::from(used.counted()) * 100 >= u128::from(*cap) * u128::from(NEARLY_ALL)
        })
    }

    /// What is to be said of the broker's sockets, if they are not in order.
    pub fn sockets_warning(&self) -> Option<String> {
        let count = |gauge: Gauge| self.gauges[gauge].filter(|count| *count > 0);
        if let Some(away) = count(Gauge::SocketsAway) {
            let sockets = counted(away, "socket");
            return Some(format!(
                "of {sockets} somebody has taken the place, and new clients do not come: the journal of fdbrokerd says of which"
            ));
        }
        let sockets = counted(count(Gauge::SocketsUnkept)?, "socket");
        let why = self.sockets_unkept_because.as_deref().unwrap_or_default();
        Some(format!("{sockets} could not be put back if somebody removed them: {why}"))
    }
}

/// Percent of a cap that are nearly all of it.
const NEARLY_ALL: u64 = 90;

fn unkept_because(errno: u32) -> Option<String> {
    let errno = Errno::from_raw(i32::try_from(errno).unwrap_or_default());
    match errno {
        Errno::UnknownErrno => None,
        Errno::EXDEV => Some(
            "the administrator's directory is of another mount or file system than theirs".into(),
        ),
        Errno::ECHILD => {
            Some("the process that keeps them in their places has ended; restart the broker".into())
        }
        Errno::ESTALE => {
            Some("at its start the broker found others in their places; restart their units".into())
        }
        errno => Some(format!("no further link could be made of them: {}", errno.desc())),
    }
}

/// The resources that lists show of a client, a job or a user when nothing else is asked for.
pub const SHOWN: &[Resource] = &[
    Resource::Fds,
    Resource::OwnFds,
    Resource::HeldFds,
    Resource::HeldBytes,
    Resource::OpenLeases,
    Resource::MappedLeases,
    Resource::Allocations,
    Resource::ReservedPlaces,
];

/// These columns with those of `first` before all others, in that order.
pub fn in_order<R>(mut columns: Vec<Column<R>>, first: &[&str]) -> Vec<Column<R>> {
    let place = |name: &str| first.iter().position(|it| *it == name).unwrap_or(first.len());
    columns.sort_by_key(|column| place(column.name));
    columns
}

/// An amount of a resource, for people.
pub fn amount(resource: Resource, amount: u64) -> String {
    match resource.unit() {
        Unit::Bytes => human_size(amount),
        _ => commas(amount),
    }
}

/// Each counter with its name, for people: `12 grants`.
pub fn counted_since_start(counters: &ByCounter<u64>) -> String {
    let each = counters.iter().map(|(counter, count)| format!("{} {counter}", commas(*count)));
    each.collect::<Vec<_>>().join(", ")
}

/// The allocation that a record names.
pub fn id(slot: U32, generation: U32) -> Value {
    Value::Allocation(AllocationId { slot: slot.get(), generation: generation.get() })
}

/// A pid that may be missing.
pub fn nonzero(pid: U32) -> Option<u32> {
    Some(pid.get()).filter(|pid| *pid != 0)
}

/// A client's name. The client chose it, so its control characters are replaced.
pub fn name(bytes: &[u8]) -> Value {
    Value::Text(client_name(bytes).into())
}

/// A client's name as text, without control characters.
pub fn client_name(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let name = String::from_utf8_lossy(&bytes[..end]);
    // Once and for all: it goes into text, into tables and into JSON.
    name.chars().map(|c| if is_shown(c) { c } else { '?' }).collect()
}

/// The name of a job, or its key if it has no name; `None`: no job.
pub fn job_label(key: U64, name: &[u8]) -> Option<String> {
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    match (key.get(), &name[..end]) {
        (0, _) => None,
        (key, []) => Some(format!("job:{key:016x}")),
        (_, name) => Some(String::from_utf8_lossy(name).into_owned()),
    }
}

/// The column of the socket by which something came, whose number this is.
pub fn listener<R>(number: fn(&R) -> Value) -> Column<R> {
    let help = "number of the socket it came by";
    Column::on_request(Kind::Number, "LISTENER", "listener", help, number)
}

/// The number of a socket as a value of a column; none where its path is not served any more.
pub fn listener_number(number: U32) -> Value {
    let number = Some(u64::from(number.get())).filter(|number| *number != u64::from(u32::MAX));
    number.map_or(Value::None("-"), Value::Number)
}

/// The name of a job as a value of a column.
pub fn job(key: U64, name: &[u8]) -> Value {
    job_label(key, name).map_or(Value::None("-"), |label| Value::Text(label.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_when_it_holds_escape_sequences_then_they_are_shown_as_question_marks() {
        assert_eq!(name(b"a\x1b[2Jb\0xx"), Value::word("a?[2Jb"));
        assert_eq!(name(b"sixteen_bytes_xx"), Value::word("sixteen_bytes_xx"));
    }

    #[test]
    fn job_when_it_has_no_name_then_its_key_names_it() {
        assert_eq!(job(0.into(), b"\0\0"), Value::None("-"));
        assert_eq!(job(0xab.into(), b"\0\0"), Value::word("job:00000000000000ab"));
        assert_eq!(job(0xab.into(), b"slurm:81\0"), Value::word("slurm:81"));
    }

    #[test]
    fn use_view_when_no_cap_then_null() {
        let view = UseView::new(&Use { cap: u64::MAX.into(), ..Use::default() }, 3, true);
        let json = serde_json::to_string(&view).expect("plain data");
        assert_eq!(json, r#"{"now":0,"reserved":3,"peak":0,"cap":null}"#);
    }
}
