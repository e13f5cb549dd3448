//! The list of cases. A case must never rely on another's process, switches or memory.

mod alone;
mod devices;
mod exports;
mod imports;
mod limits;
mod loader;
mod mapped;
mod pairs;
mod work;

use crate::apart::{LEGACY, LEGACY_POOL, Named, OPAQUE, OPAQUE_POOL, Switches};
use crate::fault::Outcome;
use crate::gpu::Gpu;
use crate::peer::CASE_TIMEOUT_S;
use crate::peer::count_fds;
use devices::{
    APART, CARDS, COMBINED, COMBINED_123, COMPOSITE, COMPOSITE_1, COMPOSITE_01_1, FLAT, FLAT_0_3,
    FLAT_NONE, ORDINAL, ORDINAL_23,
};

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
    /// Gets an open device. Afterwards the driver must have nothing left, and the process no more
    /// fds than before.
    WithGpu(fn(&Gpu) -> Outcome),
    /// Opens what it needs itself.
    Bare(fn() -> Outcome),
}

/// Runs the case in this process, whose switches are set.
pub fn run(case: &Case) -> Outcome {
    nix::unistd::alarm::set(CASE_TIMEOUT_S);
    match case.body {
        Body::Bare(body) => body(),
        Body::WithGpu(body) => {
            let gpu = Gpu::open()?;
            let fds_before = count_fds()?;
            body(&gpu)?;
            gpu.nothing_left()?;
            crate::fault::same("open fds afterwards", count_fds()?, fds_before)
        }
    }
}

const DRIVER_CLOSES: Switches = &[("ZE_TEST_DRIVER_IMPORT_FD", "driver-closes")];
const CALLER_CLOSES: Switches = &[("ZE_TEST_DRIVER_IMPORT_FD", "caller-closes")];
const MISTYPED: Switches = &[("ZE_TEST_DRIVER_HANDLES", "opaqe")];
const NO_DRIVER: Switches = &[("ZE_ENABLE_ALT_DRIVERS", "/no/such/driver.so")];
const NO_HELPER: Switches = &[("ZE_TEST_DRIVER_HELPER", "/no/such/helper")];

macro_rules! cases {
    ($($name:literal: $kind:ident($body:path), $switches:ident;)*) => {
        &[$(Case { name: $name, switches: $switches, body: Body::$kind($body) },)*]
    };
}

