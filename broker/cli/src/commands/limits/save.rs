//! `fdbroker limits save`: writes caps that were set at run time into the configuration file. Must
//! never write a file that the daemon would refuse, nor lose a line of it.

use super::args::SaveArgs;
use super::cap::{Limit, changed};
use crate::admin::viewing;
use crate::error::{Context, Error, Result};
use crate::output::Output;
use fdbroker_protocol::NO_CAP;
use fdbrokerd::settings::effective::DEFAULT_CONFIG_FILE;
use fdbrokerd::{Environment, Host, Settings};
use std::io;
use std::path::{Path, PathBuf};
use toml_edit::{DocumentMut, Item, Table, Value};

pub fn run(args: SaveArgs) -> Result<()> {
    let named = std::env::var_os("FDBROKER_CONFIG").filter(|path| !path.is_empty());
    let path = args.file.or(named.map(PathBuf::from)).unwrap_or(DEFAULT_CONFIG_FILE.into());
    let reply = viewing::connect()?.limits()?;
    let caps: Vec<(Limit, u64)> =
        changed(&reply).into_iter().map(|it| (it, it.of(&reply.in_force))).collect();
    let mut out = Output::stdout();
    if caps.is_empty() {
        out.text("nothing to save: all caps are as configured\n")?;
        return out.finish();
    }
    let former = match std::fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        read => read.context(|| format!("read {}", path.display()))?,
    };
    replace(&path, &with_caps(&former, &caps).map_err(Error::Other)?)?;
    for (limit, cap) in caps {
        out.text(&format!("caps.{limit} = {} is in {}\n", limit.show(cap), path.display()))?;
    }
    out.finish()
}

/// The text with these caps.
fn with_caps(text: &str, caps: &[(Limit, u64)]) -> std::result::Result<String, String> {
    let mut document: DocumentMut = text.parse().map_err(|error| format!("{error}"))?;
    let implicit = || {
        let mut table = Table::new();
        table.set_implicit(true);
        Item::Table(table)
    };
    for (Limit { scope, resource }, cap) in caps {
        let all = document.entry("caps").or_insert_with(implicit);
        let of_scope = all.as_table_like_mut().ok_or("`caps` is no table")?;
        let of_scope = of_scope.entry(scope.name()).or_insert_with(|| Item::Table(Table::new()));
        let of_scope = of_scope.as_table_like_mut().ok_or("a scope of `caps` is no table")?;
        let cap = match i64::try_from(*cap) {
            Ok(cap) => Value::from(cap),
            Err(_) if *cap == NO_CAP => Value::from("none"),
            Err(_) => return Err(format!("caps.{scope}.{resource} is too large for a file")),
        };
        // With the comment behind it.
        match of_scope.get_mut(resource.name()).and_then(Item::as_value_mut) {
            Some(former) => {
                let decor = former.decor().clone();
                *former = cap;
                *former.decor_mut() = decor;
            }
            None => drop(of_scope.insert(resource.name(), Item::Value(cap))),
        }
    }
    Ok(document.to_string())
}

/// Puts the text into the place of the file, which keeps its mode, once the daemon's own judge has
/// found it good.
fn replace(path: &Path, text: &str) -> Result<()> {
    let aside = path.with_extension("toml.new");
    let written = match std::fs::copy(path, &aside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => std::fs::write(&aside, text),
    };
    let judge = || {
        let args = fdbrokerd::cli::Args { config: Some(aside.clone()), ..Default::default() };
        Settings::load(&args, &Environment::of_this_process(), &Host::to_check())
            .map(drop)
            .map_err(|error| Error::Other(format!("the file would be refused: {error}")))
    };
    let replaced =
        written.context(|| format!("write {}", aside.display())).and_then(|()| judge()).and_then(
            |()| std::fs::rename(&aside, path).context(|| format!("write {}", path.display())),
        );
    if replaced.is_err() {
        let _ = std::fs::remove_file(&aside);
    }
    replaced
}

#[cfg(test)]
mod tests {
    use super::*;
    use fdbroker_protocol::{Resource, Scope};

    #[test]
    fn with_caps_when_a_file_has_comments_then_they_stay_and_the_caps_are_there() {
        let limit = |scope, resource| Limit { scope, resource };
        let caps = [
            (limit(Scope::Node, Resource::Fds), 4096),
            (limit(Scope::Job, Resource::HeldBytes), NO_CAP),
        ];
        let text = "# of the site\nlog = \"info\"\n[caps.node]\n#fds = 1\nfds = 9 # few\n";
        let saved = with_caps(text, &caps).unwrap();
        assert!(
            saved.starts_with(
                "# of the site\nlog = \"info\"\n[caps.node]\n#fds = 1\nfds = 4096 # few"
            )
        );
        let file = fdbrokerd::config::ConfigFile::parse(&saved).unwrap();
        assert_eq!((file.caps.node.fds, file.caps.job.held_bytes), (Some(4096), Some(NO_CAP)));
        let of_nothing = with_caps("", &caps).unwrap();
        assert_eq!(of_nothing, "[caps.node]\nfds = 4096\n\n[caps.job]\nheld_bytes = \"none\"\n");
    }
}
