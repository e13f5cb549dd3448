//! The simulator's command line. Must never guess: what it does not know is an error.

use crate::setups;

/// What is printed for `--help`.
pub const HELP: &str = "\
usage: tests/sim/run.sh [OPTIONS] [NAME]      (or: cargo test --release -p fdbroker-core --test sim -- ...)

NAME           run only the scenarios whose name contains it
--seed N       one seed instead of the fixed list
--steps N      steps in all (default 1,200,000; 60,000 without --release)
--config NAME  one configuration instead of all
--threads N    worlds at a time (default: one per core); what comes out is the same
--soak         random seeds until stopped (SIGINT, SIGTERM); one line a minute, violations at once
--fail-fast    begin nothing more after a violation
--trace        print every input and effect (one thread)
--list         names of scenarios and configurations
--help         this";

/// What was asked for.
#[derive(Clone, Debug, Default)]
pub struct Args {
    pub seed: Option<u64>,
    pub steps: Option<u64>,
    pub config: Option<String>,
    pub name: Option<String>,
    pub threads: Option<u64>,
    pub soak: bool,
    pub fail_fast: bool,
    pub trace: bool,
    pub list: bool,
    pub help: bool,
}

impl Args {
    /// Everything that there is is to run.
    pub fn is_whole(&self) -> bool {
        self.config.is_none() && self.name.is_none()
    }
}

/// Reads the command line, the program's name left out.
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
                if !setups::NAMES.contains(&name.as_str()) {
                    return Err(format!("no configuration `{name}`: {}", setups::NAMES.join(", ")));
                }
                args.config = Some(name);
            }
            "--soak" => args.soak = true,
            "--fail-fast" => args.fail_fast = true,
            "--trace" => args.trace = true,
            "--list" => args.list = true,
            "--help" | "-h" => args.help = true,
            // What cargo and its runners pass to every test program.
            "--nocapture" | "--quiet" | "-q" | "--exact" | "--show-output" => {}
            "--test-threads" | "--format" | "--color" => drop(given.next()),
            name if !name.starts_with('-') => args.name = Some(name.to_owned()),
            other => return Err(format!("unknown option {other}")),
        }
    }
    Ok(args)
}
