//! One page after the other, by hand: what a query costs without the command around it.

use fdbroker_protocol::admin::{AllocationRecord, Filter, Page, Query};
use fdbroker_protocol::limits::MAX_ADMIN_MESSAGE_BYTES;
use fdbroker_protocol::{Kind, Message, Writer};
use fdbroker_scm::ReceivedFds;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::time::{Duration, Instant};

const PATIENCE: Option<Duration> = Some(Duration::from_secs(20));

/// The round trips of all pages of allocations from slot `first` on.
pub fn round_trips(admin_socket: &Path, first: usize) -> Vec<Duration> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let admin = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).expect("a socket");
    let address = UnixAddr::new(admin_socket).expect("a short path");
    connect(admin.as_raw_fd(), &address).expect("the broker listens");
    let mut buffer = vec![0; MAX_ADMIN_MESSAGE_BYTES];
    let mut fds = ReceivedFds::with_capacity(0);
    let mut cursor = u32::try_from(first).expect("a slot");
    let (mut times, mut writer) = (Vec::new(), Writer::new());
    loop {
        writer.start(Kind::AdminAllocations, 1).push(&Query {
            cursor: cursor.into(),
            filter: (Filter::None as u32).into(),
            value: 0.into(),
            reserved: 0.into(),
        });
        let bytes = writer.finish(0, 0);
        let began = Instant::now();
        fdbroker_scm::send_timeout(admin.as_fd(), bytes, &[], PATIENCE).expect("sent");
        let received = fdbroker_scm::recv_timeout(admin.as_fd(), &mut buffer, &mut fds, PATIENCE);
        times.push(began.elapsed());
        let message = Message::parse(&buffer[..received.expect("an answer").len]).expect("sound");
        let (page, _) = message.head_and_items::<Page, AllocationRecord>().expect("a page");
        if page.done.get() != 0 {
            return times;
        }
        cursor = page.next_cursor.get();
    }
}
