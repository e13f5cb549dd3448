//! The arguments of `fdbroker metrics` and their help. Must never do anything.

use super::listen::Listen;
use std::path::PathBuf;

const HELP: &str = "\
Counts, peaks and caps of the node, times of grants and recalls, and what the 20 users and jobs with most fds are charged
for; the others are one, called other; and what is shared of each GPU. Only loopback addresses are taken, and every user of
the machine can read them there; a Unix socket is for this user alone. fdbroker_up is 0 while no broker answers, also in the
file of --textfile, and then that ends with 3. The units fdbroker-metrics.service and fdbroker-textfile.timer run both. For
other machines put a proxy with TLS before --listen: docs/administration.md has one. A dashboard for Grafana and alert rules
are systemd/grafana.json and systemd/prometheus-rules.yml in the sources, and in share/doc/fdbroker/examples/ when installed.

Examples:
  fdbroker metrics
  fdbroker metrics --listen 127.0.0.1:9400                      then http://127.0.0.1:9400/metrics
  fdbroker metrics --listen unix:/run/fdbroker-metrics.sock &
  fdbroker metrics --textfile /var/lib/prometheus/node-exporter
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
    /// Write them to DIR/fdbroker.prom, at once and whole, for the textfile collector of
    /// Prometheus' node_exporter
    #[arg(long, value_name = "DIR", conflicts_with = "listen")]
    pub textfile: Option<PathBuf>,
    /// Leave out the series of jobs, whose names users choose
    #[arg(long)]
    pub without_jobs: bool,
}
