//! The arguments of `fdbroker top` and their help. Must never do anything.

use std::time::Duration;

/// Shortest interval: each look costs the broker some pages of answers, in seconds.
const LEAST_INTERVAL_S: f64 = 0.1;
/// Longest interval in seconds: an hour.
const MOST_INTERVAL_S: f64 = 3600.0;

const HELP: &str = "\
The key h shows all keys: q quit, p pause, s sort, r reverse, / filter, arrows scroll, + and - change the interval.

Events are the events of `fdbroker watch`, newest first, with the broker's times (UTC). Events in a row that differ only in
their allocation are shown as one line. A line says so if the broker accepts no more watchers, or if events were lost.
When the broker has ended, top waits for the next one. A service that an administrator has stopped is not started by this
command, if the user may read the file `generations` beside the socket, as root and the broker's user may.

With --once, top looks twice, one interval apart, and prints one frame, with rates and events between the two looks. The
frame is as large as the terminal, else 80x24. Colours are used on a terminal only, and not with NO_COLOR. Each refresh reads
at most some 4,096 clients and 8,192 leases; the frame says so if there are more.
pinned_bytes is charged to each holder; the node counts memory once, however many processes hold it.

Examples:
  fdbroker top
  fdbroker top --interval 0.2
  fdbroker top --once > frame.txt";

/// Watch the node live: caps as bars, rates, the biggest holders, the oldest leases, events
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Print one frame as text, and end
    #[arg(long)]
    pub once: bool,
    /// Seconds between two looks at the broker, at least 0.1
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub interval: Duration,
}

/// Reads an interval in seconds.
pub fn interval(text: &str) -> std::result::Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is not a number of seconds"))?;
    if (LEAST_INTERVAL_S..=MOST_INTERVAL_S).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(format!("it must be from {LEAST_INTERVAL_S} to {MOST_INTERVAL_S} seconds"))
    }
}
