//! The arguments of `fdbroker top` and their help. Must never do anything.

use std::time::Duration;

/// Shortest interval: each look costs the broker some pages of answers.
const LEAST_INTERVAL_S: f64 = 0.1;
/// Longest: an hour, as good as none.
const MOST_INTERVAL_S: f64 = 3600.0;

const HELP: &str = "\
In it the key h shows all keys: q quit, p pause, s sort, r reverse, / filter, arrows scroll, + and - the interval.

Events are those of `fdbroker watch`, with the broker's own times (UTC), newest first; several in a row that differ in their
allocation alone are one line. Where the broker takes no further watcher, or is too fast to be followed, a line says so.
A broker that has ended is looked for until one runs again. A service that was stopped is not started for it, where the file
`generations` beside the socket can be read, as root and the broker's own user can.

With --once two looks are taken, an interval apart, so that there are rates; events are those between them. The frame is
as large as the terminal, else 80x24; colours on a terminal only, and not with NO_COLOR. For each refresh at most some
4,096 clients and 8,192 leases are read; where there are more, the frame says so.
pinned_bytes is charged to each holder: ended memory that two processes hold is counted twice.

Examples:
  fdbroker top
  fdbroker top --interval 0.2
  fdbroker top --once > frame.txt";

/// Watch the node live: caps as bars, rates, the biggest holders, the oldest leases, events
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Print one frame as text and end
    #[arg(long)]
    pub once: bool,
    /// Time between two looks at the broker, at least 0.1
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub interval: Duration,
}

/// Reads an interval in seconds.
pub fn interval(text: &str) -> std::result::Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is no number of seconds"))?;
    match (LEAST_INTERVAL_S..=MOST_INTERVAL_S).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err(format!("it must be from {LEAST_INTERVAL_S} to {MOST_INTERVAL_S} seconds")),
    }
}
