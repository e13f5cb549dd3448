//! Fds that lanes look at, close or drop, and the clients that wait for it.

use super::*;
use crate::fds::closing::Reading;
use crate::fds::jobs::LookFn;
use crate::limits::REFUSED_FDS_PER_UID;
use fdbroker_core::Lane;

/// Closes of refused fds hang until the writer is dropped.
fn hanging_close() -> (PipeWriter, CloseFn) {
    let (end_hang, wait) = hang();
    let close: CloseFn = Arc::new(move |fd, lane| {
        if lane == Lane::Refused {
            wait();
        }
        drop(fd);
    });
    (end_hang, close)
}

#[test]
fn connection_when_its_own_end_lies_in_it_then_nothing_of_it_is_left() {
    let mut bench = Bench::new(&[]);
    let (other, _a) = bench.client();
    let handle = bench.register(&other);
    let (peer, event) = bench.client();
    peer.send(&acquire(1, &handle, 0), &[]);
    bench.rest();

    // The grant is unread, so the socket is kept for its peer: which lies in it, behind a broken
    // message.
    peer.send(&[0], &[]);
    peer.send(&release(2), &[peer.0.as_fd()]);
    drop((peer, event));

    bench.until(|server| server.connections.len() == 1);
}

#[test]
fn client_when_closes_of_its_uid_are_waited_for_then_served_unless_it_sends_fds() {
    let (end_hang, close) = hanging_close();
    let mut bench = Bench::with(WHOLE_MESSAGES, KernelFeatures::ALL, close);
    let (flood, _a) = bench.client();
    let (other, _b) = bench.client();
    let fd = memfd();
    flood.send(&[0], &[fd.as_fd(); 100]);
    bench.rest();

    other.send(&release(1), &[]);
    other.send(&register(1), &[fd.as_fd()]);
    other.send(&release(2), &[]);
    bench.rest();

    assert_eq!(other.count(), 1, "what comes without fds, and is not behind some");
    drop(end_hang);
    let is_open = |server: &Server| server.waiting.due().is_none();
    bench.until(is_open);
    bench.rest();
    assert_eq!(other.count(), 2);
}

/// How many fds of this process are of the same file; other tests have fds of their own meanwhile.
fn open_fds_of(fd: &OwnedFd) -> usize {
    use std::os::unix::fs::MetadataExt;
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let file = std::fs::metadata(link).unwrap().ino();
    let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    all.filter(|it| std::fs::metadata(it.path()).is_ok_and(|of| of.ino() == file)).count()
}

#[test]
fn refused_fds_when_their_close_hangs_then_no_more_pile_up_and_all_else_is_served() {
    let (end_hang, close) = hanging_close();
    let mut bench = Bench::with(WHOLE_MESSAGES, KernelFeatures::ALL, close);
    let (other, _b) = bench.client();
    let fd = memfd();
    // Fds with a message that takes none.
    let fds = vec![fd.as_fd(); REFUSED_FDS_PER_UID as usize];
    let mut broken = release(9);
    broken[6..8].copy_from_slice(&(fds.len() as u16).to_le_bytes());
    let (hostile, _a) = bench.client();
    hostile.send(&broken, &fds);
    bench.rest();
    assert_eq!(hostile.failed().result(), Err(ErrorCode::Protocol));

    let uid = nix::unistd::getuid().as_raw();
    other.send(&release(1), &[]);
    other.send(&register(1), &[fd.as_fd()]);
    bench.rest();
    assert_eq!(other.count(), 1, "what brings fds waits for a while");
    bench.until(|server| server.fds.reading(uid) == Reading::WithoutFds);
    bench.rest();
    assert_eq!(other.failed().result(), Err(ErrorCode::NoQuota), "then it is refused");
    let before = open_fds_of(&fd);
    for _ in 0..10 {
        let (hostile, _a) = bench.client();
        hostile.send(&broken, &fds);
        other.send(&register(1), &[fd.as_fd()]);
        // Its message is looked at once a lane has dropped the one before.
        bench.until(|_| other.has_message());
        let status = other.failed();
        assert_eq!(status.result(), Err(ErrorCode::NoQuota));
        assert_eq!(status.resource, Resource::RefusedFds as u8);
    }
    bench.rest();
    let after = open_fds_of(&fd);
    assert!(after < before + 60, "{before} fds, then {after}");

    drop(end_hang);
    // The last hostile message may still be there, with its fds.
    bench.until(|server| server.connections.len() == 1 && !server.fds.is_closing());
    bench.until(|server| server.fds.reading(uid) == Reading::Free);
    bench.register(&other);
}

