//! `fdbroker rm --prefix`: takes the names that begin so, page by page. Must never take a name from
//! a version that was not listed.

use crate::by_name::{each_page, none_begins_with, outcome_view, reason, soon};
use crate::error::{Result, exit};
use crate::output::{Output, counted, printable, say};
use fdbroker_client::{ErrorCode, ObjectInfo, Objects};
use serde::Serialize;

/// A version that no object has: what is in the making when it is listed stays, even if it is
/// sealed a moment later.
const NEVER_GIVEN: u64 = u64::MAX;

/// Most names of those that stay that are said: more than anybody reads; the rest is counted.
const MAX_SAID: usize = 20;

/// What came of a prefix.
#[derive(Debug, Default)]
struct Tally {
    removed: u64,
    /// They have been replaced since they were listed, or are in the making.
    stay: u64,
    /// The first of those that stay, with the reason.
    said: Vec<(String, std::result::Result<(), fdbroker_client::Error>)>,
}

impl Tally {
    fn exit_status(&self) -> u8 {
        match (self.removed, self.stay) {
            (0, 0) => exit::NOT_FOUND,
            (_, 0) => exit::OK,
            _ => exit::ERROR,
        }
    }
}

/// The outcome, in JSON.
#[derive(Serialize)]
struct RemovedView<'a, T> {
    prefix: &'a str,
    removed: u64,
    stay: u64,
    /// The first of those that stay, as `rm` shows names.
    objects: Vec<T>,
}

/// Removes all whose names begin so; gives the exit status, of several prefixes the one that is not
/// only that nothing begins so.
pub fn run(objects: &Objects, prefixes: &[String], is_json: bool) -> Result<u8> {
    let mut status = exit::OK;
    for prefix in prefixes {
        let mut tally = Tally::default();
        // In turns: what comes behind the last name of a page meanwhile is removed, too.
        let outcome = each_page(objects, prefix, |page| remove_page(objects, page, &mut tally));
        if outcome.is_err() && tally.removed > 0 {
            let (removed, prefix) = (counted(tally.removed, "object"), printable(prefix));
            say!("fdbroker: {prefix}: {removed} removed before it failed");
        }
        outcome?;
        tell(prefix, &tally, is_json)?;
        let its = tally.exit_status();
        status = if status == exit::OK { its } else { status.min(its) };
    }
    Ok(status)
}

fn remove_page(
    objects: &Objects,
    page: &[ObjectInfo],
    tally: &mut Tally,
) -> std::result::Result<(), fdbroker_client::Error> {
    let version = |info: &ObjectInfo| if info.version == 0 { NEVER_GIVEN } else { info.version };
    let doomed: Vec<_> =
        page.iter().map(|info| (info.name.as_str(), Some(version(info)))).collect();
    for (info, outcome) in page.iter().zip(objects.delete_many(&doomed, soon())?) {
        match outcome {
            Ok(()) => tally.removed += 1,
            // Somebody else has removed it since it was listed.
            Err(error) if error.code == ErrorCode::NotFound => {}
            Err(error) => {
                tally.stay += 1;
                if tally.said.len() < MAX_SAID {
                    tally.said.push((info.name.clone(), Err(error)));
                }
            }
        }
    }
    Ok(())
}

fn tell(prefix: &str, tally: &Tally, is_json: bool) -> Result<()> {
    let Tally { removed, stay, ref said } = *tally;
    let mut out = Output::stdout();
    if is_json {
        let objects = said.iter().map(|(name, outcome)| outcome_view(name, outcome)).collect();
        out.json_line(&RemovedView { prefix, removed, stay, objects })?;
    } else if removed > 0 {
        let prefix = printable(prefix);
        out.text(&format!(
            "{} removed whose names begin with {prefix}\n",
            counted(removed, "object")
        ))?;
    }
    out.finish()?;
    if removed + stay == 0 {
        say!("fdbroker: {}", none_begins_with(prefix));
    }
    for (name, outcome) in said {
        if let Err(error) = outcome {
            say!("fdbroker: {}: {}", printable(name), reason(error));
        }
    }
    if stay > said.len() as u64 {
        say!("fdbroker: {} more stay", stay - said.len() as u64);
    }
    Ok(())
}
