//! `fdbroker limits save`: writes caps that were set at run time into the configuration file. Must
//! never write a file that the daemon would refuse, nor lose a line of it.

use super::args::SaveArgs;
use super::cap::{Limit, changed};
use crate::admin::viewing;
use crate::error::{Context, Error, Result};
use crate::output::Output;
use fdbroker_protocol::{NO_CAP, Resource, Scope};
use fdbrokerd::config::ConfigFile;
use fdbrokerd::settings::effective::caps_of;
use fdbrokerd::{Environment, Host, Settings};
use nix::unistd::{Gid, Uid};
use std::ffi::OsStr;
use std::fs::{File, Metadata, Permissions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use toml_edit::{DocumentMut, Item, Table, Value};

/// Mode of a file that was not there: the broker's user reads it.
const MODE: u32 = 0o644;

pub fn run(args: SaveArgs) -> Result<()> {
    let mut admin = viewing::connect()?;
    let reply = admin.limits()?;
    let caps: Vec<(Limit, u64)> =
        changed(&reply).into_iter().map(|it| (it, it.of(&reply.in_force))).collect();
    let mut out = Output::stdout();
    if caps.is_empty() {
        out.text("nothing to save: all caps are as configured\n")?;
        return out.finish();
    }
    let own = reply.config_file.split(|byte| *byte == 0).next().unwrap_or_default();
    let own = Some(own).filter(|path| !path.is_empty()).map(|it| OsStr::from_bytes(it).into());
    let path: PathBuf = args.file.or(own).ok_or_else(|| {
        Error::Other("this broker has no configuration file, and its caps end with it; for those of another broker name the file".into())
    })?;
    let settings = save(&path, &caps, admin.server_uid()?)?;
    for (limit, cap) in caps {
        out.text(&format!("caps.{limit} = {} is in {}\n", limit.show(cap), path.display()))?;
    }
    // Defaults follow from other caps.
    let next = caps_of(&settings);
    for scope in Scope::WIDEST_FIRST {
        for resource in Resource::capped().filter(|it| it.is_capped_in(scope)) {
            let limit = Limit { scope, resource };
            let (now, then) = (limit.of(&reply.in_force), next[scope][resource]);
            if now != then {
                let (now, then) = (limit.show(now), limit.show(then));
                out.text(&format!(
                    "caps.{limit} will be {then} from the next start or reload on; now it is {now}\n"
                ))?;
            }
        }
    }
    out.finish()
}

/// Puts the caps into the file: what a broker of the user `server` has with it then.
fn save(path: &Path, caps: &[(Limit, u64)], server: u32) -> Result<Settings> {
    let at = |what: &'static str| move || format!("{what} {}", path.display());
    // Behind a link is the file; a link may be another user's.
    let place = match path.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => std::path::absolute(path),
        place => place,
    };
    let place = place.context(at("find"))?;
    // A FIFO is not waited for.
    let open = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&place);
    let (former, found) = match open {
        Err(error) if error.kind() == io::ErrorKind::NotFound => (String::new(), None),
        file => {
            let file = file.context(at("read"))?;
            let found = file.metadata().context(at("look at"))?;
            if !found.is_file() {
                return Err(Error::Other(format!("{} is no regular file", path.display())));
            }
            (io::read_to_string(file).context(at("read"))?, Some(found))
        }
    };
    ConfigFile::of_text(&place, &former).map_err(|error| Error::Other(error.to_string()))?;
    replace(&place, &with_caps(&former, caps).map_err(Error::Other)?, found, server)
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

/// Puts the text into the place of the file, which keeps its mode and owner, once the daemon's own
/// judge has found it good.
fn replace(path: &Path, text: &str, former: Option<Metadata>, server: u32) -> Result<Settings> {
    let failed = || format!("write {}", path.display());
    let directory = path.parent().unwrap_or(Path::new("/"));
    // Removed unless it takes the place. Its name is its own, and a link there is not followed.
    let mut aside = tempfile::Builder::new()
        .prefix(".fdbrokerd.toml.")
        .tempfile_in(directory)
        .context(failed)?;
    aside.write_all(text.as_bytes()).context(failed)?;
    let mode = former.as_ref().map_or(MODE, |it| it.mode() & 0o7777);
    if let Some(former) = &former {
        let owner = (Some(Uid::from_raw(former.uid())), Some(Gid::from_raw(former.gid())));
        nix::unistd::fchown(&aside, owner.0, owner.1).context(failed)?;
    }
    aside.as_file().set_permissions(Permissions::from_mode(mode)).context(failed)?;
    let args = fdbrokerd::cli::Args { config: Some(aside.path().into()), ..Default::default() };
    let mut host = Host::to_check();
    host.owners.push(server);
    let settings = Settings::load(&args, &Environment::of_this_process(), &host)
        .map_err(|error| Error::Other(format!("the file would be refused: {error}")))?;
    aside.as_file().sync_all().context(failed)?;
    // No lock: whoever may read the file could hold it for ever.
    if former.as_ref().map(change_of)
        != std::fs::symlink_metadata(path).ok().as_ref().map(change_of)
    {
        let what = "somebody has changed it meanwhile; try again";
        return Err(Error::Other(format!("{}: {what}", path.display())));
    }
    aside.persist(path).map_err(|error| error.error).context(failed)?;
    Ok(settings)
}

/// What a change of a file, or another one in its place, makes different.
fn change_of(file: &Metadata) -> (u64, u64, i64, i64) {
    (file.dev(), file.ino(), file.ctime(), file.ctime_nsec())
}

#[cfg(test)]
mod tests {
    use super::*;

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

    fn limit() -> [(Limit, u64); 1] {
        [(Limit { scope: Scope::Node, resource: Resource::Fds }, 600)]
    }

    #[test]
    fn save_when_the_file_is_a_link_then_what_it_leads_to_changes_and_keeps_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let [file, link] = ["file", "link"].map(|name| dir.path().join(name));
        std::fs::write(&file, "# of the site\n").unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        save(&link, &limit(), Uid::effective().as_raw()).unwrap();
        assert!(link.is_symlink());
        assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o7777, 0o640);
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains("# of the site\n") && text.contains("fds = 600"), "{text}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn save_when_it_fails_then_the_file_is_as_it_was_and_nothing_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "fdz = 1\n").unwrap();
        let error = save(&file, &limit(), 0).unwrap_err().to_string();
        assert!(error.contains("line 1, `fdz = 1`: unknown field"), "{error}");
        std::fs::write(&file, "").unwrap();
        let before = std::fs::metadata(&file).unwrap();
        std::fs::write(&file, "# of somebody else\n").unwrap();
        let error = replace(&file, "", Some(before), 0).unwrap_err().to_string();
        assert!(error.contains("try again"), "{error}");
        std::fs::write(&file, "").unwrap();
        let error = save(Path::new("/dev/zero"), &limit(), 0).unwrap_err().to_string();
        assert!(error.contains("no regular file"), "{error}");
        let none = [(limit()[0].0, 0)];
        let error = save(&file, &none, 0).unwrap_err().to_string();
        assert!(error.contains("0 lets nobody share"), "{error}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
