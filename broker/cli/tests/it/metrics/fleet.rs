//! What fleets read: the files for node_exporter, the dashboard, the alert rules and the runbook,
//! each against a real broker's page, and with promtool where it is installed. Must never accept a
//! query of a metric that no broker gives, nor a rule that nobody explains.

use super::rig::Broker;
use crate::common::{TestDir, end, fdbroker};
use nix::errno::Errno;
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A file of `systemd/`.
fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../systemd").join(name)
}

fn text_of(name: &str) -> String {
    std::fs::read_to_string(source(name)).expect("readable")
}

fn dashboard() -> Value {
    serde_json::from_str(&text_of("grafana.json")).expect("JSON")
}

fn panels(dashboard: &Value) -> &Vec<Value> {
    dashboard["panels"].as_array().expect("panels")
}

fn targets(panel: &Value) -> &Vec<Value> {
    panel["targets"].as_array().expect("targets")
}

/// The fields of each rule, in the one form that the file has.
fn rules() -> Vec<Vec<(String, String)>> {
    let mut rules = Vec::new();
    for line in text_of("prometheus-rules.yml").lines() {
        let line = line.trim();
        if let Some(name) = line.strip_prefix("- alert: ") {
            rules.push(vec![("alert".to_owned(), name.to_owned())]);
        } else if let (Some(rule), Some((field, value))) = (rules.last_mut(), line.split_once(": "))
        {
            rule.push((field.to_owned(), value.to_owned()));
        }
    }
    rules
}

/// A field of a rule.
fn field<'a>(rule: &'a [(String, String)], wanted: &str) -> &'a str {
    let found = rule.iter().find(|(field, _)| field == wanted);
    found.map_or_else(|| panic!("{wanted}: {rule:?}"), |(_, value)| value)
}

/// The metrics of a broker and of an audit.
fn all_names(broker: &Broker) -> BTreeSet<String> {
    let mut names = broker.page().names();
    let dir = TestDir::new("audit-names");
    let mut audit = broker.command(&["audit", "--textfile"]);
    // What it finds, and how much it may read, is the machine's.
    audit.arg(dir.path()).output().expect("it starts");
    let page = std::fs::read_to_string(dir.path().join("fdbroker-audit.prom")).expect("written");
    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    names.extend(types.map(|(name, _)| name.to_owned()));
    names
}

/// Metrics of others: Prometheus' own of a scrape, and node_exporter's of its files.
const OF_OTHERS: [&str; 2] = ["up{", "node_textfile_mtime_seconds{"];

fn assert_known(names: &BTreeSet<String>, query: &str) {
    let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let used: Vec<&str> = words.filter(|word| word.starts_with("fdbroker_")).collect();
    let is_of_others = OF_OTHERS.iter().any(|name| query.contains(name));
    assert!(is_of_others || !used.is_empty(), "no metric in {query}");
    for name in used {
        assert!(names.contains(name), "{name} of {query}: no broker has it");
    }
}

#[test]
fn dashboard_and_rules_when_compared_with_a_scrape_then_every_metric_in_them_exists() {
    let names = all_names(&Broker::start("metrics-fleet", &[]));
    let dashboard = dashboard();
    let variables = dashboard["templating"]["list"].as_array().expect("variables");
    let asked = variables.iter().filter_map(|it| it["query"]["query"].as_str());
    let panels = panels(&dashboard).iter().flat_map(targets);
    let exprs = panels.map(|target| target["expr"].as_str().expect("a query"));
    let queries: Vec<String> = asked.chain(exprs).map(str::to_owned).collect();
    assert!(queries.len() > 40, "{queries:?}");
    queries.iter().for_each(|query| assert_known(&names, query));
    for rule in rules() {
        assert_known(&names, field(&rule, "expr"));
    }
}

