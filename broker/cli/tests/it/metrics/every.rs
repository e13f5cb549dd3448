//! That no metric is without a test: each that a broker gives is seen to change by a scenario of
//! this program.

use super::rig::Broker;
use super::seen::Scenario;
use super::{caps, closing, full, lasting, recall, server, sharing, state};
use std::collections::BTreeSet;

static SCENARIOS: [&Scenario; 12] = [
    &caps::SET,
    &caps::RELOADED,
    &caps::TABLE,
    &closing::HUNG,
    &full::REFUSED,
    &full::RECLAIMED,
    &lasting::UPTIME,
    &recall::ANSWERED,
    &recall::SILENT,
    &server::UP,
    &sharing::SHARED,
    &state::STATE,
];

/// It cannot change: it tells the release of the command.
const CONSTANT: &str = "fdbroker_build_info";

/// It is more than 0 only while the close of a file that is no memory hangs, which takes a FUSE
/// server: tests/e2e has one.
const HUNG: &str = "fdbroker_refused_fds";

/// It is more than 0 only from one step of the broker to the next, while many leases of an ended
/// allocation are swept: broker/core/tests/bounds.rs sees it.
const SWEPT: &str = "fdbroker_leases_ending";

/// A bound of the broker's own: no setting changes it.
const FIXED: &str = "fdbroker_parked_cap_items";

/// How long a wake takes is the machine's to say: the daemon's own tests see it.
const LONGEST: &str = "fdbroker_longest_wake_seconds";

/// Calls that hang, and lines beyond those of a minute: tests/e2e/journal.rs sees them.
const OF_JOURNAL: [&str; 2] = ["fdbroker_hangs_total", "fdbroker_log_lines_left_out_total"];

/// They take a second user whose messages take the broker long: tests/hostile and unit tests of the
/// daemon see them.
const OF_DEBTS: [&str; 2] = ["fdbroker_long_calls_total", "fdbroker_users_away"];
/// What others do to the broker's sockets: tests/e2e/places.rs sees them.
const OF_PLACES: [&str; 3] =
    ["fdbroker_sockets_away", "fdbroker_sockets_unkept", "fdbroker_sockets_mended_total"];

/// A configuration that is refused, calls that hang, a store that is too small: tests/e2e sees
/// them.
const OF_NODE: [&str; 3] =
    ["fdbroker_config_refused", "fdbroker_lanes_hung", "fdbroker_store_short"];

/// What came of the allocations of a broker that was killed: tests/e2e/counts.rs sees it.
const OF_CRASH: [&str; 2] = ["fdbroker_named_again_total", "fdbroker_lost_total"];

/// More than 0 only when the broker remembers thousands: unit tests of the daemon see them.
const DROPPED: [&str; 2] = ["fdbroker_tombstones_dropped_total", "fdbroker_events_dropped_total"];

/// What objects are charged with: no program can make any yet.
const OF_OBJECTS: [&str; 18] = [
    "fdbroker_object_names",
    "fdbroker_object_peak_names",
    "fdbroker_user_object_names",
    "fdbroker_metadata_bytes",
    "fdbroker_metadata_peak_bytes",
    "fdbroker_user_metadata_bytes",
    "fdbroker_kept_bytes",
    "fdbroker_kept_peak_bytes",
    "fdbroker_user_kept_bytes",
    "fdbroker_kept_gpu_bytes",
    "fdbroker_kept_gpu_peak_bytes",
    "fdbroker_user_kept_gpu_bytes",
    "fdbroker_kept_fds",
    "fdbroker_kept_peak_fds",
    "fdbroker_user_kept_fds",
    "fdbroker_permanent_bytes",
    "fdbroker_permanent_peak_bytes",
    "fdbroker_user_permanent_bytes",
];

/// No scenario has memory of a GPU: tests of the core and of lists see them.
const OF_GPUS: [&str; 4] = [
    "fdbroker_gpus",
    "fdbroker_peak_gpus",
    "fdbroker_gpu_allocations",
    "fdbroker_gpu_shared_bytes",
];

#[test]
fn metrics_when_every_scenario_has_been_played_then_each_that_there_is_has_changed_as_predicted() {
    if !crate::shared::has_fds(2048) {
        return;
    }
    let names = Broker::start("metrics-every", &[]).page().names();
    let moved = SCENARIOS.iter().flat_map(|scenario| scenario.seen().moved());
    let mut moved: BTreeSet<_> =
        moved.chain([CONSTANT, HUNG, SWEPT, FIXED, LONGEST].map(str::to_owned)).collect();
    moved.extend(OF_OBJECTS.map(str::to_owned));
    moved.extend(OF_JOURNAL.into_iter().chain(OF_PLACES).chain(DROPPED).map(str::to_owned));
    moved.extend(
        OF_NODE.into_iter().chain(OF_DEBTS).chain(OF_CRASH).chain(OF_GPUS).map(str::to_owned),
    );
    let without: BTreeSet<_> = names.difference(&moved).collect();
    assert!(without.is_empty(), "no scenario changes {without:?}: add it to one");
    let unknown: BTreeSet<_> = moved.difference(&names).collect();
    assert!(unknown.is_empty(), "a broker does not have {unknown:?}");
}
