//! What `show` and `holders` are asked for: a subject, or an object by its name. Must never lead to
//! an allocation of another broker than the one that has the object.

use crate::admin::{Admin, Selection};
use crate::error::{Error, Result};
use crate::output::printable;
use crate::subject::Subject;
use fdbroker_client::{ErrorCode, ObjectInfo};
use std::str::FromStr;

/// Before a name that could be taken for something else.
const OBJECT_PREFIX: &str = "object:";

/// Before what can only be a process or a user.
const OTHER_PREFIXES: [&str; 2] = ["pid:", "uid:"];

/// A subject, or an object of this user. The form decides: a text that has the form of a subject is
/// one, every other text is a name, and so is all that stands behind `object:`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    Subject(Subject),
    Object {
        name: String,
        /// Why the text is no subject; `None`: it says itself that it is a name.
        no_subject: Option<String>,
    },
}

impl FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if let Some(name) = text.strip_prefix(OBJECT_PREFIX) {
            return Ok(Named::Object { name: super::name(name)?, no_subject: None });
        }
        match text.parse() {
            Ok(subject) => Ok(Named::Subject(subject)),
            Err(why) if OTHER_PREFIXES.iter().any(|it| text.starts_with(it)) => {
                Err(format!("{why}; an object of this name is {OBJECT_PREFIX}{text}"))
            }
            Err(why) => match super::name(text) {
                Ok(name) => Ok(Named::Object { name, no_subject: Some(why) }),
                Err(_) => Err(why),
            },
        }
    }
}

impl Named {
    /// It is a single allocation.
    pub fn is_allocation(&self) -> bool {
        match self {
            Named::Subject(subject) => subject.is_allocation(),
            Named::Object { .. } => true,
        }
    }

    /// The selection of what is there, and the object if it was asked for by its name: then the
    /// selection is that of its group's memory.
    pub fn known(&self, admin: &mut Admin) -> Result<(Selection, Option<ObjectInfo>)> {
        match self {
            Named::Subject(subject @ Subject::Allocation(id)) => {
                let known = subject.known(admin).map_err(|error| match error {
                    Error::NotFound(why) => Error::NotFound(format!(
                        "{why}; an object of this name is {OBJECT_PREFIX}{id}"
                    )),
                    error => error,
                });
                Ok((known?, None))
            }
            Named::Subject(subject) => Ok((subject.known(admin)?, None)),
            Named::Object { name, no_subject } => {
                let info = object(name, no_subject.as_deref(), admin)?;
                Ok((Subject::Allocation(info.id).known(admin)?, Some(info)))
            }
        }
    }
}

/// What is known of an object, by the clients' socket: an administrator, too, means objects of the
/// own user.
fn object(name: &str, no_subject: Option<&str>, admin: &mut Admin) -> Result<ObjectInfo> {
    let client = super::client().connect()?;
    // Of another broker the same id is another allocation.
    if client.incarnation() != admin.status()?.incarnation.get() {
        return Err(Error::Other(format!(
            "the broker at {} is not the one that has the objects of this environment; let FDBROKER_SOCKET and FDBROKER_ADMIN_SOCKET name \
             the same broker, or set FDBROKER_SOCKET alone",
            admin.path().display()
        )));
    }
    match client.objects().stat(name, super::soon()) {
        Ok(info) => Ok(info),
        Err(error) if error.code == ErrorCode::NotFound => {
            let nor = no_subject.map(|why| format!("; {}", printable(why))).unwrap_or_default();
            Err(Error::NotFound(format!(
                "no object of this user has the name {} (`fdbroker objects` lists them){nor}",
                printable(name)
            )))
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(text: &str) -> Named {
        text.parse().unwrap_or_else(|why| panic!("{text}: {why}"))
    }

    #[test]
    fn named_when_it_has_the_form_of_a_subject_then_that_and_behind_object_always_a_name() {
        for text in ["12.3", "1073741824", "pid:7", "uid:0", "job:x", "slurm:1"] {
            let subject = text.parse().expect("a subject");
            assert_eq!(named(text), Named::Subject(subject), "{text}");
            let forced = Named::Object { name: text.into(), no_subject: None };
            assert_eq!(named(&format!("object:{text}")), forced);
        }
        for text in ["model/a", "12", "a.b", "12.3.4", &"z".repeat(128), "ä"] {
            let Named::Object { name, no_subject: Some(_) } = named(text) else {
                panic!("{text} is no name: {:?}", named(text));
            };
            assert_eq!(name, text);
        }
    }

    #[test]
    fn named_when_it_can_be_neither_then_said() {
        for (text, says) in [
            ("pid:x", "object:pid:x"),
            ("uid:no-such-user", "object:uid:no-such-user"),
            ("", "none of"),
            ("object:", "1 to 255 bytes"),
            (&"x".repeat(256), "none of"),
        ] {
            let why = text.parse::<Named>().expect_err("neither");
            assert!(why.contains(says), "{text}: {why}");
        }
    }
}
