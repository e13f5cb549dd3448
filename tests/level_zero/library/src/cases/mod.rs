//! The list of cases. A case must never rely on another's process, switches, broker or memory.

mod absent;
mod ends;
mod exports;
mod gpus;
mod limits;
mod objects;
mod pairs;

pub use gpus::tell as tell_gpus;

use crate::apart::{LEGACY, LEGACY_POOL, Named, ONE_NUMBER, OPAQUE, OPAQUE_POOL, Switches};
use crate::fault::{Outcome, same};
use crate::limits::{CASE_TIMEOUT_S, LOOK_INTERVAL, PATIENCE};
use crate::node::Node;
use crate::rank::{Rank, count_fds};
use std::time::Instant;

/// A case, with the switches that its process gets.
pub struct Case {
    pub name: &'static str,
    pub switches: Switches,
    body: Body,
}

impl Case {
    /// The case, for the process that starts it.
    pub fn named(&self) -> Named {
        Named { name: self.name, switches: self.switches }
    }
}

enum Body {
    /// Gets a broker, and a rank in this process. Afterwards driver and broker must have nothing
    /// left, and the process no more fds than before.
    WithRank(fn(&Node, &mut Rank) -> Outcome),
    /// The same, with a broker that may have [`FEW_FDS`].
    WithFewFds(fn(&Node, &mut Rank) -> Outcome),
    /// Opens what it needs itself.
    Bare(fn() -> Outcome),
}

/// A cap below the number of allocations, with more than one fd for each process of the case.
const FEW_FDS: &str = "caps.node.fds=24";

/// Runs the case in this process, whose switches are set.
pub fn run(case: &Case) -> Outcome {
    nix::unistd::alarm::set(CASE_TIMEOUT_S);
    match case.body {
        Body::Bare(body) => body(),
        Body::WithRank(body) => with_rank(&[], body),
        Body::WithFewFds(body) => with_rank(&[FEW_FDS], body),
    }
}

fn with_rank(settings: &[&str], body: fn(&Node, &mut Rank) -> Outcome) -> Outcome {
    let node = Node::start(settings)?;
    let mut rank = Rank::start(&node.socket(), 2)?;
    let fds_before = count_fds()?;
    body(&node, &mut rank)?;
    rank.clear()?;
    rank.gpu.nothing_left()?;
    // The library's thread may hold an arena for a moment longer than its owner.
    let limit = Instant::now() + PATIENCE;
    while count_fds()? > fds_before && Instant::now() < limit {
        std::thread::sleep(LOOK_INTERVAL);
    }
    same("open fds afterwards", count_fds()?, fds_before)?;
    drop(rank);
    for what in ["/stored_fds", "/open_leases/now", "/mapped_leases/now", "/allocations/now"] {
        node.until_count(what, 0)?;
    }
    Ok(())
}

const DRIVER_CLOSES: Switches = &[("ZE_TEST_DRIVER_IMPORT_FD", "driver-closes")];
const CALLER_CLOSES: Switches = &[("ZE_TEST_DRIVER_IMPORT_FD", "caller-closes")];
const OPAQUE_CALLER_CLOSES: Switches =
    &[("ZE_TEST_DRIVER_HANDLES", "opaque"), ("ZE_TEST_DRIVER_IMPORT_FD", "caller-closes")];
const NO_DRIVER: Switches = &[("ZE_ENABLE_ALT_DRIVERS", "/no/such/driver.so")];

macro_rules! cases {
    ($($name:literal: $kind:ident($body:path), $switches:ident;)*) => {
        &[$(Case { name: $name, switches: $switches, body: Body::$kind($body) },)*]
    };
}

