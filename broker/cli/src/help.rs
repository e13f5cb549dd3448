//! Prints the answers of clap: help, the version, or an error in the arguments. Must never report
//! success when help or version could not be written.

use crate::error::{Result, exit};
use crate::output::write_error;
use clap::error::{ContextKind, ContextValue};
use std::io::{self, Write};
use std::process::ExitCode;

/// Words that others have for a command of this program, each with what to type here.
const OTHER_WORDS: &[(&str, &str)] = &[
    ("list", "`fdbroker objects` lists named objects, `fdbroker ls` lists allocations"),
    ("cat", "`fdbroker get NAME` writes the bytes of an object to standard output"),
    ("del", REMOVE),
    ("delete", REMOVE),
    ("remove", REMOVE),
];
const REMOVE: &str = "`fdbroker rm NAME` removes an object";

/// Puts what is meant in place of what is spelled alike, where `word`, the first one of the line,
/// is no command.
pub fn hinted(mut answer: clap::Error, word: Option<&str>) -> clap::Error {
    let unknown = match answer.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(unknown)) => Some(unknown.as_str()),
        _ => None,
    };
    let hint = OTHER_WORDS.iter().find(|(other, _)| unknown == Some(*other) && word == unknown);
    if let Some((_, hint)) = hint {
        answer.remove(ContextKind::SuggestedSubcommand);
        answer.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![(*hint).into()]));
    }
    answer
}

/// Prints the answer, an error on stderr; gives the exit status.
pub fn say(answer: &clap::Error) -> Result<ExitCode> {
    let written = answer.print().and_then(|()| io::stdout().flush());
    if answer.use_stderr() {
        // Usage is wrong even if the message could not be written.
        return Ok(ExitCode::from(exit::USAGE));
    }
    written.map_err(write_error)?;
    Ok(ExitCode::from(exit::OK))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::Parser;

    fn hint_of(words: &[&str]) -> String {
        let line = ["fdbroker"].iter().chain(words);
        let answer = Cli::try_parse_from(line).expect_err("no command");
        hinted(answer, words.first().copied()).to_string()
    }

    #[test]
    fn hinted_when_the_first_word_is_anothers_then_ours_is_said_and_nothing_else() {
        for (word, ours) in [
            ("list", "fdbroker objects"),
            ("cat", "fdbroker get NAME"),
            ("del", "fdbroker rm"),
            ("delete", "fdbroker rm"),
            ("remove", "fdbroker rm"),
        ] {
            let text = hint_of(&[word]);
            assert!(text.contains(ours) && !text.contains("similar"), "{text}");
        }
        assert!(hint_of(&["objcts"]).contains("'objects'"), "spelled alike");
        assert!(!hint_of(&["limits", "list"]).contains("fdbroker objects"), "a part of limits");
    }
}
