//! The arguments of `fdbroker get` and their help. Must never act on them.

use crate::by_name::{name, time};
use std::path::PathBuf;
use std::time::Duration;

const HELP: &str = "\
Without --timeout an object that is not there is an error at once; with it the command waits until somebody has made it. What is
in the making counts as not there. The bytes are those of one version, whatever becomes of the name meanwhile.

Examples:
  fdbroker get model/a > weights.bin
  fdbroker get model/a -O weights.bin
  fdbroker get model/a --timeout 30s | sha256sum
  fdbroker get model/a -O weights.bin --json | jq .version
  fdbroker get model/a --meta

Exit status 4: no such object, or it was not made in time.";

/// Write the bytes of an object
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Name of the object
    #[arg(value_parser = name)]
    pub name: String,
    /// Write to this file instead of standard output; `-` is standard output
    #[arg(short = 'O', long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// Wait so long until it is there, such as 500ms, 30s, 5m
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "0", hide_default_value = true)]
    pub timeout: Duration,
    /// Write its metadata instead of its bytes
    #[arg(long)]
    pub meta: bool,
    /// The name is one of this process's job (its cgroup), not of the user
    #[arg(long)]
    pub job: bool,
    /// Describe it in one line of JSON: name, version, size, metadata. The bytes go to -O FILE, if that is given
    #[arg(short = 'J', long, conflicts_with = "meta")]
    pub json: bool,
}
