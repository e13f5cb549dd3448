//! The daemon's flags. Must never decide what a flag means, nor which of two sources wins: the
//! other modules of this folder do.

use std::path::PathBuf;

// A plain comment: a doc comment would become the help of the command that flattens this.
#[allow(missing_docs)]
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Args {
    /// Configuration file (TOML). Default: /etc/fdbroker/fdbrokerd.toml if it exists; none with
    /// --private
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Print the effective settings, or what is wrong with them, and end
    #[arg(long)]
    pub check_config: bool,

    /// Socket for clients. Default: /run/fdbroker/broker.sock as root, else
    /// $XDG_RUNTIME_DIR/fdbroker/broker.sock
    #[arg(long, value_name = "PATH", conflicts_with = "private")]
    pub socket: Option<PathBuf>,

    /// Socket for administrators; the node key and the generation page stand beside it. Default:
    /// admin.sock in the directory of the clients' socket with "-admin" appended
    #[arg(long, value_name = "PATH", conflicts_with = "private")]
    pub admin_socket: Option<PathBuf>,

    /// Serve one user or job from DIR (made if missing, mode 0700): DIR/fdbroker/broker.sock,
    /// DIR/fdbroker-admin/admin.sock
    #[arg(long, value_name = "DIR")]
    pub private: Option<PathBuf>,

    /// Most fds of shared memory on the node: held here and granted to clients. Default: the size
    /// of the fd table
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub max_fds: Option<u64>,

    /// Size of the broker's own fd table. Default: the hard RLIMIT_NOFILE, at most 1048576
    #[arg(long, value_name = "N")]
    pub table_fds: Option<u64>,

    /// Set any key of the configuration file; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,

    /// Log level: off, error, warn, info, debug. Default: info
    #[arg(long, value_name = "LEVEL")]
    pub log: Option<log::LevelFilter>,

    /// Write "READY" and a newline to fd N when clients can connect, then close it
    #[arg(long, value_name = "N")]
    pub ready_fd: Option<i32>,

    /// End, as by SIGTERM, when fd N (a pipe or socket) reports the end of its file
    #[arg(long, value_name = "N")]
    pub until_eof: Option<i32>,

    /// Take over from the broker that serves the same place now: its clients go on and notice
    /// nothing, and it ends. For upgrades of a broker that no service manager restarts
    #[arg(long)]
    pub takeover: bool,

    /// Kernel features to do without, for tests: peer_pidfd, pidfd_open, dupfd_query, pass_rights
    #[arg(long, value_name = "LIST", hide = true)]
    pub without_kernel_features: Option<String>,
}