#[rustfmt::skip]
pub const CASES: &[Case] = cases! {
    "device_when_no_driver_is_there_is_not_supported_with_the_reason": Bare(absent::no_driver), NO_DRIVER;
    "device_when_opened_says_what_it_is": Bare(absent::opened), LEGACY;
    "device_when_forked_is_not_supported_in_the_child": Bare(absent::forked), LEGACY;
    "gpu_when_seen_by_another_hierarchy_or_mask_is_the_same": Bare(gpus::hierarchies), LEGACY;
    "gpu_when_counted_otherwise_here_has_this_processes_number_or_none": Bare(gpus::ordinals), LEGACY;
    "gpu_when_its_driver_made_uuids_of_ordinals_goes_by_its_address": Bare(gpus::old_drivers), LEGACY;

    "own_when_by_value_is_shared_driver_closes": WithRank(pairs::own), DRIVER_CLOSES;
    "own_when_by_value_is_shared_caller_closes": WithRank(pairs::own), CALLER_CLOSES;
    "own_when_by_value_is_shared_opaque": WithRank(pairs::own), OPAQUE;
    "own_when_by_value_is_shared_opaque_caller_closes": WithRank(pairs::own), OPAQUE_CALLER_CLOSES;
    "pointer_when_by_value_is_shared_legacy": WithRank(pairs::foreign), LEGACY;
    "pointer_when_by_value_is_shared_opaque": WithRank(pairs::foreign), OPAQUE;
    "pointer_when_by_value_is_shared_legacy_pool": WithRank(pairs::foreign), LEGACY_POOL;
    "pointer_when_by_value_is_shared_opaque_pool": WithRank(pairs::foreign), OPAQUE_POOL;
    "pointer_when_the_fd_has_the_exporters_number_is_shared_opaque": WithRank(pairs::same_number), OPAQUE;
    "pointer_when_the_fd_has_the_exporters_number_is_shared_legacy": WithRank(pairs::same_number), LEGACY;
    "pointer_when_the_exporter_has_the_importers_fd_number_open_is_shared_one_number": WithRank(pairs::number_taken), ONE_NUMBER;
    "handle_when_opened_twice_and_closed_twice_is_two_imports": WithRank(pairs::twice), OPAQUE_POOL;
    "closer_when_set_is_not_found_out": WithRank(pairs::closer_set), CALLER_CLOSES;
    "import_when_its_owner_is_killed_keeps_the_memory_own": WithRank(pairs::owner_killed_own), LEGACY;
    "import_when_its_owner_is_killed_keeps_the_memory_pointer": WithRank(pairs::owner_killed_foreign), OPAQUE;

    "rounds_when_many_leak_no_fd_driver_closes": WithRank(limits::rounds_own), DRIVER_CLOSES;
    "rounds_when_many_leak_no_fd_caller_closes": WithRank(limits::rounds_own), CALLER_CLOSES;
    "rounds_when_many_leak_no_fd_pointer": WithRank(limits::rounds_foreign), LEGACY;
    "rounds_when_many_leak_no_fd_pointer_opaque_pool": WithRank(limits::rounds_foreign), OPAQUE_POOL;
    "exports_when_many_are_freed_leak_no_fd": WithRank(limits::export_rounds), LEGACY;
    "recall_when_the_cap_is_small_brings_back_the_bytes_own": WithFewFds(limits::recall_own), LEGACY;
    "recall_when_the_cap_is_small_brings_back_the_bytes_pointer": WithFewFds(limits::recall_foreign), OPAQUE;
    "recall_when_the_cap_is_small_brings_back_the_bytes_pool": WithFewFds(limits::recall_foreign), LEGACY_POOL;
    "allocations_when_2000_under_256_fds_are_shared_own": WithRank(limits::many_own), LEGACY;
    "allocations_when_2000_under_256_fds_are_shared_pointer": WithRank(limits::many_foreign), OPAQUE;
    "export_when_the_fd_table_is_full_is_local_fd_limit_and_nothing_is_lost": WithRank(limits::full_table), LEGACY;

    "pointer_when_exported_twice_is_one_fd_at_the_broker": WithRank(exports::one_fd), LEGACY;
    "pointers_when_in_one_allocation_are_one_allocation": WithRank(exports::interior), OPAQUE;
    "pointers_when_in_one_pool_are_allocations_of_their_own": WithRank(exports::pooled), LEGACY_POOL;
    "cache_when_a_pointer_is_inside_gives_its_address": WithRank(exports::cached), OPAQUE_POOL;
    "export_when_done_leaves_an_fd_only_where_put_is_missing": WithRank(exports::no_fd_left), LEGACY;
    "export_when_the_application_holds_a_handle_leaves_it_open": WithRank(exports::application_handle), LEGACY;
    "pointer_when_no_memory_of_the_driver_is_stale": WithRank(exports::not_the_drivers), LEGACY;
    "host_and_device_memory_when_registered_are_in_one_list": WithRank(exports::one_list), LEGACY;

    "object_when_made_on_a_device_is_read_by_it": WithRank(objects::on_device), LEGACY;

    "pointer_when_freed_and_allocated_again_is_stale": WithRank(ends::address_again), LEGACY;
    "pointer_when_freed_and_allocated_again_is_stale_opaque": WithRank(ends::address_again), OPAQUE;
    "pointer_when_freed_behind_our_back_is_not_brought_back": WithFewFds(ends::freed_behind), LEGACY;
    "pointer_when_retired_is_stale": WithRank(ends::retired), LEGACY;
    "buffer_when_dropped_is_stale_and_its_address_another": WithRank(ends::dropped), LEGACY;
    "handle_when_of_another_node_or_boot_is_wrong_node": WithRank(ends::another_node), LEGACY;
    "driver_data_when_garbage_are_refused_and_nothing_leaks": WithRank(ends::garbage), LEGACY;
    "driver_data_when_garbage_are_refused_and_nothing_leaks_opaque": WithRank(ends::garbage), OPAQUE;
};
