//! Taking messages apart: what was put together comes back, and no bytes whatever can panic it or
//! make it read past them.

use fdbroker_protocol::message::{
    AcquireHead, AllocationItem, GrantItem, Header, LeaseItem, RegisterHead, RegisterItem,
};
use fdbroker_protocol::{
    AllocationId, DecodeError, HandlePrefix, HandlePrefixItem, Kind, MAX_BATCH, Message,
    PROTOCOL_VERSION, Status, Writer,
};
use proptest::prelude::*;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromZeros, IntoBytes};

fn header(kind: u16, version: u8, count: u16, fd_count: u16) -> Header {
    Header {
        kind: U16::new(kind),
        version,
        flags: 0,
        count: U16::new(count),
        fd_count: U16::new(fd_count),
        id: U64::new(5),
    }
}

#[test]
fn parse_when_written_by_the_writer_then_all_comes_back() {
    let mut writer = Writer::new();
    writer.start(Kind::Acquire, 7);
    writer.push(&AcquireHead { deadline_ms: U32::new(250), flags: U32::ZERO });
    for slot in 0..3 {
        let id = AllocationId { slot, generation: 1 };
        writer.push(&HandlePrefix::unsealed(id).to_bytes());
    }
    let message = Message::parse(writer.finish(3, 0)).expect("whole");
    assert_eq!((message.kind, message.id, message.count), (Kind::Acquire, 7, 3));
    let (head, items) = message.head_and_items::<AcquireHead, HandlePrefixItem>().expect("whole");
    assert_eq!(head.deadline_ms.get(), 250);
    assert_eq!(items.iter().map(|item| item.slot.get()).collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn parse_when_short_then_says_so() {
    for length in 0..size_of::<Header>() {
        assert_eq!(Message::parse(&vec![0; length]).unwrap_err(), DecodeError::Short(length));
    }
}

#[test]
fn parse_when_of_another_version_then_refused_but_hello_passes() {
    let other = PROTOCOL_VERSION + 1;
    let acquire = header(Kind::Acquire as u16, other, 0, 0);
    assert_eq!(Message::parse(acquire.as_bytes()).unwrap_err(), DecodeError::Version(other));
    let hello = header(Kind::Hello as u16, other, 0, 0);
    assert!(Message::parse(hello.as_bytes()).is_ok());
}

#[test]
fn parse_when_kind_is_unknown_or_items_too_many_then_refused() {
    let unknown = header(0x7777, PROTOCOL_VERSION, 0, 0);
    assert_eq!(Message::parse(unknown.as_bytes()).unwrap_err(), DecodeError::UnknownKind(0x7777));
    let many = header(Kind::Release as u16, PROTOCOL_VERSION, 254, 0);
    assert_eq!(Message::parse(many.as_bytes()).unwrap_err(), DecodeError::TooMany(254));
}

#[test]
fn items_when_a_byte_is_missing_or_over_then_refused() {
    let mut writer = Writer::new();
    writer.start(Kind::Release, 0).push(&LeaseItem { lease: U64::new(1) });
    let whole = writer.finish(1, 0).to_vec();
    let short = Message::parse(&whole[..whole.len() - 1]).expect("header is whole");
    assert!(short.items::<LeaseItem>().is_err());
    let long = [whole.as_slice(), &[0]].concat();
    assert!(Message::parse(&long).expect("header is whole").items::<LeaseItem>().is_err());
    assert_eq!(
        Message::parse(&whole).expect("whole").items::<LeaseItem>().expect("whole").len(),
        1
    );
}

#[test]
fn check_fds_when_count_differs_then_names_both() {
    let register = header(Kind::Register as u16, PROTOCOL_VERSION, 2, 2);
    let message = Message::parse(register.as_bytes()).expect("whole");
    assert_eq!(message.check_fds(2), Ok(()));
    assert_eq!(message.check_fds(1), Err(DecodeError::FdCount { announced: 2, arrived: 1 }));
}

#[test]
fn grants_when_some_have_driver_data_then_blocks_follow_the_items() {
    let plain = GrantItem::new_zeroed();
    let with_data = GrantItem { driver_data_len: 64, ..plain };
    let mut writer = Writer::new();
    writer.start(Kind::Granted, 1).push(&plain).push(&with_data).push(&plain).push(&[9_u8; 64]);
    let bytes = writer.finish(3, 0).to_vec();
    let (items, blocks) = Message::parse(&bytes).expect("whole").grants().expect("whole");
    assert_eq!((items.len(), blocks), (3, &[[9_u8; 64]][..]));
    let cut = Message::parse(&bytes[..bytes.len() - 1]).expect("header is whole");
    assert!(cut.grants().is_err());
}

#[test]
fn failed_when_written_then_carries_its_status() {
    let mut writer = Writer::new();
    let status = Status::with_value(fdbroker_protocol::ErrorCode::Protocol, 1);
    let message = Message::parse(writer.failed(3, status)).expect("whole");
    assert_eq!(message.status().expect("whole"), status);
}

proptest! {
    #[test]
    fn parse_when_bytes_are_random_then_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        read_every_way(&bytes);
    }

    #[test]
    fn parse_when_header_is_true_and_body_random_then_never_panics(
        kind in prop::sample::select(Kind::ALL),
        count in 0..=300_u16,
        body in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        let bytes = [header(kind as u16, PROTOCOL_VERSION, count, 0).as_bytes(), &body].concat();
        read_every_way(&bytes);
    }
}

fn read_every_way(bytes: &[u8]) {
    let Ok(message) = Message::parse(bytes) else { return };
    let _ = message.items::<AllocationItem>();
    let _ = message.head_and_items::<RegisterHead, RegisterItem>();
    let _ = message.status();
    if let Ok((items, blocks)) = message.grants() {
        assert!(items.len() == message.count && blocks.len() <= items.len());
    }
    assert!(message.count <= MAX_BATCH || message.kind as u16 >= Kind::AdminStatus as u16);
}
