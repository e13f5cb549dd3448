//! The list of cases. A case must never rely on another's process, switches or memory.

use crate::apart::{LEGACY, LEGACY_POOL, Named, ONE_NUMBER, OPAQUE, OPAQUE_POOL, Switches};
use crate::fault::Outcome;
use crate::gpu::Gpu;
use crate::peer::CASE_TIMEOUT_S;
use crate::{
    broker, exporting, mapped, opening, sent, shapes, sharing, virtual_fds, ways, without,
};

/// A card whose memory is on both of its tiles.
const TWO_TILES: Switches = &[
    ("ZE_TEST_DRIVER_HANDLES", "legacy"),
    ("ZE_TEST_DRIVER_TILES", "two"),
    ("ZE_FLAT_DEVICE_HIERARCHY", "COMPOSITE"),
];
const TWO_TILES_OPAQUE: Switches = &[
    ("ZE_TEST_DRIVER_HANDLES", "opaque"),
    ("ZE_TEST_DRIVER_TILES", "two"),
    ("ZE_FLAT_DEVICE_HIERARCHY", "COMPOSITE"),
];

const FULL_CARD: Switches = &[("ZE_TEST_DRIVER_FULL", "at-first")];

/// A program that does not wait long for an owner that cannot give its fd.
const QUICK: Switches = &[("ZE_TEST_DRIVER_HANDLES", "legacy"), ("FDBROKER_LAYER_WAIT", "1")];

/// The same with handles of the other form. The broker needs milliseconds to start again.
const QUICK_OPAQUE: Switches =
    &[("ZE_TEST_DRIVER_HANDLES", "opaque"), ("FDBROKER_LAYER_WAIT", "5")];

/// A list of cases that run with the same broker, or without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// With the layer and a broker, whichever fds stand in handles.
    Broker,
    /// The same, where virtual fds stand there: the layer is preloaded.
    Virtual,
    /// The same, where the driver's fds stand there: it is not.
    Drivers,
    /// As `Virtual`, with peers in a PID namespace of their own.
    Namespaces,
    /// With the layer, and a broker that the case ends.
    Lost,
    /// With the layer, and no broker.
    NoBroker,
    /// With the layer, a broker, and two drivers.
    TwoDrivers,
}

impl List {
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "broker" => Some(Self::Broker),
            "virtual" => Some(Self::Virtual),
            "drivers" => Some(Self::Drivers),
            "namespaces" => Some(Self::Namespaces),
            "lost" => Some(Self::Lost),
            "no-broker" => Some(Self::NoBroker),
            "two-drivers" => Some(Self::TwoDrivers),
            _ => None,
        }
    }
}

/// A case, with the switches that its process gets.
pub struct Case {
    pub name: &'static str,
    pub list: List,
    pub switches: Switches,
    body: fn(&Gpu) -> Outcome,
}

impl Case {
    /// The case, for the process that starts it.
    pub fn named(&self) -> Named {
        Named { name: self.name, switches: self.switches }
    }
}

/// Runs the case in this process, whose switches are set. Afterwards driver and broker must have
/// nothing left.
pub fn run(case: &Case) -> Outcome {
    nix::unistd::alarm::set(CASE_TIMEOUT_S);
    let gpu = Gpu::open()?;
    (case.body)(&gpu)?;
    gpu.nothing_left()?;
    match case.list {
        List::Broker | List::Virtual | List::Drivers | List::Namespaces | List::TwoDrivers => {
            broker::wait_until_empty()
        }
        List::Lost | List::NoBroker => Ok(()),
    }
}

macro_rules! cases {
    ($($name:literal: $list:ident($body:path), $switches:ident;)*) => {
        &[$(Case { name: $name, list: List::$list, switches: $switches, body: $body },)*]
    };
}