/// A TCP socket with so much unsent that its last close waits until the other end, which is
/// returned too, is gone.
fn lingering() -> (OwnedFd, std::net::TcpStream) {
    use nix::sys::socket::{setsockopt, sockopt::Linger};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    setsockopt(&stream, Linger, &libc::linger { l_onoff: 1, l_linger: 3600 }).unwrap();
    stream.set_nonblocking(true).unwrap();
    while std::io::Write::write(&mut &stream, &[0; 65536]).is_ok() {}
    (stream.into(), other)
}

fn counting_close() -> (CloseFn, PipeReader) {
    let (closed, count) = counter();
    let close: CloseFn = Arc::new(move |fd, _| {
        count();
        drop(fd);
    });
    (close, closed)
}

#[test]
fn message_when_it_has_more_fds_than_credit_then_a_lane_closes_all_of_them() {
    let (close, closed) = counting_close();
    let mut bench = Bench::with(&[], KernelFeatures::ALL, close);
    let (client, _event) = bench.client();
    let fd = memfd();
    client.send(&register(200), &[fd.as_fd(); 200]);
    bench.rest();
    assert_eq!(client.failed().result(), Err(ErrorCode::Protocol));
    bench.until(|_| counted(&closed) == 200);
}

#[test]
fn hello_when_it_has_fds_then_a_lane_closes_them() {
    let (close, closed) = counting_close();
    let features = KernelFeatures::without("pass_rights").unwrap();
    let mut bench = Bench::with(&[], features, close);
    let peer = bench.raw();
    peer.send(&hello(), &[memfd().as_fd(); 3]);
    bench.until(|_| counted(&closed) == 3);
    assert_eq!(peer.failed().result(), Err(ErrorCode::Protocol));
}

#[test]
fn fds_when_sent_before_hello_is_answered_then_the_kernel_refuses_them_if_it_can() {
    let bench = Bench::new(&[]);
    let peer = bench.raw();
    let sent = fdbroker_scm::send(peer.0.as_fd(), &hello(), &[memfd().as_fd()]);
    assert_eq!(sent.is_err(), KernelFeatures::detect().unwrap().pass_rights);
}

#[test]
fn message_when_closes_of_its_uid_hang_then_refused_by_name_and_a_lane_drops_its_fds() {
    let (end_hang, close) = hanging_close();
    let mut bench = Bench::with(WHOLE_MESSAGES, KernelFeatures::ALL, close);
    let ((flood, _a), (first, _b), (other, _c)) = (bench.client(), bench.client(), bench.client());
    flood.send(&[0], &[memfd().as_fd(); 100]);
    let uid = nix::unistd::getuid().as_raw();
    bench.until(|server| server.fds.reading(uid) == Reading::WithoutFds);

    let (socket, reader) = lingering();
    first.send(&register(1), &[socket.as_fd()]);
    drop(socket);
    first.send(&release(1), &[]);
    other.send(&register(1), &[memfd().as_fd()]);
    bench.rest();
    assert_eq!(first.failed().result(), Err(ErrorCode::NoQuota));
    assert_eq!(other.failed().result(), Err(ErrorCode::NoQuota), "its lane is not free");
    assert_eq!(first.count(), 0, "what is behind the fds waits until they are closed");
    let (third, _d) = bench.client();
    third.send(&release(1), &[]);
    bench.rest();
    assert_eq!(third.count(), 1);

    drop(reader);
    let waits = |server: &Server| server.connections.iter().any(|(_, it)| it.waits_for_drop);
    bench.until(|server| !waits(server));
    bench.rest();
    assert_eq!(first.count(), 1);
    drop(end_hang);
    bench.until(|server| server.fds.reading(uid) == Reading::Free && !server.fds.is_closing());
    bench.register(&other);
}

