//! `fdbroker config`: prints or checks the configuration that a daemon would have here. Must never
//! judge a value itself: the daemon's code does.

mod args;

pub use args::Args;

use crate::error::{Error, Result};
use crate::output::Output;
use args::Action;
use fdbrokerd::{Environment, Host, Settings};
use serde_json::Value;
use std::path::PathBuf;

pub fn run(args: Args) -> Result<()> {
    let mut out = Output::stdout();
    match args.action {
        Action::Check { file } => {
            let settings = load(file)?;
            let but = if settings.untold.warnings.is_empty() { "" } else { ", with warnings" };
            match settings.config_file {
                Some(path) => out.text(&format!("{}: good{but}\n", path.display()))?,
                None => {
                    out.text(&format!("no configuration file: the defaults are good{but}\n"))?
                }
            }
            settings.untold.lines().try_for_each(|line| out.text(&(line + "\n")))?;
        }
        Action::Show { file, json: false } => out.text(&load(file)?.to_string())?,
        Action::Show { file, json: true } => {
            let settings = load(file)?;
            let entry = |(key, value, origin): (&str, &str, &str)| serde_json::json!({ "setting": key, "value": typed(value), "from": origin });
            let all: Vec<Value> = settings.effective().map(entry).collect();
            let file = &settings.config_file;
            out.json_line(&serde_json::json!({ "file": file, "settings": all }))?;
        }
    }
    out.finish()
}

/// A value of a configuration file in JSON. Numbers and strings are written alike in both; an octal
/// mode stays text.
fn typed(value: &str) -> Value {
    match value {
        "none" => Value::Null,
        _ => serde_json::from_str(value).unwrap_or_else(|_| value.into()),
    }
}

fn load(file: Option<PathBuf>) -> Result<Settings> {
    let args = fdbrokerd::cli::Args { config: file, ..Default::default() };
    Settings::load(&args, &Environment::of_this_process(), &Host::to_check())
        .map_err(|error| Error::Other(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typed_when_each_kind_then_as_json_has_it() {
        assert_eq!(typed("17"), Value::from(17));
        assert_eq!(typed("none"), Value::Null);
        assert_eq!(typed(r#""/run/a\u0019\\""#), Value::from("/run/a\u{19}\\"));
        assert_eq!(typed("0o666"), Value::from("0o666"));
    }
}
