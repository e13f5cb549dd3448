//! Connects to look: over the administrators' socket, or where this user may not use that, over the
//! socket that shows users what is their own. Must never be used by a command that acts.

use super::{ADMIN_SOCKET_NAME, ADMIN_SUFFIX, ANSWER_LIMIT, Admin, again, find_socket};
use crate::error::{Error, Result};
use crate::output::aside;
use fdbroker_protocol::{ErrorCode, Scope};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The name of the socket for users, beside the clients' socket.
const VIEW_SOCKET_NAME: &str = "view.sock";

/// Longest wait for a place: other commands of the user have them all, most for some milliseconds.
const PLACE_PATIENCE: Duration = Duration::from_secs(3);

/// Time between two tries to get one.
const PLACE_RETRY: Duration = Duration::from_millis(20);

/// Connects to the broker that this process's environment names, and says so on a terminal where
/// only a part is seen.
pub fn connect() -> Result<Admin> {
    let admin = connect_quietly()?;
    if admin.is_own_part() {
        aside("your own part; root, the broker's user and its monitor_group see all");
    }
    Ok(admin)
}

/// The same, and says nothing.
pub fn connect_quietly() -> Result<Admin> {
    or_own_part(Admin::from_env(), ANSWER_LIMIT)
}

/// Connects again, if the broker runs; see [`again`].
pub fn connect_again() -> Result<Admin> {
    connect_again_within(ANSWER_LIMIT)
}

/// The same; `patience` bounds the connect and each answer.
pub fn connect_again_within(patience: Duration) -> Result<Admin> {
    or_own_part(again::connect_within(patience), patience)
}

/// What came of the administrators' socket, or the socket for users. Its error is the
/// administrators', which names the remedy; but where this user may not know whether a broker
/// answers there, and none answers at the other one, it is that.
fn or_own_part(admin: Result<Admin>, patience: Duration) -> Result<Admin> {
    let Err(error @ (Error::Denied { .. } | Error::NoBroker { .. })) = admin else { return admin };
    let variable = |name: &str| std::env::var_os(name);
    let Some(path) = find_view_socket(variable) else { return Err(error) };
    match view(&path, patience) {
        Err(Error::Denied { .. }) => Err(error),
        Err(Error::NoBroker { .. }) if matches!(error, Error::NoBroker { .. }) => Err(error),
        viewing => viewing,
    }
}

fn view(path: &Path, patience: Duration) -> Result<Admin> {
    let began = Instant::now();
    loop {
        let mut admin = Admin::connect_within(path, patience)?;
        match admin.status() {
            Ok(status) => {
                admin.scope = u8::try_from(status.scope.get()).ok().and_then(Scope::from_number);
                return Ok(admin);
            }
            // The broker ends a connection that has no place; its answer may be lost.
            Err(Error::Refused(ErrorCode::Again) | Error::Denied { .. } | Error::Lost { .. }) => {}
            Err(error) => return Err(error),
        }
        if began.elapsed() > PLACE_PATIENCE.min(patience) {
            return Err(Error::NoPlace { path: path.to_owned() });
        }
        std::thread::sleep(PLACE_RETRY);
    }
}

/// The socket for users that the environment names: beside `FDBROKER_SOCKET`, else of the broker
/// whose administrators' socket was looked for. `None`: that one's place does not tell.
fn find_view_socket(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    match set("FDBROKER_SOCKET") {
        Some(client) => Some(Path::new(&client).with_file_name(VIEW_SOCKET_NAME)),
        None => of_admin_socket(&find_socket(set)),
    }
}

/// `DIR/view.sock` for `DIR-admin/admin.sock`.
fn of_admin_socket(path: &Path) -> Option<PathBuf> {
    let (folder, name) = (path.parent()?.to_str()?, path.file_name()?);
    let folder = folder.strip_suffix(ADMIN_SUFFIX)?;
    (name == ADMIN_SOCKET_NAME).then(|| Path::new(folder).join(VIEW_SOCKET_NAME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn find_view_socket_when_the_environment_names_a_broker_then_beside_its_socket() {
        let find = |pairs: &[(&str, &str)]| {
            // Of a job in which no program has started a broker.
            let pairs = [pairs, &[("PBS_JOBID", "of the tests")]].concat();
            let pairs: Vec<(String, OsString)> =
                pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
            find_view_socket(|name| {
                pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone())
            })
        };
        assert_eq!(find(&[]), Some("/run/fdbroker/view.sock".into()));
        assert_eq!(find(&[("FDBROKER_SOCKET", "/a/b.sock")]), Some("/a/view.sock".into()));
        let named = ("FDBROKER_ADMIN_SOCKET", "/a-admin/admin.sock");
        assert_eq!(find(&[named]), Some("/a/view.sock".into()));
        assert_eq!(find(&[named, ("FDBROKER_SOCKET", "/c/b")]), Some("/c/view.sock".into()));
        assert_eq!(find(&[("FDBROKER_ADMIN_SOCKET", "/a/admin.sock")]), None);
    }
}