#[rustfmt::skip]
pub const CASES: &[Case] = cases! {
    "handle_when_passed_by_value_shares_legacy": Broker(sharing::by_value), LEGACY;
    "handle_when_passed_by_value_shares_legacy_pool": Broker(sharing::by_value), LEGACY_POOL;
    "handle_when_passed_by_value_shares_opaque": Broker(sharing::by_value), OPAQUE;
    "handle_when_opened_again_and_again_costs_few_grants": Broker(sharing::opened_again), LEGACY;
    "handle_when_passed_by_value_shares_opaque_pool": Broker(sharing::by_value), OPAQUE_POOL;
    "handle_when_passed_by_value_shares_one_number": Broker(sharing::by_value), ONE_NUMBER;
    "handle_when_the_exporter_has_the_openers_fd_number_open_shares_opaque": Broker(sharing::number_taken), OPAQUE;
    "handle_when_the_exporter_has_the_openers_fd_number_open_shares_one_number": Broker(sharing::number_taken), ONE_NUMBER;
    "handle_when_passed_both_ways_at_once_shares": Broker(sharing::both_export), OPAQUE_POOL;
    "handle_when_the_program_puts_its_fd_there_shares_legacy_pool": Broker(sharing::programs_fd), LEGACY_POOL;
    "handle_when_the_program_puts_its_fd_there_shares_opaque_pool": Broker(sharing::programs_fd), OPAQUE_POOL;
    "handle_when_the_program_puts_its_fd_at_the_exporters_number_shares": Drivers(sharing::programs_fd_same_number), LEGACY;
    "handle_when_the_program_puts_a_foreign_fd_there_is_its_own_memory_legacy": Broker(sharing::foreign_fd), LEGACY;
    "handle_when_the_program_puts_a_foreign_fd_there_is_its_own_memory_opaque_pool": Broker(sharing::foreign_fd), OPAQUE_POOL;
    "handle_when_freed_is_refused_whatever_fd_is_in_it": Broker(sharing::freed_with_fd), OPAQUE;
    "producer_when_stopped_while_evicted_is_waited_for": Virtual(sharing::producer_stopped), LEGACY;
    "opener_when_its_table_was_full_at_first_opens_with_a_free_fd": Virtual(sharing::opener_full_at_first), LEGACY;
    "card_when_full_for_a_moment_has_room": Broker(ways::full_card), FULL_CARD;
    "producer_when_killed_leaves_the_import_and_ends_the_handle": Broker(sharing::producer_killed), LEGACY;
    "child_when_forked_connects_anew": Broker(sharing::forked), LEGACY;

    "handle_when_opened_twice_is_closed_twice_legacy": Broker(opening::twice), LEGACY;
    "handle_when_opened_twice_is_closed_twice_opaque_pool": Broker(opening::twice), OPAQUE_POOL;
    "opened_memory_when_freed_gives_its_lease_back": Broker(opening::freed), LEGACY;
    "fd_when_it_comes_at_the_exporters_number_is_moved": Drivers(opening::same_number), OPAQUE;
    "handle_when_of_another_node_is_refused": Broker(opening::other_node), LEGACY;
    "handle_when_its_bytes_are_changed_is_refused": Broker(opening::changed), OPAQUE;
    "handle_when_of_another_broker_is_opened_by_the_programs_fd": Broker(opening::other_broker_with_fd), OPAQUE;
    "handles_when_opened_by_many_threads_are_counted": Broker(opening::threads), OPAQUE;

    "get_when_repeated_is_one_registration": Broker(exporting::one_registration), LEGACY;
    "get_when_inside_is_the_whole_allocation": Broker(exporting::inside), LEGACY_POOL;
    "put_when_last_keeps_the_handle_until_the_memory_is_freed_legacy": Broker(exporting::put), LEGACY;
    "put_when_last_keeps_the_handle_until_the_memory_is_freed_opaque": Broker(exporting::put), OPAQUE;
    "put_when_not_last_keeps_the_handle_pool": Broker(exporting::put_not_last), LEGACY_POOL;
    "put_when_finished_succeeds": Broker(exporting::put_finished), LEGACY;
    "free_when_handles_are_out_ends_them": Broker(exporting::free), LEGACY;
    "free_when_extended_ends_them": Broker(exporting::free_ext), OPAQUE;
    "import_when_closed_ends_what_was_exported_of_it": Broker(exporting::import_closed), OPAQUE;
    "free_when_pooled_ends_its_own_alone": Broker(exporting::free_pooled), LEGACY_POOL;
    "address_when_freed_and_taken_again_never_shows_other_memory": Broker(exporting::address_reused), LEGACY;
    "fd_of_a_handle_when_asked_is_the_drivers": Broker(exporting::fd_of_handle), OPAQUE;

    "unmap_when_handles_are_out_ends_them": Broker(mapped::unmap), LEGACY;
    "addresses_when_given_back_end_the_handles_there": Broker(mapped::release), LEGACY;
    "physical_memory_when_destroyed_while_mapped_ends_its_handles": Broker(mapped::destroy), OPAQUE;
    "physical_memory_when_mapped_again_has_another_handle": Broker(mapped::mapped_again), LEGACY;

    "exports_when_238_under_256_fds_are_shared_by_value": Broker(shapes::bytes_238), LEGACY;
    "exports_when_950_under_1024_fds_are_shared_by_value": Broker(shapes::bytes_950), LEGACY;
    "exports_when_238_under_256_fds_are_shared_with_a_fetched_fd": Broker(shapes::fetched_238), LEGACY;
    "exports_when_950_under_1024_fds_are_shared_with_a_fetched_fd": Broker(shapes::fetched_950), LEGACY;
    "exports_when_238_under_256_fds_are_shared_by_the_fd_alone": Broker(shapes::fd_alone_238), LEGACY;
    "exports_when_950_under_1024_fds_are_shared_by_the_fd_alone": Broker(shapes::fd_alone_950), LEGACY;
    "exports_when_the_table_is_full_fail_and_show_no_other_memory": Drivers(shapes::full_table), QUICK;
    "fd_when_the_program_closes_it_is_never_passed_on": Drivers(shapes::closed_fd), LEGACY;

    "handles_when_put_at_once_are_shared_by_value": Broker(shapes::bytes_put), LEGACY_POOL;
    "handles_when_put_at_once_are_shared_with_a_fetched_fd": Virtual(shapes::fetched_put), OPAQUE_POOL;
    "handles_when_put_at_once_are_shared_by_the_fd_alone": Virtual(shapes::fd_alone_put), LEGACY_POOL;
    "handles_when_put_at_once_are_shared_by_the_fd_alone_opaque": Virtual(shapes::fd_alone_put), OPAQUE_POOL;
    "handles_when_put_at_once_are_shared_by_a_handle_of_the_fd": Virtual(shapes::of_fd_put), LEGACY_POOL;
    "handles_when_put_at_once_are_shared_by_the_number_alone": Virtual(shapes::number_put), OPAQUE_POOL;
    "exports_when_many_under_256_fds_hold_no_fd": Virtual(virtual_fds::no_fd_held), LEGACY;
    "exports_when_evicted_while_they_are_freed_never_show_other_memory": Virtual(virtual_fds::evicted_and_freed), LEGACY;
    "exports_when_the_owners_table_is_full_come_back_with_a_free_fd": Virtual(virtual_fds::full_table), QUICK;
    "virtual_fd_when_closed_ends_the_handle": Virtual(virtual_fds::closed), LEGACY;
    "virtual_fd_when_its_handle_is_got_twice_is_closed_twice": Virtual(virtual_fds::closed_twice), OPAQUE;
    "virtual_fd_when_sent_and_its_handle_put_is_good": Virtual(virtual_fds::sent_and_put), OPAQUE_POOL;
    "virtual_fds_when_sent_again_and_again_do_without_the_broker": Virtual(virtual_fds::sent_again), LEGACY;
    "virtual_fd_when_another_file_is_at_the_drivers_fd_is_the_memory": Virtual(sent::its_fd_taken), LEGACY;
    "virtual_fd_when_a_child_sends_it_is_the_parents_memory": Virtual(sent::forked), LEGACY;
    "virtual_fds_when_threads_send_and_free_them_never_are_other_memory": Virtual(sent::threads), OPAQUE;
    "fetched_fd_when_closed_leaves_its_import_counted": Virtual(virtual_fds::import_outlives_its_fd), LEGACY;
    "openings_when_1000_are_1000_grants_however_they_are_made": Virtual(virtual_fds::one_grant), LEGACY;
    "fetched_fd_when_of_other_or_freed_memory_leaves_the_answer_to_the_key": Virtual(virtual_fds::fetched_of_other), LEGACY;
    "get_when_repeated_makes_no_system_call": Virtual(virtual_fds::no_system_call), LEGACY;

    "handles_of_tiles_when_passed_by_value_are_one_memory_legacy": Broker(ways::tiles), TWO_TILES;
    "handles_of_tiles_when_passed_by_value_are_one_memory_opaque": Broker(ways::tiles), TWO_TILES_OPAQUE;
    "handle_of_one_tile_when_asked_for_by_name_is_the_handle": Broker(ways::one_tile), LEGACY_POOL;
    "handle_of_a_second_driver_when_asked_for_by_name_is_shared": TwoDrivers(ways::two_drivers), LEGACY;
    "external_fd_when_exported_is_the_drivers_own": Broker(ways::external_fd), LEGACY;
    "external_fd_when_memory_has_a_handle_is_the_fd_of_that": Virtual(ways::external_fd_of_handle), LEGACY;
    "external_fd_when_memory_has_a_handle_is_the_fd_of_that_opaque": Virtual(ways::external_fd_of_handle), OPAQUE;
    "external_fd_when_of_a_pool_stays_open_beside_handles": Virtual(ways::external_fd_of_pool), LEGACY_POOL;
    "external_fd_when_of_a_pool_stays_open_beside_handles_opaque": Virtual(ways::external_fd_of_pool), OPAQUE_POOL;
    "handle_of_a_virtual_fd_when_asked_is_its_own": Virtual(ways::handle_of_fd), OPAQUE_POOL;
    "event_pool_when_passed_by_value_is_shared": Virtual(ways::event_pool), LEGACY;
    "event_pool_when_its_fd_is_fetched_is_shared": Virtual(ways::event_pool_fetched), OPAQUE;
    "event_pool_when_destroyed_ends_its_handle": Virtual(ways::event_pool_destroyed), LEGACY;
    "event_pool_when_not_for_others_has_no_handle": Broker(ways::private_pool), LEGACY;

    "handles_when_in_another_pid_namespace_are_shared_by_value": Namespaces(shapes::bytes_apart), LEGACY;
    "handles_when_in_another_pid_namespace_are_shared_with_a_fetched_fd": Namespaces(shapes::fetched_apart), LEGACY_POOL;
    "handles_when_in_another_pid_namespace_are_shared_with_a_fetched_fd_opaque": Namespaces(shapes::fetched_apart), OPAQUE_POOL;
    "handles_when_in_another_pid_namespace_are_shared_by_the_fd_alone": Namespaces(shapes::fd_alone_apart), LEGACY_POOL;

    "broker_when_killed_is_waited_for_until_it_is_given_up": Lost(without::lost), QUICK_OPAQUE;
    "broker_when_absent_leaves_the_drivers_handles_legacy": NoBroker(without::absent), LEGACY;
    "broker_when_absent_leaves_the_drivers_handles_opaque": NoBroker(without::absent), OPAQUE_POOL;
};
