//! The names of users. Must never fail for a user that this system does not know.

use crate::table::Value;
use nix::unistd::{Uid, User};
use std::cell::RefCell;
use std::collections::HashMap;

/// Users whose names are kept: a list has few, and a directory service may take long for each.
const USERS_MOST: usize = 1024;

/// A user's name as a value of a column.
pub fn user(uid: u32) -> Value {
    thread_local! {
        static NAMES: RefCell<HashMap<u32, Option<String>>> = RefCell::default();
    }
    let found = NAMES.with_borrow_mut(|names| {
        if names.len() == USERS_MOST {
            names.clear();
        }
        let find = || User::from_uid(Uid::from_raw(uid)).ok().flatten().map(|user| user.name);
        names.entry(uid).or_insert_with(find).clone()
    });
    found.map_or(Value::None("-"), |name| Value::Text(name.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_when_known_then_its_name_else_none() {
        assert_eq!(user(0), Value::Text("root".into()));
        assert_eq!(user(u32::MAX - 7), Value::None("-"));
    }
}