#[test]
fn dashboard_when_its_model_is_checked_then_panels_stand_apart_and_one_says_up_or_down() {
    let dashboard = dashboard();
    let (mut ids, mut cells) = (BTreeSet::new(), BTreeSet::new());
    for panel in panels(&dashboard) {
        let title = panel["title"].as_str().expect("a title");
        assert!(ids.insert(panel["id"].as_u64().expect("an id")), "{title}");
        let at = |field: &str| panel["gridPos"][field].as_u64().expect("a place");
        assert!(at("w") > 0 && at("h") > 0 && at("x") + at("w") <= 24, "{title}");
        for x in at("x")..at("x") + at("w") {
            for y in at("y")..at("y") + at("h") {
                assert!(cells.insert((x, y)), "{title} covers another panel");
            }
        }
        let mut references = BTreeSet::new();
        for target in targets(panel) {
            assert_eq!(target["datasource"]["uid"], "${source}", "{title}");
            assert!(references.insert(target["refId"].as_str().expect("a reference")), "{title}");
        }
        assert_eq!(panel["datasource"]["uid"], "${source}", "{title}");
    }
    let is_up = |panel: &&Value| {
        let expr = targets(panel)[0]["expr"].as_str();
        panel["type"] == "stat" && expr.is_some_and(|expr| expr.starts_with("fdbroker_up{"))
    };
    let up = panels(&dashboard).iter().find(is_up).expect("a panel of fdbroker_up");
    let words = &up["fieldConfig"]["defaults"]["mappings"][0]["options"];
    assert_eq!((&words["0"]["text"], &words["1"]["text"]), (&"DOWN".into(), &"UP".into()));
}

const RUNBOOK: &str = "https://github.com/fdbroker/fdbroker/blob/main/docs/runbook.md";

#[test]
fn rules_when_read_then_each_says_what_to_do_is_in_the_runbook_and_has_a_test() {
    let runbook = text_of("../docs/runbook.md");
    let entries: Vec<(&str, &str)> = runbook
        .split("\n## ")
        .skip(1)
        .map(|entry| entry.split_once('\n').expect("a heading"))
        .collect();
    let tests = text_of("prometheus-rules.test.yml");
    let mut names = Vec::new();
    for rule in rules() {
        let name = rule[0].1.clone();
        for wanted in ["expr", "summary", "description"] {
            assert!(field(&rule, wanted).len() > 6, "{wanted}: {rule:?}");
        }
        assert!(["critical", "warning", "info"].contains(&field(&rule, "severity")), "{rule:?}");
        // Forges make an anchor of a heading so.
        let link = format!("{RUNBOOK}#{}", name.to_lowercase());
        assert_eq!(field(&rule, "runbook_url"), link);
        let fires = format!("alertname: {name}\n        exp_alerts:\n");
        assert!(tests.contains(&fires), "{name} is seen to fire in no test");
        names.push(name);
    }
    let headings: Vec<&str> = entries.iter().map(|(heading, _)| *heading).collect();
    assert_eq!(
        headings, names,
        "each rule has its entry, in the same order, and no other is there"
    );
    for (heading, entry) in entries {
        for part in ["- **Means**: ", "- **Look at**: ", "- **Do**: "] {
            assert_eq!(entry.matches(part).count(), 1, "{heading}: {part}");
        }
    }
}

/// `fdbroker metrics --textfile` under a umask that would hide the file.
fn write_textfile(admin_socket: &Path, dir: &Path) -> Output {
    let command = fdbroker(&[]);
    let mut shell = Command::new("sh");
    shell.args(["-c", "umask 077; exec \"$0\" metrics --textfile \"$1\""]);
    shell.arg(command.get_program()).arg(dir);
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.env("FDBROKER_ADMIN_SOCKET", admin_socket).output().expect("it starts")
}

