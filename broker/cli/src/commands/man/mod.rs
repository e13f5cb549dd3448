//! `fdbroker man`: makes the manual pages from the command line's definition. Must never describe a hidden command, nor name a
//! page that it does not write.

mod args;

pub use args::Args;

use crate::error::{Context, Result};
use clap::{Args as _, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use fdbrokerd::cli::{ABOUT, AFTER_HELP};
use std::io::{self, Write};

/// The roff definition of an apostrophe, which begins every section.
const APOSTROPHE: &str = ".ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '\n";

/// Writes fdbroker.1, a page for each command and subcommand, and fdbrokerd.8 into the directory, which is created if missing.
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
    // The date is an empty argument in quotation marks: without them man(1) would take the next argument for it.
    let release = concat!("fdbroker ", env!("CARGO_PKG_VERSION"));
    let title = name.to_uppercase();
    writeln!(to, "{APOSTROPHE}.TH \"{title}\" \"{section}\" \"\" \"{release}\" \"fdbroker\"")?;
    // Each section begins with the definition, which may stand only once.
    to.write_all(String::from_utf8_lossy(&sections).replace(APOSTROPHE, "").as_bytes())
}

/// Writes the text below the options. Indented lines are tables and examples, which man(1) must not fill.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::visible;

    #[test]
    fn pages_when_one_names_another_then_it_is_there_too() {
        let pages = pages(visible());
        let names: Vec<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
        for name in ["fdbroker.1", "fdbroker-ls.1", "fdbroker-limits-set.1", "fdbrokerd.8"] {
            assert!(names.contains(&name), "no {name} in {names:?}");
        }
        let mut named = 0;
        for (name, page) in &pages {
            let page = String::from_utf8_lossy(page).replace('\\', "");
            // As `fdbroker-ls(1)`.
            for reference in page.lines().filter_map(|line| line.strip_suffix("(1)")) {
                named += 1;
                let file = format!("{reference}.1");
                assert!(names.contains(&file.as_str()), "{name} names {file}, which is not there");
            }
        }
        assert!(named > 0, "no page names another");
    }

    #[test]
    fn pages_when_made_then_each_has_one_title_without_a_false_date() {
        for (name, page) in pages(visible()) {
            let page = String::from_utf8_lossy(&page).into_owned();
            let titles: Vec<&str> = page.lines().filter(|it| it.starts_with(".TH")).collect();
            let (title, section) = name.rsplit_once('.').expect("a section");
            assert_eq!(titles.len(), 1, "{name}: {titles:?}");
            assert_eq!(page.matches(APOSTROPHE).count(), 1, "{name}");
            let begin = format!(".TH \"{}\" \"{section}\" \"\" ", title.to_uppercase());
            assert!(titles[0].starts_with(&begin), "{name}: {titles:?}");
            assert!(!page.contains("keeper"), "{name} describes what is hidden");
        }
    }

    #[test]
    fn write_notes_when_prose_follows_a_table_then_only_the_table_is_unfilled() {
        let mut page = Vec::new();
        write_notes("Words:\n  a   one\n.b\n\n  c", &mut page).expect("memory");
        let page = String::from_utf8(page).expect("UTF-8");
        let expected = ".SH NOTES\nWords:\n.nf\n  a   one\n.fi\n\\&.b\n.PP\n.nf\n  c\n.fi\n";
        assert_eq!(page.replace(APOSTROPHE, ""), expected);
    }
}
