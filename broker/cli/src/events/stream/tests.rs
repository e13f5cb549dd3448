//! The stream before brokers that follow a script. Nothing here judges by time.

use super::*;
use crate::events::view::tests::grant;
use fdbroker_protocol::admin::NodeStatus;
use fdbroker_protocol::{ErrorCode, Message, Writer};
use fdbroker_scm::ReceivedFds;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept4, bind, listen, socket,
};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use zerocopy::FromZeros;

/// Longest wait for anything.
const LIMIT: Duration = Duration::from_secs(60);

/// What a broker does with one connection, and ends it then.
#[derive(Clone, Copy)]
enum Does {
    /// Of this incarnation; tells of so many grants, a message each.
    Tell(u64, usize),
    /// Lets nobody watch.
    Refuse,
    /// Closes it at once.
    Close,
    /// Answers what nobody can read.
    Babble,
}

/// A broker that takes one connection after the other, and ends with the last.
struct Scripted(PathBuf);

impl Scripted {
    fn start(name: &str, script: &[Does]) -> Self {
        let dir = std::env::temp_dir().join(format!("fdb-stream-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        let kind = SockType::SeqPacket;
        let listener =
            socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
        let address = UnixAddr::new(&dir.join("admin.sock")).expect("short");
        bind(listener.as_raw_fd(), &address).expect("free");
        listen(&listener, Backlog::new(8).expect("small")).expect("listens");
        let script = script.to_vec();
        let serve = move || script.into_iter().for_each(|does| serve(&listener, does));
        std::thread::spawn(serve);
        Scripted(dir)
    }

    fn stream(&self, patience: Option<Duration>) -> Stream {
        let path = self.0.join("admin.sock");
        let connect = move || Admin::connect(&path);
        start(None, Selection::ALL, patience, connect).expect("a thread")
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn serve(listener: &OwnedFd, does: Does) {
    let socket = accept4(listener, SockFlag::SOCK_CLOEXEC).expect("somebody comes");
    let (mut buffer, mut fds, mut writer) =
        ([0; 128], ReceivedFds::with_capacity(0), Writer::new());
    let mut asked = || {
        let received =
            fdbroker_scm::recv_timeout(socket.as_fd(), &mut buffer, &mut fds, Some(LIMIT))
                .expect("a question");
        Message::parse(&buffer[..received.len]).expect("a message").id
    };
    let send = |bytes: &[u8]| {
        let _ = fdbroker_scm::send_timeout(socket.as_fd(), bytes, &[], Some(LIMIT));
    };
    let mut status = NodeStatus::new_zeroed();
    status.pid = 77.into();
    match does {
        Does::Close => {
            drop(socket);
            // Whoever was closed out looks whether anybody listens still.
            drop(accept4(listener, SockFlag::SOCK_CLOEXEC).expect("a look"));
        }
        Does::Babble => {
            asked();
            send(b"x");
        }
        Does::Refuse => {
            let id = asked();
            writer.start(Kind::AdminStatusReply, id).push(&status);
            send(writer.finish(0, 0));
            send(writer.failed(asked(), ErrorCode::NoQuota.into()));
        }
        Does::Tell(incarnation, messages) => {
            status.incarnation = incarnation.into();
            let id = asked();
            writer.start(Kind::AdminStatusReply, id).push(&status);
            send(writer.finish(0, 0));
            let id = asked();
            writer.start(Kind::AdminEvents, id);
            send(writer.finish(0, 0));
            for _ in 0..messages {
                writer.start(Kind::AdminEvents, 0).push(&grant());
                send(writer.finish(1, 0));
            }
        }
    }
}

/// The first so many things that are said, in words.
fn heard(stream: &Stream, count: usize) -> Vec<String> {
    let mut words = Vec::new();
    while words.len() < count {
        let mut fds = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
        let limit = PollTimeout::try_from(LIMIT).expect("short");
        assert_eq!(poll(&mut fds, limit), Ok(1), "nothing more is said: {words:?}");
        for told in stream.take().expect("the thread runs") {
            words.push(match told {
                Told::Events(records) => format!("{} events", records.len()),
                Told::Lost { error, .. } => format!("lost: {error}"),
                Told::Back(back) => format!("back: {:?} {:?}", back.broker, back.is_continued),
                Told::Over { error, .. } => format!("over {}: {error}", error.exit_status()),
            });
        }
    }
    words
}

#[test]
fn stream_when_the_broker_is_taken_over_or_begins_anew_then_it_goes_on_and_says_which() {
    let script = [Does::Tell(5, 1), Does::Close, Does::Tell(5, 1), Does::Tell(6, 0)];
    let broker = Scripted::start("goes-on", &script);
    let words = heard(&broker.stream(Some(LIMIT)), 6);
    assert_eq!((&words[0][..], &words[3][..]), ("1 events", "1 events"));
    assert!(words[1].starts_with("lost: ") && words[1].ends_with("has ended"), "{words:#?}");
    assert_eq!(words[2], "back: Broker { pid: 77, incarnation: 5 } Some(true)");
    assert!(words[4].starts_with("lost: "), "{words:#?}");
    assert_eq!(words[5], "back: Broker { pid: 77, incarnation: 6 } Some(false)");
}

#[test]
fn stream_when_refused_then_said_once_and_it_goes_on_when_it_may() {
    let script = [Does::Refuse, Does::Refuse, Does::Tell(5, 2)];
    let broker = Scripted::start("refused", &script);
    let words = heard(&broker.stream(None), 4);
    assert!(words[0].starts_with("lost: the broker refused"), "{words:#?}");
    assert_eq!(words[1], "back: Broker { pid: 77, incarnation: 5 } None");
    assert_eq!(words[2..4], ["1 events", "1 events"]);
}

#[test]
fn stream_when_none_comes_in_its_place_then_over_with_status_3_and_a_remedy() {
    let broker = Scripted::start("gone", &[Does::Tell(5, 0)]);
    let words = heard(&broker.stream(Some(Duration::from_millis(100))), 2);
    assert!(words[0].starts_with("lost: "), "{words:#?}");
    assert!(words[1].starts_with("over 3: the broker at "), "{words:#?}");
    assert!(words[1].contains("no other has started") && words[1].contains("start it again"));
}

#[test]
fn stream_when_the_answer_makes_no_sense_then_over_at_once() {
    let broker = Scripted::start("babble", &[Does::Babble]);
    let words = heard(&broker.stream(None), 1);
    assert!(words[0].starts_with("over 1: the broker's answer is broken"), "{words:#?}");
}

#[test]
fn stream_when_nobody_takes_what_is_said_then_bounded_and_nothing_is_left_out() {
    let messages = 40 * MESSAGES_KEPT;
    let broker = Scripted::start("slow", &[Does::Tell(5, messages)]);
    let stream = broker.stream(Some(Duration::ZERO));
    let mut taken = 0;
    while taken < messages {
        let mut fds = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
        let limit = PollTimeout::try_from(LIMIT).expect("short");
        assert_eq!(poll(&mut fds, limit), Ok(1), "after {taken}");
        let all = stream.take().expect("the thread runs");
        assert!(all.len() <= MESSAGES_KEPT + 1, "{}", all.len());
        taken += all.iter().filter(|told| matches!(told, Told::Events(_))).count();
    }
}
