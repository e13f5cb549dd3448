//! Asks a GPU driver for its devices in a process of its own: a driver may hang, or end the process that loads it. Must never
//! load a driver into the process that reports.

use crate::private_broker::{SELF, end_now, wait_bounded};
use clap::ValueEnum;
use fdbroker_client::{Error, cuda, level_zero};
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Longest wait. A healthy driver answers in two seconds, even if it has to wake a GPU.
const PATIENCE: Duration = Duration::from_secs(20);

/// Most bytes of an answer that are read.
const MOST_BYTES: u64 = 4096;

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

/// Ask a GPU driver for its devices, for `doctor`
#[derive(Debug, clap::Args)]
pub struct ProbeArgs {
    /// The driver
    pub driver: Driver,
}

/// The names of a driver's devices, or the reason why there are none.
pub fn ask(driver: Driver) -> Result<String, String> {
    let child = Command::new(SELF)
        .args(["doctor-probe", driver.word()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = child.map_err(|error| format!("cannot be asked: {error}"))?;
    let status = wait_bounded(&mut child, PATIENCE);
    if status.is_none() {
        end_now(&mut child);
        return Err(format!("it hangs: no answer in {} s", PATIENCE.as_secs()));
    }
    let mut said = String::new();
    if let Some(stdout) = child.stdout.take() {
        // Bytes that are not text are no answer.
        let _ = stdout.take(MOST_BYTES).read_to_string(&mut said);
    }
    let said = said.trim().to_owned();
    match status {
        Some(status) if status.success() => Ok(said),
        Some(status) if said.is_empty() => {
            Err(format!("it ended the process that loaded it: {status}"))
        }
        _ => Err(said),
    }
}

/// The hidden command: prints the devices, or the reason why there are none and gives the exit status 1.
pub fn run(args: ProbeArgs) -> u8 {
    let devices = match args.driver {
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
    let names: Result<Vec<String>, Error> = (0..count.min(MOST_NAMED)).map(name).collect();
    Ok(format!("{count}: {}", names?.join(", ")))
}
