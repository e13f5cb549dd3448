//! `fdbroker man`: makes the manual pages from the command line's definition. Must never describe a
//! hidden command, nor name a page that it does not write.

#[cfg(test)]
mod tests;

use crate::error::{Context, Result};
use clap::{Args as _, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use fdbrokerd::cli::{ABOUT, AFTER_HELP};
use std::io::{self, Write};
use std::path::PathBuf;

/// Write the manual pages into a directory
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directory, such as /usr/local/share/man/man1
    pub dir: PathBuf,
}

/// The roff definition of an apostrophe, which begins every section.
const APOSTROPHE: &str = ".ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '\n";

/// Writes fdbroker.1, a page for each command and subcommand, and fdbrokerd.8 into the directory,
/// which is created if missing.
pub fn run(args: &Args, whole: Command) -> Result<()> {
    let dir = &args.dir;
    std::fs::create_dir_all(dir).context(|| format!("make {}", dir.display()))?;
    for (name, page) in pages(whole) {
        std::fs::write(dir.join(name), page)
            .context(|| format!("write manual pages to {}", dir.display()))?;
    }
    Ok(())
}

/// All pages with their file names.
fn pages(whole: Command) -> Vec<(String, Vec<u8>)> {
    // `build` gives the commands their global flags and full names.
    let mut whole = whole.disable_help_subcommand(true).display_name("fdbroker");
    whole.build();
    let (about, _) = ABOUT.split_once(".\n").unwrap_or((ABOUT, ""));
    let daemon = Command::new("fdbrokerd")
        .display_name("fdbrokerd")
        .version(env!("CARGO_PKG_VERSION"))
        .about(about)
        .long_about(ABOUT)
        .after_long_help(AFTER_HELP);
    let mut pages = Vec::new();
    add(&whole, "1", &mut pages);
    add(&fdbrokerd::cli::Args::augment_args(daemon), "8", &mut pages);
    pages
}

/// Adds the page of `command`, and the pages of its subcommands.
fn add(command: &Command, section: &str, pages: &mut Vec<(String, Vec<u8>)>) {
    let name = command.get_display_name().unwrap_or(command.get_name());
    let mut page = Vec::new();
    write_page(command, name, section, &mut page).expect("memory takes what is written to it");
    pages.push((format!("{name}.{section}"), page));
    for below in command.get_subcommands().filter(|it| !it.is_hide_set()) {
        add(below, section, pages);
    }
}

fn write_page(command: &Command, name: &str, section: &str, to: &mut Vec<u8>) -> io::Result<()> {
    let man = Man::new(command.clone()).section(section);
    let mut sections = Vec::new();
    man.render_name_section(&mut sections)?;
    man.render_synopsis_section(&mut sections)?;
    man.render_description_section(&mut sections)?;
    man.render_options_section(&mut sections)?;
    if command.get_subcommands().any(|it| !it.is_hide_set()) {
        man.render_subcommands_section(&mut sections)?;
    }
    if let Some(notes) = command.get_after_long_help().or(command.get_after_help()) {
        write_notes(&notes.to_string(), &mut sections)?;
    }
    // The date is an empty argument in quotation marks: without them man(1) would take the next
    // argument for it.
    let release = concat!("fdbroker ", env!("CARGO_PKG_VERSION"));
    let title = name.to_uppercase();
    writeln!(to, "{APOSTROPHE}.TH \"{title}\" \"{section}\" \"\" \"{release}\" \"fdbroker\"")?;
    // Each section begins with the definition, which may stand only once.
    to.write_all(String::from_utf8_lossy(&sections).replace(APOSTROPHE, "").as_bytes())
}

/// Writes the text below the options. Indented lines are tables and examples, which man(1) must not
/// fill.
fn write_notes(notes: &str, to: &mut Vec<u8>) -> io::Result<()> {
    let mut roff = Roff::new();
    roff.control("SH", ["NOTES"]);
    let mut is_filled = true;
    for line in notes.lines() {
        let fills = !line.starts_with(' ');
        if fills != is_filled {
            roff.control(if fills { "fi" } else { "nf" }, []);
            is_filled = fills;
        }
        match line {
            "" => roff.control("PP", []),
            _ => roff.text([roman(line)]),
        };
    }
    if !is_filled {
        roff.control("fi", []);
    }
    roff.to_writer(to)
}