#[test]
fn connection_when_the_close_of_its_socket_hangs_then_on_record_until_it_is_closed() {
    let (end_hang, close) = hanging_close();
    let mut bench = Bench::with(WHOLE_MESSAGES, KernelFeatures::ALL, close);
    let (client, event) = bench.client();
    client.send(&[0], &[]);
    client.send(&register(1), &[memfd().as_fd()]);
    event.send(&release(1), &[memfd().as_fd()]);
    bench.rest();
    drop((client, event));
    bench.rest();
    assert_eq!(bench.server.core.totals().node.now(Resource::Connections), 0);
    assert_eq!(bench.server.connections.len(), 1, "its sockets still have their places");
    drop(end_hang);
    bench.until(|server| server.connections.is_empty() && !server.fds.is_closing());
}

/// A bench where each file stands for a dma-buf, if `look` says so.
fn bench_with_look(look: LookFn) -> Bench {
    let calls = Calls { look, ..calls() };
    let dir = tempfile::tempdir().unwrap();
    let none = Inherited::default();
    let mut bench = Bench::in_directory(dir, &[], KernelFeatures::ALL, calls, none);
    bench.server.classifier.take_for_dmabufs(b"/");
    bench
}

/// A file with that much in it, of a file system without seals.
fn file() -> OwnedFd {
    std::fs::File::open("/proc/self/exe").unwrap().into()
}

fn kind(peer: &Peer) -> Option<Kind> {
    let (bytes, _) = peer.recv().ok()?;
    Some(Message::parse(&bytes).unwrap().kind)
}

#[test]
fn register_when_its_dmabuf_has_to_be_looked_at_then_it_waits_and_others_do_not() {
    let ((mut go_on, wait), (looks, count)) = (hang(), counter());
    let mut bench = bench_with_look(Arc::new(move |fd| {
        count();
        wait();
        Some(crate::kernel::stat(fd).unwrap().device)
    }));
    let ((first, _a), (other, _b)) = (bench.client(), bench.client());
    first.send(&register_as(MemoryKind::DmaBuf, 1), &[file().as_fd()]);
    first.send(&release(7), &[]);
    other.send(&release(1), &[]);
    bench.rest();
    assert_eq!(other.count(), 1);
    assert_eq!(first.count(), 0, "nothing overtakes it");

    std::io::Write::write_all(&mut go_on, b"1").unwrap();
    bench.until(|server| server.waiting.suspended_uids().is_empty());
    bench.rest();
    assert_eq!(kind(&first), Some(Kind::RegisterReply));
    assert_eq!(kind(&first), Some(Kind::LeaseReply));
    assert_eq!(bench.server.core.totals().gauges.stored_fds, 1);

    first.send(&register_as(MemoryKind::DmaBuf, 1), &[file().as_fd()]);
    bench.rest();
    assert_eq!(kind(&first), Some(Kind::RegisterReply));
    assert_eq!(counted(&looks), 1, "one tells for all");
}

