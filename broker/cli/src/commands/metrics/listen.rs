//! The address that metrics are served at: a Unix socket or a loopback port. Must never accept an
//! address that other machines reach: the metrics name users and jobs.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// Where the metrics are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// HTTP over a Unix socket, mode 0600.
    Unix(PathBuf),
    /// HTTP, loopback only: every user of the machine can read it.
    Loopback(SocketAddr),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = "write unix:PATH, 127.0.0.1:PORT or [::1]:PORT";
        if let Some(path) = text.strip_prefix("unix:") {
            return match path {
                "" => Err(form.into()),
                path => Ok(Listen::Unix(path.into())),
            };
        }
        match text.parse::<SocketAddr>() {
            Ok(address) if address.ip().is_loopback() => Ok(Listen::Loopback(address)),
            Ok(_) => Err(format!(
                "others would reach it: there is no password, and it names users and jobs; {form}, and put a proxy before it"
            )),
            Err(_) => Err(form.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listen_when_a_path_or_loopback_then_taken_and_all_else_is_refused() {
        assert_eq!("unix:/run/x".parse(), Ok(Listen::Unix("/run/x".into())));
        for good in ["127.0.0.1:9400", "127.8.8.8:0", "[::1]:9400"] {
            assert!(matches!(good.parse(), Ok(Listen::Loopback(_))), "{good}");
        }
        for bad in ["0.0.0.0:9400", "192.168.1.2:9400", "[::]:9400", "[2001:db8::1]:9400"] {
            let error = bad.parse::<Listen>().expect_err(bad);
            assert!(error.contains("others"), "{error}");
        }
        for broken in ["", "unix:", "9400", ":9400", "localhost:9400", "127.0.0.1", "/run/x"] {
            let error = broken.parse::<Listen>().expect_err(broken);
            assert!(error.contains("unix:PATH"), "{error}");
        }
    }
}
