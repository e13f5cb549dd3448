//! The arguments of `fdbroker metrics` and their help. Must never do anything.

use super::listen::Listen;

const HELP: &str = "\
Counts, peaks and caps of the node, times of grants and recalls, and what the 20 users and jobs with most fds are charged
for; the others are one, called other. Only loopback addresses are taken, and every user of the machine can read them
there; a Unix socket is for this user alone. fdbroker_up is 0 while no broker answers. A dashboard for Grafana is
systemd/grafana.json in the sources, share/doc/fdbroker/examples/grafana.json when installed.

Examples:
  fdbroker metrics
  fdbroker metrics --listen 127.0.0.1:9400                      then http://127.0.0.1:9400/metrics
  fdbroker metrics --listen unix:/run/fdbroker-metrics.sock &
  curl --unix-socket /run/fdbroker-metrics.sock http://localhost/metrics";

/// Print the broker's numbers as OpenMetrics text, or serve them to Prometheus
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    // Not a doc comment: rustdoc takes the brackets for a link.
    #[arg(
        long,
        value_name = "ADDRESS",
        help = "Serve them by HTTP until a signal: unix:PATH (mode 0600), 127.0.0.1:PORT or [::1]:PORT"
    )]
    pub listen: Option<Listen>,
}
