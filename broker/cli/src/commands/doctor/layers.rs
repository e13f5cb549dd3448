//! Checks whether the layers for unmodified programs would work here. Must never load one into this
//! process.

use super::check::{Area, Check};
use super::probe::is_preloadable;
use crate::error::Result;
use crate::layers::{cuda, level_zero};
use std::path::{Path, PathBuf};

const AREA: Area = Area("layers");

/// A layer: its name, the option of `run`, and where it is.
struct Layer {
    name: &'static str,
    option: &'static str,
    found: Result<PathBuf>,
}

pub fn checks() -> Vec<Check> {
    let layers = [
        Layer { name: "CUDA layer", option: "--cuda", found: cuda::find() },
        Layer { name: "Level Zero layer", option: "--level-zero", found: level_zero::library() },
    ];
    let preloaded = std::env::var("LD_PRELOAD").unwrap_or_default();
    layers.iter().map(|layer| layer.check(&preloaded)).collect()
}

impl Layer {
    /// `preloaded`: the LD_PRELOAD of this process.
    fn check(&self, preloaded: &str) -> Check {
        let path = match &self.found {
            Ok(path) => path,
            Err(error) => {
                let remedy = "only programs that know nothing of fdbroker need it: install it with systemd/install.sh";
                return AREA.warn(self.name, error.to_string(), remedy);
            }
        };
        match is_preloadable(path) {
            Ok(()) => AREA.ok(self.name, self.here(path, preloaded)),
            Err(why) => AREA.warn(
                self.name,
                format!("{}: {why}", path.display()),
                format!("LD_PRELOAD={} /bin/true says why", path.display()),
            ),
        }
    }

    fn here(&self, path: &Path, preloaded: &str) -> String {
        let is_here = preloaded.split([':', ' ']).any(|it| Path::new(it) == path);
        if is_here {
            format!("{}; programs started here are under it", path.display())
        } else {
            format!(
                "{}; programs started here are not under it, so an fd number from 2^30 answers EBADF in them: `fdbroker run {}`",
                path.display(),
                self.option
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::Verdict;
    use super::*;
    use crate::error::Error;

    fn layer(found: Result<PathBuf>) -> Layer {
        Layer { name: "CUDA layer", option: "--cuda", found }
    }

    #[test]
    fn check_when_it_is_not_installed_or_cannot_be_loaded_then_warn_with_what_to_do() {
        let check = layer(Err(Error::Other("nowhere".into()))).check("");
        assert_eq!((check.verdict, check.found.as_str()), (Verdict::Warn, "nowhere"));
        assert!(check.remedy.is_some_and(|remedy| remedy.contains("install.sh")));
        let check = layer(Ok("/no/such/library.so".into())).check("");
        assert_eq!(check.verdict, Verdict::Warn);
        assert!(check.remedy.is_some_and(|remedy| remedy.contains("LD_PRELOAD")));
    }

    #[test]
    fn here_when_preloaded_or_not_then_said() {
        let (layer, path) = (layer(Ok("/l/a.so".into())), Path::new("/l/a.so"));
        assert!(layer.here(path, "/x.so:/l/a.so").contains("are under it"));
        assert!(layer.here(path, "/l/a.so.1").contains("EBADF"));
    }
}
