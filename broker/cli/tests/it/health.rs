//! `fdbroker health` as Slurm and probes meet it: one line and one exit status.

use crate::common::{LIMIT, end, run, run_script};
use std::time::Instant;

/// The lines of the script, each of which is one of `health` or a status.
fn lines(script: &str) -> Vec<String> {
    let output = run_script(script);
    assert_eq!(end(&output).0, Some(0), "{}", end(&output).1);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    text.lines().map(str::to_owned).collect()
}

#[test]
fn health_when_the_broker_serves_drains_or_is_full_then_a_word_and_the_status_for_it() {
    let lines = lines(
        "h() { $F health; echo $?; }; h; $F drain --wait 0 > /dev/null 2>&1; h; $F drain --undo > /dev/null; \
         printf 1 | $F put one - --pin > /dev/null 2>&1; $F limits set node.object_names=1 > /dev/null; h",
    );
    let [ok, zero, draining, one, full, still_one] = &lines[..] else { panic!("{lines:?}") };
    assert!(ok.starts_with("ok: pid ") && zero == "0", "{lines:?}");
    assert!(draining.starts_with("warning: draining") && one == "1", "{lines:?}");
    assert!(full.contains("1 of 1 object_names") && still_one == "1", "{lines:?}");
}

#[test]
fn health_when_no_broker_or_a_stopped_one_then_critical_at_once_and_the_two_differ() {
    let none = run(&["health"]);
    let text = String::from_utf8_lossy(&none.stdout).into_owned();
    assert_eq!(none.status.code(), Some(2));
    assert!(text.starts_with("critical: no broker answers") && text.lines().count() == 1, "{text}");
    let began = Instant::now();
    let lines = lines(
        "P=$($F status --json | sed 's/.*\"pid\":\\([0-9]*\\),\"draining.*/\\1/'); kill -STOP \"$P\"; \
         trap 'kill -CONT \"$P\"' EXIT; $F health; echo $?",
    );
    let [said, two] = &lines[..] else { panic!("{lines:?}") };
    assert!(said.starts_with("critical: ") && said.contains("does not answer") && two == "2");
    assert!(began.elapsed() < LIMIT / 6, "{:?}", began.elapsed());
}

#[test]
fn health_when_another_server_is_at_the_clients_socket_then_critical() {
    let lines = lines(
        "$F run -- sh -c 'FDBROKER_ADMIN_SOCKET='\"$FDBROKER_ADMIN_SOCKET\"' $F health; echo $?'; \
         FDBROKER_SOCKET=/nowhere/broker.sock $F health; echo $?",
    );
    let [another, two, nobody, also_two] = &lines[..] else { panic!("{lines:?}") };
    assert!(another.contains("another broker serves there") && two == "2", "{lines:?}");
    assert!(nobody.starts_with("critical: the clients' socket") && also_two == "2", "{lines:?}");
}