#[test]
fn textfile_when_written_again_then_replaced_whole_and_without_a_broker_it_says_down() {
    let (broker, dir) = (Broker::start("metrics-textfile", &[]), TestDir::new("textfile"));
    let (file, socket) = (dir.path().join("fdbroker.prom"), broker.admin_socket());
    assert_eq!(end(&write_textfile(&socket, dir.path())).0, Some(0));
    let first = std::fs::metadata(&file).expect("written");
    assert_eq!(first.permissions().mode() & 0o7777, 0o644);
    let mut reader = std::fs::File::open(&file).expect("readable");
    let text = std::fs::read_to_string(&file).expect("UTF-8");
    let has = |text: &str, line: &str| text.lines().any(|it| it == line);
    assert!(has(&text, "fdbroker_up 1") && has(&text, "# TYPE fdbroker_grants_total counter"));
    assert!(!text.contains("# EOF") && !text.contains("# UNIT"));

    broker.running.signal("KILL");
    broker.running.end();
    let (code, stderr) = end(&write_textfile(&socket, dir.path()));
    assert_eq!(code, Some(3), "{stderr}");
    let down = std::fs::read_to_string(&file).expect("UTF-8");
    assert!(has(&down, "fdbroker_up 0") && !down.contains("fdbroker_grants"), "{down}");
    assert_ne!(std::fs::metadata(&file).expect("written").ino(), first.ino(), "by rename");
    let mut old = String::new();
    reader.read_to_string(&mut old).expect("UTF-8");
    assert_eq!(old, text, "a reader of the old file has that whole");
    let left: Vec<_> = std::fs::read_dir(dir.path()).expect("there").flatten().collect();
    assert_eq!(left.len(), 1, "{left:?}");

    let (code, stderr) = end(&write_textfile(&socket, &dir.path().join("nowhere")));
    assert_eq!(code, Some(1));
    assert!(stderr.contains("fdbroker.prom"), "{stderr}");
}

#[test]
fn textfile_when_calls_before_were_killed_then_what_they_left_goes_and_nothing_else() {
    let (broker, dir) = (Broker::start("metrics-left", &[]), TestDir::new("left"));
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(120);
    let file = |name: &str, is_old: bool| {
        let file = std::fs::File::create(dir.path().join(name)).expect("writable");
        is_old.then(|| file.set_modified(old).expect("its own"));
    };
    file(".fdbroker-aB3xYz", true);
    file(".fdbroker-aB3xYy", false);
    for other in [".fdbroker-notes", ".fdbroker-aB3xYz.txt", "node.prom"] {
        file(other, true);
    }
    std::os::unix::fs::symlink("/dev/null", dir.path().join(".fdbroker-linked")).expect("made");
    assert_eq!(end(&write_textfile(&broker.admin_socket(), dir.path())).0, Some(0));
    let left = std::fs::read_dir(dir.path()).expect("there").flatten();
    let mut left: Vec<_> = left.filter_map(|it| it.file_name().into_string().ok()).collect();
    left.sort_unstable();
    let right = [
        ".fdbroker-aB3xYy",
        ".fdbroker-aB3xYz.txt",
        ".fdbroker-linked",
        ".fdbroker-notes",
        "fdbroker.prom",
        "node.prom",
    ];
    assert_eq!(left, right, "a young one may be another call's");
}

/// What promtool says of the input; `None`: it is not installed.
fn promtool(arguments: &[&str], input: &[u8]) -> Option<Output> {
    let mut command = Command::new("promtool");
    command.args(arguments).current_dir(source("")).stdin(Stdio::piped());
    let mut child = match command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) if error.raw_os_error() == Some(Errno::ENOENT as i32) => return None,
        Err(error) => panic!("promtool: {error}"),
    };
    child.stdin.take().expect("piped").write_all(input).expect("it reads");
    Some(child.wait_with_output().expect("it ends"))
}

/// The other tests here check the same as far as they can, without promtool.
#[test]
fn promtool_when_it_is_installed_then_it_finds_nothing_in_the_page_and_the_rules() {
    let (broker, dir) = (Broker::start("metrics-promtool", &[]), TestDir::new("promtool"));
    let (_client, socket) = (broker.client(), broker.admin_socket());
    assert_eq!(end(&write_textfile(&socket, dir.path())).0, Some(0));
    let page = std::fs::read(dir.path().join("fdbroker.prom")).expect("written");
    for (arguments, input) in [
        (&["check", "metrics"][..], &page[..]),
        (&["check", "rules", "prometheus-rules.yml"], &[]),
        (&["test", "rules", "prometheus-rules.test.yml"], &[]),
    ] {
        let Some(output) = promtool(arguments, input) else { return };
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(output.status.success(), "{arguments:?}: {said}");
        assert!(arguments[1] != "metrics" || said.is_empty(), "{said}");
    }
}
