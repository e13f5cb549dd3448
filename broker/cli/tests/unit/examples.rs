//! The examples of every help text, as command lines of this program. Must never have a list of its
//! own: what the help shows is what is looked at.

use crate::cli::Cli;
use clap::{Command, CommandFactory, Parser};

/// What a help text shows below `Examples:`, up to the next text that is not indented.
fn examples(help: &str) -> impl Iterator<Item = &str> {
    let lines = help.lines().skip_while(|line| *line != "Examples:").skip(1);
    lines.take_while(|line| line.is_empty() || line.starts_with(' '))
}

/// The words of a shell's line. What follows two blanks or more is a remark, and left out.
fn words(line: &str) -> Vec<String> {
    let line = line.trim();
    let ends = line.match_indices("  ").map(|(at, _)| at).chain([line.len()]);
    let whole = ends.into_iter().find_map(|end| shlex::split(&line[..end]));
    let whole = whole.unwrap_or_else(|| panic!("a quote without its end: {line}"));
    let parts = whole.iter().flat_map(|word| match word.strip_suffix(';') {
        Some(word) => vec![word, ";"],
        None => vec![word.as_str()],
    });
    parts.map(str::to_owned).collect()
}

/// Every call of fdbroker in the line: also as an argument of another command, or of a shell.
fn calls(line: &str) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    let is_between = |word: &String| ["|", "&", "&&", ";", ">"].contains(&word.as_str());
    for command in words(line).split(is_between) {
        let starts = (0..command.len()).filter(|at| command[*at] == "fdbroker");
        all.extend(starts.map(|at| command[at..].to_vec()));
        all.extend(command.iter().filter(|word| word.contains(' ')).flat_map(|word| calls(word)));
    }
    all
}

/// Every command that the program has, itself first.
fn commands() -> Vec<Command> {
    let mut all = vec![Cli::command()];
    let mut at = 0;
    while at < all.len() {
        let below: Vec<Command> = all[at].get_subcommands().cloned().collect();
        all.extend(below);
        at += 1;
    }
    all
}

#[test]
fn examples_when_taken_from_each_help_then_the_program_understands_them() {
    let mut understood = 0;
    for command in commands() {
        let help = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
        if !help.contains("Examples:") {
            continue;
        }
        let calls: Vec<_> = examples(&help).flat_map(calls).collect();
        assert!(!calls.is_empty(), "`{}` shows no call of fdbroker", command.get_name());
        for call in calls {
            let parsed = Cli::try_parse_from(&call);
            assert!(parsed.is_ok(), "{call:?}: {}", parsed.expect_err("just looked"));
            understood += 1;
        }
    }
    // Were examples not found any more, nothing would be looked at.
    let commands = commands().len();
    assert!(understood > commands, "{understood} examples of {commands} commands");
}

#[test]
fn calls_when_in_pipes_quotes_and_launchers_then_each_is_found_without_what_is_said_of_it() {
    let table: [(&str, &[&[&str]]); 5] = [
        ("  fdbroker evict 12.3      this one", &[&["fdbroker", "evict", "12.3"]]),
        ("fdbroker ls -J | jq '.a[] | b'", &[&["fdbroker", "ls", "-J"]]),
        ("fdbroker ls --filter 'A  == 1'", &[&["fdbroker", "ls", "--filter", "A  == 1"]]),
        ("mpirun -n 2 sh -c 'ulimit -c 0; fdbroker top' > /dev/null", &[&["fdbroker", "top"]]),
        (
            "fdbroker run -- fdbroker demo &",
            &[&["fdbroker", "run", "--", "fdbroker", "demo"], &["fdbroker", "demo"]],
        ),
    ];
    for (line, expected) in table {
        assert_eq!(calls(line), expected, "{line}");
    }
}
