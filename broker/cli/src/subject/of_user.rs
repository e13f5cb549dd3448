//! The flags of a list whose records are of users. Must never take one user for another.

use super::Subject;
use crate::admin::Selection;
use crate::error::{Error, Result};
use crate::output::printable;
use crate::table::ListArgs;
use clap::Args;

// A plain comment: a doc comment would become the help of the command that flattens this.
#[allow(missing_docs)]
#[derive(Clone, Debug, Default, Args)]
pub struct UserListArgs {
    /// Only what is of the user who runs the command
    #[arg(long, conflicts_with = "user")]
    pub me: bool,
    /// Only what is of this user, by name or number
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
    #[command(flatten)]
    pub list: ListArgs,
}

impl UserListArgs {
    /// The records that are wanted.
    pub fn selection(&self) -> Result<Selection> {
        let user = match &self.user {
            None if self.me => return Ok(Selection::uid(nix::unistd::geteuid().as_raw())),
            None => return Ok(Selection::ALL),
            Some(user) => user,
        };
        match format!("uid:{user}").parse() {
            Ok(Subject::Uid(uid)) => Ok(Selection::uid(uid)),
            _ => Err(Error::Usage(format!("--user: `{}` is no user here", printable(user)))),
        }
    }
}