#[rustfmt::skip]
pub const CASES: &[Case] = cases! {
    "loader_when_old_lacks_put_as_an_error_value": WithGpu(loader::lacks_what_its_version_lacks), LEGACY;
    "init_when_no_driver_is_there_is_an_error_value": Bare(loader::no_driver), NO_DRIVER;
    "init_when_a_switch_is_mistyped_fails": Bare(loader::init_fails), MISTYPED;
    "init_when_the_helper_is_missing_fails": Bare(loader::init_fails), NO_HELPER;

    "devices_when_flat_are_tiles": Bare(devices::flat), FLAT;
    "devices_when_composite_are_cards_with_tiles": Bare(devices::composite), COMPOSITE;
    "devices_when_combined_are_tiles_that_say_so": Bare(devices::combined), COMBINED;
    "devices_when_cards_have_one_tile_are_cards": Bare(devices::cards), CARDS;
    "devices_when_flat_and_masked_are_tiles_by_number": Bare(devices::flat_0_3), FLAT_0_3;
    "init_when_a_flat_mask_names_tiles_of_cards_fails": Bare(loader::init_fails), FLAT_NONE;
    "devices_when_composite_and_masked_are_the_card": Bare(devices::composite_1), COMPOSITE_1;
    "devices_when_a_mask_leaves_one_tile_are_that_tile": Bare(devices::composite_01_1), COMPOSITE_01_1;
    "devices_when_combined_and_masked_are_tiles_by_number": Bare(devices::combined_123), COMBINED_123;
    "uuids_when_old_are_the_cards_number_in_the_process": Bare(devices::all_ordinals), ORDINAL;
    "uuids_when_old_and_masked_are_those_of_other_cards": Bare(devices::masked_ordinals), ORDINAL_23;
    "roots_when_combined_are_the_cards": Bare(devices::combined_roots), COMBINED;
    "roots_when_flat_are_hidden": Bare(devices::no_roots), FLAT;
    "roots_when_composite_are_none": Bare(devices::composite_has_no_root), COMPOSITE;
    "peers_when_linked_reach_each_other": Bare(devices::reached), FLAT;
    "peers_when_apart_reach_their_own_card": Bare(devices::apart), APART;
    "memory_of_a_tile_when_opened_elsewhere_stays_there": Bare(devices::tile_stays), FLAT;
    "memory_of_a_card_when_opened_elsewhere_stays_there": Bare(devices::card_stays), COMPOSITE;

    "memory_when_written_is_read_back": WithGpu(alone::read_back), LEGACY;
    "memory_when_pooled_is_read_back": WithGpu(alone::read_back), LEGACY_POOL;
    "copy_when_past_the_end_is_refused": WithGpu(alone::past_the_end), LEGACY;
    "address_when_freed_and_taken_again_has_another_id": WithGpu(alone::another_id), LEGACY;
    "pointer_when_not_the_drivers_is_unknown": WithGpu(alone::unknown_pointer), LEGACY;
    "free_when_twice_or_inside_is_refused": WithGpu(alone::wrong_free), LEGACY;
    "allocation_when_exportable_is_never_pooled": WithGpu(alone::never_pooled), LEGACY_POOL;
    "lists_when_executed_run_and_signal": WithGpu(work::lists_fences_events), LEGACY;
    "events_when_not_signalled_are_not_ready": WithGpu(work::events), LEGACY;
    "memory_when_2000_pieces_under_64_fds_costs_no_fd": WithGpu(limits::no_fd_per_allocation), LEGACY;
    "export_when_the_fd_table_is_full_is_out_of_host_memory": WithGpu(limits::full_table), LEGACY;

    "physical_memory_when_mapped_elsewhere_keeps_its_bytes": WithGpu(mapped::mapped_again), LEGACY;
    "physical_memory_when_destroyed_closes_its_fd": WithGpu(mapped::exported_fd), LEGACY;
    "physical_memory_when_destroyed_while_mapped_is_gone": WithGpu(mapped::destroyed_while_mapped), OPAQUE;
    "addresses_when_given_back_are_unmapped": WithGpu(mapped::released_while_mapped), LEGACY;

    "get_when_repeated_is_one_fd_legacy": WithGpu(exports::one_fd), LEGACY;
    "get_when_repeated_is_one_fd_opaque": WithGpu(exports::one_fd), OPAQUE;
    "put_when_last_closes_the_fd": WithGpu(exports::last_put), LEGACY;
    "put_when_last_closes_the_fd_opaque": WithGpu(exports::last_put), OPAQUE;
    "put_when_pooled_counts_over_the_pool": WithGpu(exports::put_pooled), LEGACY_POOL;
    "put_when_an_export_fd_is_out_closes_it_all_the_same": WithGpu(exports::put_closes_export_fd), LEGACY;
    "free_when_handles_are_out_closes_the_fd": WithGpu(exports::free_closes), LEGACY;
    "free_when_extended_closes_the_fd": WithGpu(exports::free_ext_closes), OPAQUE;
    "pooled_when_exported_share_fd_not_offset": WithGpu(exports::pooled), LEGACY_POOL;
    "pooled_when_exported_share_fd_not_offset_opaque": WithGpu(exports::pooled), OPAQUE_POOL;
    "exported_fd_when_looked_at_is_what_the_broker_takes": WithGpu(exports::acceptable), LEGACY;
    "fd_functions_when_asked_know_own_fds_only": WithGpu(exports::own_fds_only), LEGACY;
    "host_memory_when_exported_by_fd_is_refused": WithGpu(exports::host_memory), LEGACY;

    "handle_when_opened_twice_is_two_pointers": WithGpu(imports::opened_twice), LEGACY;
    "import_when_freed_is_closed": WithGpu(imports::freed), LEGACY;
    "handle_when_opened_twice_is_two_pointers_opaque": WithGpu(imports::opened_twice), OPAQUE_POOL;
    "import_fd_when_it_succeeds_is_closed_by_the_driver": WithGpu(imports::driver_closes), DRIVER_CLOSES;
    "import_fd_when_older_stays_open": WithGpu(imports::caller_closes), CALLER_CLOSES;
    "import_fd_when_refused_stays_open": WithGpu(imports::refused_stays_open), DRIVER_CLOSES;
    "import_when_exported_again_is_the_same_memory": WithGpu(imports::exported_again), LEGACY;
    "handle_when_garbage_is_refused": WithGpu(imports::garbage), LEGACY;
    "handle_when_garbage_is_refused_opaque": WithGpu(imports::garbage), OPAQUE;

    "pair_when_fd_is_patched_shares_legacy": WithGpu(pairs::patched), LEGACY;
    "pair_when_fd_is_patched_shares_legacy_pool": WithGpu(pairs::patched), LEGACY_POOL;
    "pair_when_fd_is_patched_shares_opaque": WithGpu(pairs::patched), OPAQUE;
    "pair_when_fd_is_patched_shares_opaque_pool": WithGpu(pairs::patched), OPAQUE_POOL;
    "pair_when_by_value_opaque_shares": WithGpu(pairs::by_value_opaque), OPAQUE_POOL;
    "pair_when_by_value_legacy_is_refused": WithGpu(pairs::by_value_legacy), LEGACY;
    "pair_when_fd_has_the_exporters_number_legacy_shares": WithGpu(pairs::same_number_legacy), LEGACY;
    "pair_when_fd_has_the_exporters_number_opaque_is_refused": WithGpu(pairs::same_number_opaque), OPAQUE;
    "pair_when_fd_is_imported_shares_driver_closes": WithGpu(pairs::imported_driver_closes), DRIVER_CLOSES;
    "pair_when_fd_is_imported_shares_caller_closes": WithGpu(pairs::imported_caller_closes), CALLER_CLOSES;
    "pair_when_the_producer_is_killed_the_import_lives": WithGpu(pairs::producer_killed), LEGACY;
    "pair_when_the_producer_is_killed_its_fd_is_gone_opaque": WithGpu(pairs::fetch_from_the_dead), OPAQUE;
    "pair_when_a_fetched_number_means_other_memory_is_stale": WithGpu(pairs::stale_fetch), OPAQUE;
};
