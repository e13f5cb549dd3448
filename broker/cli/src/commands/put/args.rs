//! The arguments of `fdbroker put` and their help. Must never act on them.

use crate::by_name::{name, time};
use fdbroker_protocol::limits::METADATA_BYTES;
use std::path::PathBuf;
use std::time::Duration;

const HELP: &str = "\
With one FILE the object is called NAME. With several, or when NAME ends in `/`, NAME is what their names begin with, and the
file's own name follows: `put model/ a.bin b.bin` makes model/a.bin and model/b.bin. `-` is standard input.

All objects of one `put` are a group: they appear at the same moment, with the same version, and share one piece of memory. Readers
see either all of the old ones or all of the new ones. The memory goes when the last name of the group is gone (`rm`, or
another `put --replace`) and its last reader has given it back.

How long they stay: this command ends at once, so it keeps what it makes. Without more they end when nobody has used them for
as long as the broker allows (limits.object_ttl_ms, a day unless set); --keep=TTL is a shorter time, --pin is until somebody
removes or unpins them. They end with a broker of `fdbroker run`, or one started by hand, which `put` says, and stay through an
upgrade of the service.

Without keep or pin a version ends with the process that made it (what `fdbroker put` makes is always kept). What replaces a version
takes over, at the seal, the keep and the pin that the old one has then, unless told otherwise by --keep, --pin or --no-pin; keep
and pin are two things: a new time does not end a pin. A time that is taken over is counted anew. Of several the longest counts, and
all are pinned if one was. --keep and --keep=0 are as long as the broker allows.

--expect N is for scripts that must not undo what another one did: NAME is replaced only if it has version N when all is read, as `put`,
`get` and `objects` show it with --json (.version); else nothing is put, and the error (VERSION) says which version it has. N = 0: the name
must be free. Of several files each name must have that version, as those of one earlier `put` have.

Examples:
  fdbroker put model/a weights.bin
  fdbroker put model/ *.safetensors --replace
  fdbroker put model/a weights.bin --pin --meta 'epoch=7'
  fdbroker get model/a -O old.bin --json | jq .version      12, say
  fdbroker put model/a new.bin --expect 12                  replaces what was got, and nothing that came later
  tar c dir | fdbroker put tree.tar - --keep=30s
  fdbroker run -- sh -c 'fdbroker put model/a FILE && fdbroker objects model/ && fdbroker get model/a | cmp - FILE'

Exit status 1: a name is in use (EXISTS; --replace allows it), it has another version than --expect says (VERSION), or a cap is full
(NO_QUOTA; `fdbroker limits` shows the caps).";

/// Make objects from files
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Name of the object, or what the names of several begin with
    #[arg(value_parser = name)]
    pub name: String,
    /// Files to read; `-` is standard input
    #[arg(required = true, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub files: Vec<PathBuf>,
    /// How long they stay after their last use, such as 30s, 10m, 2h [default: as what they
    /// replace, else as long as the broker allows]
    #[arg(long, value_name = "TTL", num_args = 0..=1, require_equals = true, default_missing_value = MOST, value_parser = time)]
    pub keep: Option<Duration>,
    /// Neither time nor lack of room ends them; `fdbroker pin --unpin` undoes it
    #[arg(long, conflicts_with_all = ["keep", "evictable"])]
    pub pin: bool,
    /// They are not pinned, though what they replace is
    #[arg(long, conflicts_with = "pin")]
    pub no_pin: bool,
    /// Take the place of objects that have these names
    #[arg(long)]
    pub replace: bool,
    /// Take the place of objects that have this version, and of no others; 0: the names must be
    /// free
    #[arg(long, value_name = "VERSION")]
    pub expect: Option<u64>,
    /// They may end sooner when the broker is short of memory, those used least recently first
    #[arg(long)]
    pub evictable: bool,
    /// Metadata of each object, at most 4096 bytes; `get --meta` prints it
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true, value_parser = metadata)]
    pub meta: String,
    /// One line of JSON
    #[arg(short = 'J', long)]
    pub json: bool,
}

/// What `--keep` without a time means.
const MOST: &str = "0";

fn metadata(text: &str) -> Result<String, String> {
    if text.len() <= METADATA_BYTES {
        Ok(text.to_owned())
    } else {
        Err(format!("{} bytes; at most {METADATA_BYTES} are possible", text.len()))
    }
}
