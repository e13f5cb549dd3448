//! One program for all fuzz targets. FDBROKER_FUZZ_TARGET names the target that libFuzzer feeds.
//! With FDBROKER_FUZZ_SEEDS the program writes the seeds to that directory instead. A target must
//! never panic unless the product is wrong.
#![no_main]

mod bytes;
mod memory;
mod seeds;
mod targets;

use libfuzzer_sys::fuzz_target;
use std::sync::OnceLock;

static TARGET: OnceLock<targets::Target> = OnceLock::new();

fuzz_target!(
    init: {
        if let Some(directory) = std::env::var_os("FDBROKER_FUZZ_SEEDS") {
            seeds::write_all(directory.as_ref());
            std::process::exit(0);
        }
        let name = std::env::var("FDBROKER_FUZZ_TARGET").unwrap_or_default();
        let target = targets::ALL.iter().find(|(target, _)| *target == name);
        let Some((_, run)) = target else {
            let names: Vec<_> = targets::ALL.iter().map(|(name, _)| *name).collect();
            eprintln!("FDBROKER_FUZZ_TARGET names no target; use one of: {}", names.join(" "));
            std::process::exit(2);
        };
        TARGET.get_or_init(|| *run);
    },
    |data: &[u8]| TARGET.get().expect("init has set it")(data)
);
