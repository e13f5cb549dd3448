//! Where the admin socket is, and what its answers and errors become.

use super::*;

fn find(pairs: &[(&str, &str)]) -> PathBuf {
    // Of a job in which no program has started a broker.
    let pairs = [pairs, &[("PBS_JOBID", "of the tests")]].concat();
    find_socket(|name| {
        pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
    })
}

#[test]
fn find_socket_when_admin_variable_set_then_it_wins() {
    let found = find(&[("FDBROKER_ADMIN_SOCKET", "/a/b"), ("FDBROKER_SOCKET", "/c/d")]);
    assert_eq!(found, Path::new("/a/b"));
}

#[test]
fn find_socket_when_client_variable_set_then_beside_its_directory() {
    let found = find(&[("FDBROKER_SOCKET", "/run/x/broker.sock")]);
    assert_eq!(found, Path::new("/run/x-admin/admin.sock"));
}

#[test]
fn find_socket_when_nothing_set_then_the_nodes() {
    let node = Path::new("/run/fdbroker-admin/admin.sock");
    assert_eq!(find(&[]), node);
    assert_eq!(find(&[("FDBROKER_SOCKET", "")]), node);
    assert_eq!(find(&[("XDG_RUNTIME_DIR", "/nowhere")]), node);
}

#[test]
fn connect_when_nobody_listens_then_no_broker_and_exit_3() {
    let error = Admin::connect(Path::new("/nowhere/admin.sock")).expect_err("no such socket");
    assert_eq!(error.exit_status(), crate::error::exit::NO_BROKER);
    assert!(error.to_string().contains("fdbroker run"), "{error}");
}

/// A socket that listens at a path of its own, with a queue of that length.
fn listening(name: &str, queue: i32) -> (PathBuf, OwnedFd) {
    use nix::sys::socket::{Backlog, bind, listen};
    let path = std::env::temp_dir().join(format!("fdb-{name}-{}", std::process::id()));
    let flags = SockFlag::SOCK_CLOEXEC;
    let listener = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).expect("one");
    bind(listener.as_raw_fd(), &UnixAddr::new(&path).expect("short")).expect("bound");
    listen(&listener, Backlog::new(queue).expect("a length")).expect("it listens");
    (path, listener)
}

#[test]
fn connect_when_the_queue_stays_full_then_no_answer_within_the_limit() {
    let (path, _listener) = listening("queue", 0);
    // Nobody accepts: the first connection fills the queue.
    let connect = |_| Admin::connect_within(&path, Duration::from_millis(1));
    let ends: Vec<Result<Admin>> = (0..2).map(connect).collect();
    let _ = std::fs::remove_file(&path);
    assert!(ends[0].is_ok(), "{:?}", ends[0]);
    assert!(matches!(ends[1], Err(Error::NoAnswer { .. })), "{:?}", ends[1]);
}

#[test]
fn status_when_the_broker_ends_with_the_connection_in_its_queue_then_no_broker() {
    let (path, listener) = listening("ended", 1);
    let mut admin = Admin::connect(&path).expect("room in the queue");
    drop(listener);
    let error = admin.status().expect_err("it has ended");
    let _ = std::fs::remove_file(&path);
    assert_eq!(error.exit_status(), crate::error::exit::NO_BROKER, "{error}");
}

#[test]
fn connect_when_it_is_the_socket_of_another_program_then_no_broker() {
    let path = std::env::temp_dir().join(format!("fdb-stream-{}", std::process::id()));
    let listener = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
    let error = Admin::connect(&path).expect_err("another type");
    drop(listener);
    let _ = std::fs::remove_file(&path);
    assert_eq!(error.exit_status(), crate::error::exit::NO_BROKER, "{error}");
    assert!(error.to_string().contains("FDBROKER_ADMIN_SOCKET"), "{error}");
}

/// A broker that answers queries from a script, one reply each, then closes.
fn scripted(replies: Vec<Vec<u8>>) -> Admin {
    let (ours, theirs) = fdbroker_scm::seqpacket_pair().expect("a socket pair");
    std::thread::spawn(move || {
        let (mut buffer, mut fds) = ([0; 128], ReceivedFds::with_capacity(0));
        for reply in replies {
            let limit = Some(ANSWER_LIMIT);
            let _ = fdbroker_scm::recv_timeout(theirs.as_fd(), &mut buffer, &mut fds, limit);
            let _ = fdbroker_scm::send(theirs.as_fd(), &reply, &[]);
        }
    });
    Admin::on(ours, Path::new("/scripted"))
}

fn page(id: u64, next_cursor: u32, done: u32, clients: &[u32]) -> Vec<u8> {
    use zerocopy::FromZeros;
    let mut writer = Writer::new();
    writer.start(Kind::AdminClientsReply, id);
    writer.push(&Page { next_cursor: next_cursor.into(), done: done.into() });
    for client in clients {
        let mut record = ClientRecord::new_zeroed();
        record.client = (*client).into();
        writer.push(&record);
    }
    writer.finish(clients.len(), 0).to_vec()
}

fn clients(admin: &mut Admin) -> Result<Vec<u32>> {
    let records = admin.all::<ClientRecord>(Selection::ALL)?;
    Ok(records.iter().map(|record| record.client.get()).collect())
}

#[test]
fn all_when_in_pages_and_one_is_empty_then_every_record_once() {
    let mut admin =
        scripted(vec![page(1, 10, 0, &[1, 2]), page(2, 20, 0, &[]), page(3, 30, 1, &[3])]);
    assert_eq!(clients(&mut admin).expect("pages"), [1, 2, 3]);
}

#[test]
fn first_when_enough_have_come_then_no_further_page_is_asked_for() {
    let first = |enough, pages| {
        let (records, is_cut) =
            scripted(pages).first::<ClientRecord>(Selection::ALL, enough).expect("pages");
        (records.len(), is_cut)
    };
    let pages = || vec![page(1, 10, 0, &[1, 2]), page(2, 20, 1, &[3])];
    assert_eq!(first(2, pages()), (2, true));
    assert_eq!(first(3, pages()), (3, false));
    assert_eq!(first(9, pages()), (3, false));
    let still = vec![page(1, 10, 0, &[1]), page(2, 10, 0, &[2])];
    assert!(scripted(still).first::<ClientRecord>(Selection::ALL, 9).is_err());
}

#[test]
fn all_when_the_cursor_stands_still_then_an_error_and_no_loop() {
    let mut admin = scripted(vec![page(1, 10, 0, &[1]), page(2, 10, 0, &[2])]);
    assert!(matches!(clients(&mut admin), Err(Error::Lost { .. })));
}

#[test]
fn all_when_refused_or_nonsense_then_an_error() {
    let refusal = Writer::new().failed(1, ErrorCode::NotPermitted.into()).to_vec();
    let error = clients(&mut scripted(vec![refusal])).expect_err("refused");
    assert_eq!(error.exit_status(), crate::error::exit::NOT_FOUND);
    for reply in [b"x".to_vec(), page(7, 0, 1, &[])] {
        assert!(clients(&mut scripted(vec![reply])).is_err());
    }
}

#[test]
fn all_when_the_broker_closes_at_once_then_denied() {
    let (path, listener) = listening("closes", 1);
    let mut admin = Admin::connect(&path).expect("room in the queue");
    drop(nix::sys::socket::accept(&listener).expect("a connection"));
    let error = clients(&mut admin).expect_err("closed");
    let _ = std::fs::remove_file(&path);
    assert!(matches!(error, Error::Denied { .. }), "{error}");
}
