//! The arguments of `fdbroker get` and their help. Must never act on them.

use crate::by_name::{name, time};
use std::path::PathBuf;
use std::time::Duration;

const HELP: &str = "\
Without --timeout an object that is not there is an error at once; with it the command waits until somebody has made it. What is
in the making counts as not there. The bytes are those of one version, whatever becomes of the name meanwhile.

Several names, or a NAME that ends in `/`, which means all names that begin so, are got at one moment: never two versions of a
group mixed, at most 253 objects. They go to the folder -O DIR, which is made if it is not there: the object model/a of `model/`
to DIR/a, and of several names each to its part after the last `/`. --timeout waits for names, not for what begins so, and bounds
the wait for a broker that does not answer (10 s without it; 50 ms at least).

Examples:
  fdbroker get model/a > weights.bin
  fdbroker get model/a -O weights.bin
  fdbroker get model/ -O weights
  fdbroker get model/a model/b -O weights --timeout 30s
  fdbroker get model/a --timeout 30s | sha256sum
  fdbroker get model/a -O weights.bin --json | jq .version
  fdbroker get model/a --meta

With --json, what cannot be had is {\"objects\":[{\"name\":...,\"done\":false,\"error\":\"NOT_FOUND\"}]}, as with put, rm and pin.

Exit status 4: no such object, or it was not made in time.";

/// Write the bytes of objects
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Names of the objects, or what their names begin with
    #[arg(required = true, value_name = "NAME", value_parser = name)]
    pub names: Vec<String>,
    /// Write to this file, or into this folder, instead of standard output; `-` is standard output
    #[arg(short = 'O', long, value_name = "FILE", value_hint = clap::ValueHint::AnyPath)]
    pub output: Option<PathBuf>,
    /// Wait so long until they are there, such as 500ms, 30s, 5m
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub timeout: Option<Duration>,
    /// Write its metadata instead of its bytes
    #[arg(long)]
    pub meta: bool,
    /// The names are those of this process's job (its cgroup), not of the user
    #[arg(long)]
    pub job: bool,
    /// Describe each in one line of JSON: name, version, size, metadata. The bytes go to -O FILE,
    /// if that is given
    #[arg(short = 'J', long, conflicts_with = "meta")]
    pub json: bool,
}
