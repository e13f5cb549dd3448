//! The server, and the command without a broker.

use super::page::Page;
use super::rig::Broker;
use super::seen::{Scenario, Seen};
use crate::common::{LIMIT, Running, end, fdbroker, run, run_script, wait_for};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

pub static UP: Scenario = Scenario::new(up);

#[test]
fn metrics_when_no_broker_then_exit_3_and_when_the_address_is_not_this_machines_then_2() {
    assert_eq!(end(&run(&["metrics"])).0, Some(3));
    for address in ["0.0.0.0:9400", "10.1.2.3:80", "[::]:9400", "localhost:1", "unix:"] {
        let (code, stderr) = end(&run(&["metrics", "--listen", address]));
        assert_eq!(code, Some(2), "{address}: {stderr}");
        assert!(stderr.contains("unix:PATH"), "{stderr}");
    }
}

/// The server, and where it says it is.
fn serve(listen: &str, admin_socket: Option<&Path>) -> (Running, String) {
    let mut command = fdbroker(&["metrics", "--listen", listen]);
    if let Some(path) = admin_socket {
        command.env("FDBROKER_ADMIN_SOCKET", path);
    }
    let mut running = Running::start(command);
    let mut line = String::new();
    let stderr = running.0.stderr.as_mut().expect("piped");
    BufReader::with_capacity(1, stderr).read_line(&mut line).expect("readable");
    let at = line.trim_end().strip_prefix("fdbroker: metrics at ").expect("where it serves");
    (running, at.to_owned())
}

fn ask(mut stream: impl Read + Write, request: &str) -> (String, String) {
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer, and its end");
    let (head, body) = answer.split_once("\r\n\r\n").expect("headers");
    let length = format!("Content-Length: {}", body.len());
    assert!(head.lines().any(|line| line == length), "{head}");
    (head.to_owned(), body.to_owned())
}

const GET: &str = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Asks until the page says that the broker answers: a broker which gets no time, as where many
/// tests run, may take longer than the server waits for it, and then it is down.
fn ask_until_up(server: &mut Running, mut ask: impl FnMut() -> (String, String)) -> (String, Page) {
    let until = Instant::now() + LIMIT;
    loop {
        let (head, body) = ask();
        let page = Page::read(&body);
        if page.get("fdbroker_up") == 1.0 {
            return (head, page);
        }
        if Instant::now() >= until {
            // Its end ends what it says.
            let _ = server.0.kill();
            let mut said = String::new();
            let stderr = server.0.stderr.as_mut().expect("piped");
            stderr.read_to_string(&mut said).expect("readable");
            panic!("fdbroker_up is 0; the server says: {said}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn metrics_when_served_on_loopback_then_answers_by_http_whatever_others_do() {
    UP.seen();
}

fn up(seen: &mut Seen) {
    let broker = Broker::start("metrics-loopback", &[]);
    let (mut server, at) = serve("127.0.0.1:0", Some(&broker.admin_socket()));
    let address = at.strip_prefix("http://").and_then(|at| at.strip_suffix("/metrics"));
    let connect = || TcpStream::connect(address.expect("a URL")).expect("it listens");
    // One says nothing, one goes away at once.
    let _silent = connect();
    drop(connect());
    let (head, page) = ask_until_up(&mut server, || ask(connect(), GET));
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    assert!(head.contains("application/openmetrics-text; version=1.0.0"), "{head}");
    seen.note("fdbroker_up", 1.0);
    let build = concat!("fdbroker_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"}");
    assert_eq!(page.get(build), 1.0);
    assert!(ask(connect(), "GET /x HTTP/1.1\r\n\r\n").0.starts_with("HTTP/1.1 404"));
    assert!(ask(connect(), "DELETE /metrics HTTP/1.1\r\n\r\n").0.starts_with("HTTP/1.1 405"));
    assert!(ask(connect(), "nonsense\r\n\r\n").0.starts_with("HTTP/1.1 400"));

    // The broker hangs: the server says so.
    broker.running.signal("STOP");
    assert_eq!(Page::read(&ask(connect(), GET).1).get("fdbroker_up"), 0.0);
    broker.running.signal("CONT");
    ask_until_up(&mut server, || ask(connect(), GET));

    // The broker goes away: the server says so and stays.
    broker.running.signal("TERM");
    wait_for("its end", || (!broker.admin_socket().exists()).then_some(()));
    let (_, body) = ask(connect(), GET);
    assert_eq!(Page::read(&body).get("fdbroker_up"), 0.0);
    seen.note("fdbroker_up", 0.0);
    server.signal("TERM");
    let code = wait_for("end of the server", || server.0.try_wait().expect("own child"));
    assert_eq!(code.code(), Some(0));
}

#[test]
fn metrics_when_served_on_a_socket_then_for_this_user_alone_and_removed_at_the_end() {
    let broker = Broker::start("metrics-socket", &[]);
    let path = broker.dir.path().join("metrics.sock");
    let listen = format!("unix:{}", path.display());
    let (mut server, at) = serve(&listen, Some(&broker.admin_socket()));
    assert_eq!(at, listen);
    let mode = std::fs::metadata(&path).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let connect = || UnixStream::connect(&path).expect("it listens");
    ask_until_up(&mut server, || ask(connect(), GET));

    // A second one does not take its place; one that was killed is in nobody's way.
    let (code, stderr) = end(&run(&["metrics", "--listen", &listen]));
    assert_eq!(code, Some(1), "{stderr}");
    server.signal("KILL");
    drop(server);
    assert!(path.exists());
    let (mut server, _) = serve(&listen, None);
    assert_eq!(Page::read(&ask(connect(), GET).1).get("fdbroker_up"), 0.0);
    server.signal("INT");
    wait_for("end of the server", || server.0.try_wait().expect("own child"));
    assert!(!path.exists());
}

#[test]
fn metrics_when_inside_run_then_a_page() {
    let output = run_script("$F metrics");
    assert_eq!(end(&output).0, Some(0));
    let page = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(Page::read(&page).get("fdbroker_connections"), 0.0);
}
