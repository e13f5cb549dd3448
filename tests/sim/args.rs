//! The simulator's command line. Must never guess: what it does not know is an error.

use crate::runner;

/// What is printed for `--help`.
pub const HELP: &str = "\
usage: tests/sim/run.sh [--release] [OPTIONS] [NAME]      (or: cargo test -p fdbroker-core --test sim -- [OPTIONS] [NAME])

NAME           only the scenarios whose name contains it
--without NAME leaves out the scenarios whose name contains NAME; any number of these
--seed N       one seed instead of the fixed seeds 1 to 4
--steps N      steps in all (default 1,200,000; by cargo test 200,000)
--config NAME  one configuration instead of all
--threads N    worlds at a time (default: one per core); the outcome is the same
--soak         random seeds until SIGINT or SIGTERM; prints a line a minute, and violations at once
--fail-fast    start no further world or scenario after a violation
--trace        print every input and effect (one thread)
--list         names of scenarios and configurations
--help         this text";

#[derive(Clone, Debug, Default)]
pub struct Args {
    pub seed: Option<u64>,
    pub steps: Option<u64>,
    pub config: Option<String>,
    pub name: Option<String>,
    pub without: Vec<String>,
    pub threads: Option<u64>,
    pub soak: bool,
    pub fail_fast: bool,
    pub trace: bool,
    pub list: bool,
    pub help: bool,
}

impl Args {
    /// Whether all scenarios and configurations run.
    pub fn is_whole(&self) -> bool {
        self.config.is_none() && self.name.is_none() && self.without.is_empty()
    }
}

/// Reads the command line, without the program's name.
pub fn parse(mut given: impl Iterator<Item = String>) -> Result<Args, String> {
    let mut args = Args::default();
    while let Some(arg) = given.next() {
        let mut number = || -> Result<u64, String> {
            let value = given.next().ok_or_else(|| format!("{arg} needs a number"))?;
            value.replace(['_', ','], "").parse().map_err(|_| format!("{arg} {value}: no number"))
        };
        match arg.as_str() {
            "--seed" => args.seed = Some(number()?),
            "--steps" => args.steps = Some(number()?),
            "--threads" => args.threads = Some(number()?),
            "--config" => {
                let name = given.next().unwrap_or_default();
                if !runner::all_configs().any(|known| known == name) {
                    let names: Vec<&str> = runner::all_configs().collect();
                    return Err(format!("no configuration `{name}`; one of: {}", names.join(", ")));
                }
                args.config = Some(name);
            }
            "--soak" => args.soak = true,
            "--fail-fast" => args.fail_fast = true,
            "--without" => args.without.extend(given.next()),
            "--trace" => args.trace = true,
            "--list" => args.list = true,
            "--help" | "-h" => args.help = true,
            // Cargo and its runners pass these to every test program.
            "--nocapture" | "--quiet" | "-q" | "--exact" | "--show-output" => {}
            "--test-threads" | "--format" | "--color" => drop(given.next()),
            name if !name.starts_with('-') => args.name = Some(name.to_owned()),
            other => return Err(format!("unknown option {other}")),
        }
    }
    Ok(args)
}
