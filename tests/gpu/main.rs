//! The CUDA backend on a real GPU: real processes, the real daemon, the driver of the machine.
//! Prints each check, then a table of figures, then the same figures as JSON lines, and at the end
//! `N passed, N failed`. Must never pass for want of a GPU: without one it says what is missing and
//! ends with status 5.

mod checks;
mod costs;
mod devices;
mod node;
mod objects;
mod pattern;
mod peer;
mod rank;
mod report;
mod support;
mod wire;

use fdbroker_client::cuda::Device;
use report::Report;
use serde_json::json;
use std::process::ExitCode;
use std::time::Duration;

/// Exit status where there is no GPU, so that nobody takes it for a pass.
const NO_GPU: u8 = 5;

/// Longest time for all checks together: a driver that hangs must not hang this program's caller.
const TIME_LIMIT: Duration = Duration::from_secs(290);
/// The same for named objects alone: a device may be lent for a short time.
const TIME_LIMIT_OF_OBJECTS: Duration = Duration::from_secs(90);

/// The device, and the sizes that fit it.
#[derive(Debug)]
pub struct Setup {
    /// For looking at the free memory; nothing is allocated through it.
    pub device: Device,
    /// Smallest size of shared memory.
    pub granule: u64,
    /// A size so large that no other change of free memory hides it.
    pub large: u64,
}

type Checks = fn(&Setup, &mut Report);

/// The checks that the arguments name, and the MiB of named weights that they want.
fn checks_of(arguments: &[&str]) -> Option<(Checks, Option<u64>)> {
    match arguments {
        [] => Some((one_device, None)),
        ["objects"] => Some((named_objects, None)),
        ["objects", mib] => Some((named_objects, Some(mib.parse().ok().filter(|mib| *mib > 0)?))),
        ["devices"] => Some((several_devices, None)),
        ["devices-apart"] => Some((devices_apart, None)),
        _ => None,
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if arguments == ["rank"] {
        rank::play();
        return ExitCode::SUCCESS;
    }
    let Some((checks, mib)) = checks_of(&arguments) else {
        eprintln!(
            "usage: gpu [objects [MIB] | devices | devices-apart]; tests/gpu/README.md explains"
        );
        return ExitCode::from(2);
    };
    let limit = match arguments.first() {
        Some(&"objects") => TIME_LIMIT_OF_OBJECTS,
        _ => TIME_LIMIT,
    };
    let device = match Device::open(0) {
        Ok(device) => device,
        Err(error) => {
            eprintln!("tests/gpu: nothing can be run here: {error}");
            return ExitCode::from(NO_GPU);
        }
    };
    std::thread::spawn(move || {
        std::thread::sleep(limit);
        println!("FAILED   everything: not done after {} s", limit.as_secs());
        println!("0 passed, 1 failed");
        // The ranks end with this process.
        std::process::exit(1);
    });
    match run(device, checks, mib) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("tests/gpu: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(device: Device, checks: Checks, mib: Option<u64>) -> Result<bool, String> {
    let memory = device.memory_info().map_err(|error| error.to_string())?;
    let version = device.driver_version().map_err(|error| error.to_string())?;
    let granule = device.granularity() as u64;
    let driver = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let head = json!({
        "device": device.name(),
        "driver": driver.lines().next(),
        "cuda": format!("{}.{}", version / 1000, version % 1000 / 10),
        "granule_bytes": granule,
        "total_bytes": memory.total_bytes,
    });
    println!("{head}\n");
    let large = match mib {
        Some(mib) => (mib << 20) / objects::COUNT,
        None => (1 << 30).min(memory.total_bytes / 64),
    };
    let large = large.next_multiple_of(granule);
    let setup = Setup { device, granule, large };
    let mut report = Report::default();
    checks(&setup, &mut report);
    Ok(report.print(&head))
}

fn one_device(setup: &Setup, report: &mut Report) {
    report.check("8 processes share all to all, every byte right", |report| {
        checks::all_to_all(setup, report)
    });
    report.check("memory of a killed owner stays while it is mapped, and comes back", |report| {
        checks::killed_owner(setup, report)
    });
    report.check("memory of a killed owner that nobody has comes back at once", |report| {
        checks::killed_owner_unshared(setup, report)
    });
    report.check("freed memory stays until the last lease is released", |report| {
        checks::last_lease(setup, report)
    });
    report.check("the byte cap evicts, and recall brings it back with its data", |report| {
        checks::byte_cap(setup, report)
    });
    report.check("two exports of one allocation are one fd in the broker", |_| {
        checks::two_exports(setup)
    });
    report.check("free and allocate at the same address: the old handle is STALE", |_| {
        checks::same_address(setup)
    });
    report.check("2,000 allocations under RLIMIT_NOFILE 256", |report| {
        checks::under_256(setup, report)
    });
    report.check("a full fd table is LOCAL_FD_LIMIT, and nothing is lost", |_| {
        checks::full_table(setup)
    });
    report.check("dma-bufs of cuMemAlloc and VMM memory go through the broker", |report| {
        checks::dma_bufs(setup, report)
    });
    report.check("host and GPU memory stand in one `fdbroker ls`", |_| checks::one_list(setup));
    report.check("audit names the allocation of each CUDA fd without a lease", |_| {
        checks::audit(setup)
    });
    report
        .check("the import cache keeps device memory open", |report| checks::cache(setup, report));
    named_objects(setup, report);
    report.check("cost of export and import, cold and warm, and of a grant", |report| {
        costs::measure(setup, report)
    });
}

fn named_objects(setup: &Setup, report: &mut Report) {
    report.check("named weights outlive their maker, and a broker that is killed", |report| {
        objects::kept(setup, report)
    });
    report.check(
        "an object's memory comes back with its last reader, and with its maker",
        |report| objects::not_kept(setup, report),
    );
}

fn several_devices(setup: &Setup, report: &mut Report) {
    report.check("each device opens the memory of each other by handle", |report| {
        devices::reached(setup, report)
    });
    report.check("each device gets the objects of each other by name", |report| {
        devices::objects(setup, report, true)
    });
}

/// For a machine whose devices have no way to each other's memory.
fn devices_apart(setup: &Setup, report: &mut Report) {
    report.check("a device that cannot reach the memory says so", |_| devices::out_of_reach(setup));
    report.check("a device that cannot reach an object's memory says so", |report| {
        devices::objects(setup, report, false)
    });
}
