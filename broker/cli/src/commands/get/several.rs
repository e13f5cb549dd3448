//! Several objects of one moment, each with the file that it goes to. Must never name a file
//! outside of the folder that was given.

use crate::by_name::{at, none_begins_with, soon, undone};
use crate::error::{Error, Result};
use crate::output::printable;
use fdbroker_client::{Deadline, ErrorCode, Object, Objects};
use fdbroker_protocol::limits::MAX_GROUP;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Tries to get all that begins so, between which names come or go.
const TRIES: usize = 8;

/// Whether these words mean several objects: by number, or as what their names begin with.
pub fn is_meant(names: &[String]) -> bool {
    names.len() > 1 || names.iter().any(|name| is_prefix(name))
}

fn is_prefix(name: &str) -> bool {
    name.ends_with('/')
}

/// Gets them, each with the path that it has below the folder.
pub fn get(
    objects: &Objects,
    words: &[String],
    until: Deadline,
    is_json: bool,
) -> Result<Vec<(Object, PathBuf)>> {
    for _ in 0..TRIES {
        let (names, files): (Vec<String>, Vec<PathBuf>) =
            files(objects, words, is_json)?.into_iter().unzip();
        match objects.get_many(&names, until) {
            // What has come meanwhile may be of the same version as what was got.
            Ok(got) if names_of(objects, words, is_json)? == names => {
                return Ok(got.into_iter().zip(files).collect());
            }
            Ok(_) => {}
            // One that was listed has gone.
            Err(error)
                if error.code == ErrorCode::NotFound && words.iter().any(|it| is_prefix(it)) => {}
            Err(error) => return undone(Err(unhad(&names, error)), &names, is_json),
        }
    }
    let what = "names come and go all the time";
    Err(Error::Other(format!("{what}; get them when their maker is done, or one by one")))
}

/// The names that are meant, in their order.
fn names_of(objects: &Objects, words: &[String], is_json: bool) -> Result<Vec<String>> {
    Ok(files(objects, words, is_json)?.into_iter().map(|(name, _)| name).collect())
}

/// The names that are meant, with their files.
fn files(objects: &Objects, words: &[String], is_json: bool) -> Result<Vec<(String, PathBuf)>> {
    let mut files = Vec::new();
    for word in words {
        if !is_prefix(word) {
            files.push((word.clone(), base_name(word)?));
            continue;
        }
        let before = files.len();
        for info in objects.list(word, soon()).take(MAX_GROUP + 1) {
            let info = info?;
            let file = file(&info.name, word.len())?;
            files.push((info.name, file));
        }
        if files.len() == before {
            return undone(Err(none_begins_with(word)), std::slice::from_ref(word), is_json);
        }
    }
    if files.len() > MAX_GROUP {
        return Err(Error::Usage(format!(
            "more than {MAX_GROUP} objects cannot be got at one moment; name fewer"
        )));
    }
    let mut seen = BTreeSet::new();
    match files.iter().find(|(_, file)| !seen.insert(file)) {
        Some((_, file)) => {
            Err(Error::Usage(format!("two objects would go to {}; get them apart", file.display())))
        }
        None => Ok(files),
    }
}

/// The file of an object that is named by itself: the part after the last `/`.
pub fn base_name(name: &str) -> Result<PathBuf> {
    file(name, name.rfind('/').map_or(0, |at| at + 1))
}

/// The path that the rest of a name makes.
fn file(name: &str, begin: usize) -> Result<PathBuf> {
    let rest = &name[begin..];
    if rest.split('/').all(|part| !matches!(part, "" | "." | "..")) {
        Ok(PathBuf::from(rest))
    } else {
        Err(Error::Usage(format!(
            "{} cannot be the name of a file below a folder; get it by itself, with -O FILE",
            printable(name)
        )))
    }
}

/// Why one of the objects cannot be had, with what to do about it here.
pub fn unhad(names: &[String], mut error: fdbroker_client::Error) -> fdbroker_client::Error {
    let of_one = at(&error).and_then(|index| names.get(index));
    let Some(name) = of_one.filter(|_| error.code == ErrorCode::NotFound) else { return error };
    error.context = printable(name);
    error.because(
        "no object has this name; `fdbroker objects` lists them, --timeout 30s waits until it is made",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_when_the_rest_of_a_name_leads_out_of_the_folder_then_refused() {
        assert_eq!(file("m/a/b", 2).expect("below"), PathBuf::from("a/b"));
        for (name, begin) in [("m/../x", 2), ("m//x", 2), ("m/", 2), ("m/.", 2), ("..", 0)] {
            assert!(file(name, begin).is_err(), "{name}");
        }
    }

    #[test]
    fn is_meant_when_one_name_that_begins_no_others_then_not() {
        let words = |words: &[&str]| words.iter().map(|it| it.to_string()).collect::<Vec<_>>();
        assert!(!is_meant(&words(&["m/a"])));
        assert!(is_meant(&words(&["m/"])) && is_meant(&words(&["a", "b"])));
    }
}
