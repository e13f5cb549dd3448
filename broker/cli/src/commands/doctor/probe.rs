//! Asks a GPU driver for its devices, and tries a layer, in a process of its own: a driver may
//! hang, or end the process that loads it. Must never load either into the process that reports.

use super::program::answer;
use crate::private_broker::SELF;
use clap::ValueEnum;
use fdbroker_client::{Error, cuda, level_zero};
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Longest wait. A healthy driver answers in two seconds, even if it has to wake a GPU.
const PATIENCE: Duration = Duration::from_secs(20);

/// A driver that can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Driver {
    /// Drivers of Intel and others, by the Level Zero loader.
    LevelZero,
    /// NVIDIA's driver.
    Cuda,
}

impl Driver {
    fn word(self) -> &'static str {
        match self {
            Driver::LevelZero => "level-zero",
            Driver::Cuda => "cuda",
        }
    }
}

/// Ask a GPU driver for its devices, or whether a library is preloaded, for `doctor`
#[derive(Debug, clap::Args)]
pub struct ProbeArgs {
    /// The driver
    #[arg(required_unless_present = "preloaded")]
    pub driver: Option<Driver>,
    /// Whether this library is in this process
    #[arg(long, value_name = "PATH")]
    pub preloaded: Option<PathBuf>,
}

/// Whether the dynamic linker loads the library before a program; else the reason, as far as it is
/// known.
pub fn is_preloadable(library: &Path) -> Result<(), String> {
    let mut command = Command::new(SELF);
    command.args(["doctor-probe", "--preloaded"]).arg(library).env("LD_PRELOAD", library);
    match answer(&mut command, PATIENCE)? {
        (status, _) if status.success() => Ok(()),
        (status, said) if said.trim().is_empty() => {
            Err(format!("it ended the program that it was loaded into: {status}"))
        }
        _ => Err("the dynamic linker does not load it".into()),
    }
}

fn is_loaded(library: &Path) -> bool {
    let name = library.as_os_str().as_bytes();
    let maps = std::fs::read("/proc/self/maps").unwrap_or_default();
    maps.split(|byte| *byte == b'\n').any(|line| line.ends_with(name))
}

/// The names of a driver's devices, or the reason why there are none.
pub fn ask(driver: Driver) -> Result<String, String> {
    let mut command = Command::new(SELF);
    let (status, said) = answer(command.args(["doctor-probe", driver.word()]), PATIENCE)?;
    let said = said.trim().to_owned();
    match said.as_str() {
        _ if status.success() => Ok(said),
        "" => Err(format!("it ended the process that loaded it: {status}")),
        _ => Err(said),
    }
}

/// The hidden command: prints the devices, or the reason why there are none and gives the exit
/// status 1.
pub fn run(args: ProbeArgs) -> u8 {
    if let Some(library) = args.preloaded {
        let is_loaded = is_loaded(&library);
        println!("{is_loaded}");
        return u8::from(!is_loaded);
    }
    let devices = match args.driver.unwrap_or(Driver::Cuda) {
        Driver::LevelZero => level_zero::Device::count().and_then(|count| {
            names(count, |ordinal| Ok(level_zero::Device::open(ordinal)?.name().to_owned()))
        }),
        Driver::Cuda => cuda::Device::count().and_then(|count| {
            names(count, |ordinal| Ok(cuda::Device::open(ordinal)?.name().to_owned()))
        }),
    };
    match devices {
        Ok(text) => {
            println!("{text}");
            0
        }
        Err(error) => {
            println!("{error}");
            1
        }
    }
}

/// Most devices that are named; a node has eight or sixteen.
const MOST_NAMED: u32 = 16;

fn names(count: u32, name: impl Fn(u32) -> Result<String, Error>) -> Result<String, Error> {
    let mut by_name: BTreeMap<String, u32> = BTreeMap::new();
    for ordinal in 0..count.min(MOST_NAMED) {
        *by_name.entry(name(ordinal)?).or_default() += 1;
    }
    let each = by_name.iter().map(|(name, count)| match count {
        1 => name.clone(),
        count => format!("{count} of {name}"),
    });
    Ok(format!("{count}: {}", each.collect::<Vec<_>>().join(", ")))
}
