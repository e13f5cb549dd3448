//! Completions as shells use them.

use crate::common::{end, fdbroker, run};
use std::process::{Command, Output};

fn script(shell: &str) -> String {
    let output = run(&["completions", shell]);
    assert_eq!(end(&output), (Some(0), String::new()));
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn bash(script: &str) -> Output {
    Command::new("bash").args(["--norc", "--noprofile", "-c", script]).output().expect("bash")
}

/// What bash offers after these words, the last of which is being written.
fn offered(words: &[&str]) -> Vec<String> {
    let list: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let (last, before) = (words.len() - 1, words.len() - 2);
    let call = format!(
        "{}\nCOMP_WORDS=({}); COMP_CWORD={last}\n_fdbroker fdbroker '{}' '{}'\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"",
        script("bash"),
        list.join(" "),
        words[last],
        words[before],
    );
    let output = bash(&call);
    assert_eq!(end(&output), (Some(0), String::new()));
    String::from_utf8(output.stdout).expect("UTF-8").lines().map(str::to_owned).collect()
}

#[test]
fn completions_when_bash_then_it_offers_commands_flags_and_values() {
    let checked = bash(&format!("bash -n <<'SCRIPT'\n{}\nSCRIPT", script("bash")));
    assert_eq!(end(&checked), (Some(0), String::new()));
    assert_eq!(offered(&["fdbroker", "hol"]), ["holders"]);
    assert_eq!(offered(&["fdbroker", "ls", "--so"]), ["--sort"]);
    assert_eq!(offered(&["fdbroker", "config", "ch"]), ["check"]);
    assert_eq!(offered(&["fdbroker", "completions", "z"]), ["zsh"]);
    let all = offered(&["fdbroker", ""]);
    for hidden in ["broker", "exec", "keeper", "demo-rank"] {
        assert!(!all.iter().any(|name| name == hidden), "{all:?}");
    }
}

#[test]
fn completions_when_an_option_takes_columns_then_their_names_each_of_several() {
    for (words, columns) in [
        (&["ls", "-o", "LA"][..], &["LAST_USED"][..]),
        (&["ls", "--output", "SIZE,LA"], &["SIZE,LAST_USED"]),
        (&["ls", "-o", "+OF"], &["+OFFSET"]),
        (&["ls", "-o", "SIZE,+OF"], &["SIZE,+OFFSET"]),
        (&["ls", "--sort", "AG"], &["AGE"]),
        (&["clients", "-o", "COM"], &["COMMAND"]),
        (&["clients", "--sort", "UID,COM"], &["UID,COMMAND"]),
        (&["holders", "-o", "ALLOCATION,AG"], &["ALLOCATION,AGE"]),
        (&["jobs", "-o", "LEFT"], &["LEFT_ALLOCATIONS"]),
        (&["objects", "-o", "VER"], &["VERSION"]),
        (&["objects", "-o", "ALLOC"], &[""]),
    ] {
        assert_eq!(offered(&[&["fdbroker"], words].concat()), columns, "{words:?}");
    }
    for shell in ["zsh", "fish"] {
        assert!(script(shell).contains("LAST_USED"), "{shell}");
    }
    // The option itself takes more than one name, in any case.
    assert_eq!(end(&run(&["ls", "-H", "-o", "size,+keep", "--sort", "SIZE:desc"])).0, Some(0));
}

#[test]
fn completions_when_zsh_or_fish_then_the_commands_are_in_it() {
    let zsh = script("zsh");
    assert!(zsh.starts_with("#compdef fdbroker\n"), "{zsh}");
    let fish = script("fish");
    for name in ["ls", "clients", "holders", "show", "config", "completions"] {
        assert!(zsh.contains(&format!("\n({name})\n")), "{name}: {zsh}");
        assert!(fish.contains(&format!("-a \"{name}\"")), "{name}: {fish}");
    }
    // A shell that is here reads its script.
    for (shell, script) in [("zsh", &zsh), ("fish", &fish)] {
        let file =
            std::env::temp_dir().join(format!("fdb-completions-{}-{shell}", std::process::id()));
        std::fs::write(&file, script).expect("written");
        if let Ok(output) = Command::new(shell).arg("-n").arg(&file).output() {
            assert_eq!(end(&output).0, Some(0), "{shell}: {}", end(&output).1);
        }
        std::fs::remove_file(&file).expect("removed");
    }
}

#[test]
fn completions_when_the_shell_is_unknown_then_exit_2_and_those_known() {
    let (code, stderr) = end(&run(&["completions", "tcsh"]));
    assert_eq!(code, Some(2));
    assert!(stderr.contains("bash, zsh, fish"), "{stderr}");
}

#[test]
fn completions_when_the_reader_is_gone_then_quiet() {
    let mut command = fdbroker(&["completions", "bash"]);
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = command.stdout(writer).output().expect("it starts");
    assert_eq!(end(&output), (Some(0), String::new()));
}