#[test]
fn register_when_the_look_at_its_fd_hangs_then_refused_by_name_and_nothing_is_left() {
    let (end_hang, wait) = hang();
    let mut bench = bench_with_look(Arc::new(move |_| {
        wait();
        None
    }));
    let ((first, _a), (other, _b)) = (bench.client(), bench.client());
    first.send(&register_as(MemoryKind::DmaBuf, 1), &[file().as_fd()]);
    bench.rest();
    other.send(&release(1), &[]);
    bench.until(|server| server.waiting.suspended_uids().is_empty());
    bench.rest();
    assert_eq!(other.count(), 1);
    let status = first.failed();
    assert_eq!(status, Status::no_quota(Resource::RefusedFds, Scope::Domain, 64, 0));
    other.send(&register(1), &[memfd().as_fd()]);
    bench.rest();
    assert_eq!(other.failed().result(), Err(ErrorCode::NoQuota), "so are its uid's deposits");

    drop(end_hang);
    let uid = nix::unistd::getuid().as_raw();
    bench.until(|server| server.fds.reading(uid) == Reading::Free && !server.fds.is_closing());
    bench.register(&other);
}

#[test]
fn register_when_its_client_ends_during_the_look_then_nothing_is_left() {
    let (go_on, wait) = hang();
    let mut bench = bench_with_look(Arc::new(move |_| {
        wait();
        None
    }));
    let (first, _a) = bench.client();
    first.send(&register_as(MemoryKind::DmaBuf, 1), &[file().as_fd()]);
    bench.rest();
    drop((first, _a));
    bench.rest();
    drop(go_on);
    bench.until(|server| server.waiting.suspended_uids().is_empty() && !server.fds.is_closing());
    bench.until(|server| server.connections.is_empty());
}

#[test]
fn sockets_when_turned_away_and_their_closes_hang_then_the_door_is_shut_and_clients_are_served() {
    let (end_hang, close) = hanging_close();
    let features = KernelFeatures::without("pass_rights").unwrap();
    let set = ["caps.domain.connections=1", "limits.table_fds=1024"];
    let mut bench = Bench::with(&set, features, close);
    let (inside, _event) = bench.client();
    let most =
        usize::try_from(crate::limits::turned_away(bench.server.settings.table_fds)).unwrap();
    let turned_away = |bench: &mut Bench| {
        let peer = bench.raw();
        peer.send(&hello(), &[memfd().as_fd()]);
        peer
    };
    let _peers: Vec<Peer> = (0..most).map(|_| turned_away(&mut bench)).collect();
    bench.until(|server| !server.fds.closing().may_turn_away());
    let late = turned_away(&mut bench);
    bench.rest();
    assert!(!late.has_message(), "it is not accepted");
    bench.register(&inside);

    drop(end_hang);
    bench.until(|server| !server.fds.is_closing());
    bench.rest();
    assert_eq!(late.failed().result(), Err(ErrorCode::NoQuota));
}

#[test]
fn connections_when_their_closes_hang_then_their_user_leaves_some_to_others() {
    let (end_hang, close) = hanging_close();
    let mut bench = Bench::with(&["limits.max_clients=18"], KernelFeatures::ALL, close);
    // As in a broker of several users.
    bench.server.settings.core.share_factor = 8;
    let refusal = (0..18).find_map(|_| {
        let peer = bench.raw();
        peer.send(&hello(), &[]);
        bench.rest();
        bench.until(|server| server.connections.iter().all(|(_, it)| it.is_known));
        bench.rest();
        let (bytes, fds) = peer.recv().unwrap();
        if fds.is_empty() {
            return Some(Message::parse(&bytes).unwrap().status().unwrap());
        }
        // Nothing reads what is behind a broken message.
        peer.send(&[0], &[]);
        peer.send(&register(1), &[memfd().as_fd()]);
        drop((peer, fds));
        bench.rest();
        None
    });
    let refusal = refusal.expect("one is refused");
    assert_eq!(refusal, Status::no_quota(Resource::RefusedFds, Scope::Domain, 16, 0));
    assert_eq!(bench.server.connections.len(), 16, "of 18");
    drop(end_hang);
    bench.until(|server| server.connections.is_empty() && !server.fds.is_closing());
}
