//! Items with names and metadata behind them: what was put together comes back, and what is not
//! sound is refused whole.

use fdbroker_protocol::limits::{MAX_OBJECT_MESSAGE_BYTES, METADATA_BYTES};
use fdbroker_protocol::message::{GrantItem, Header};
use fdbroker_protocol::named::got_bytes;
use fdbroker_protocol::object::{
    ObjectCreateHead, ObjectEventItem, ObjectGetHead, ObjectGotHead, ObjectGotItem, ObjectGroup,
    ObjectItem, ObjectName, ObjectPrefix, ObjectRecord,
};
use fdbroker_protocol::{DecodeError, Kind, MAX_BATCH, Message, Writer, is_object_name};
use proptest::prelude::*;
use zerocopy::FromZeros;

fn object(name: &[u8], metadata: &[u8]) -> ObjectItem {
    ObjectItem {
        name_len: u8::try_from(name.len()).expect("short"),
        metadata_len: u16::try_from(metadata.len()).expect("short").into(),
        ..ObjectItem::new_zeroed()
    }
}

/// An add of these names with their metadata.
fn add(objects: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.start(Kind::ObjectAdd, 3).push(&ObjectGroup { group: 7.into() });
    for (name, metadata) in objects {
        writer.push(&object(name, metadata)).push(*name).push(*metadata);
    }
    writer.finish(objects.len(), 0).to_vec()
}

/// Names and metadata.
type Parts = Vec<(Vec<u8>, Vec<u8>)>;

fn read(bytes: &[u8]) -> Result<Parts, DecodeError> {
    let message = Message::parse(bytes).expect("the header is whole");
    let (head, items) = message.head_and_named::<ObjectGroup, ObjectItem>()?;
    assert_eq!((head.group.get(), items.len()), (7, message.count));
    Ok(items.map(|(_, name, metadata)| (name.to_vec(), metadata.to_vec())).collect())
}

#[test]
fn head_and_named_when_written_then_names_and_metadata_come_back_in_order() {
    let objects: [(&[u8], &[u8]); 3] = [(b"a/1", b""), ("ä".as_bytes(), b"\0x"), (b"b", b"meta")];
    let right: Vec<_> =
        objects.iter().map(|(name, metadata)| (name.to_vec(), metadata.to_vec())).collect();
    assert_eq!(read(&add(&objects)), Ok(right));
    assert_eq!(read(&add(&[])), Ok(Vec::new()));
}

#[test]
fn head_and_named_when_a_byte_is_missing_or_over_then_refused() {
    let whole = add(&[(b"a", b"12"), (b"b", b"")]);
    for length in size_of::<Header>()..whole.len() {
        assert!(read(&whole[..length]).is_err(), "{length} bytes of {}", whole.len());
    }
    assert_eq!(read(&[whole, vec![0]].concat()), Err(DecodeError::Item(2)));
}

#[test]
fn head_and_named_when_a_name_is_not_sound_then_its_item_is_said() {
    for name in [&b""[..], b"a\0b", b"\xff", b"\xc3"] {
        assert!(!is_object_name(name));
        assert_eq!(read(&add(&[(b"a", b""), (name, b"")])), Err(DecodeError::Item(1)));
    }
    assert!(is_object_name(&[b'x'; 255]) && !is_object_name(&[b'x'; 256]));
}

#[test]
fn head_and_named_when_metadata_or_message_is_too_long_then_refused() {
    let longest = vec![1; METADATA_BYTES];
    assert!(read(&add(&[(b"a", &longest)])).is_ok());
    let longer = vec![1; METADATA_BYTES + 1];
    assert_eq!(read(&add(&[(b"a", &longer)])), Err(DecodeError::Item(0)));
    let many: Vec<(&[u8], &[u8])> = vec![(b"a", &longest); 8];
    let bytes = add(&many);
    assert!(bytes.len() > MAX_OBJECT_MESSAGE_BYTES);
    assert_eq!(read(&bytes), Err(DecodeError::TooLong(bytes.len())));
}

#[test]
fn named_when_an_event_has_no_name_then_good_and_a_record_without_is_not() {
    let mut writer = Writer::new();
    writer.start(Kind::ObjectEvents, 0).push(&ObjectEventItem::new_zeroed());
    let bytes = writer.finish(1, 0).to_vec();
    let message = Message::parse(&bytes).expect("whole");
    let mut events = message.named::<ObjectEventItem>().expect("an event without a name");
    assert_eq!(events.next().map(|(_, name, _)| name), Some(&b""[..]));
    assert!(message.named::<ObjectRecord>().is_err());
}

#[test]
fn prefix_when_lengths_are_right_then_both_parts_and_else_refused() {
    let list = |prefix: &[u8], after: &[u8], rest: &[u8]| {
        let mut writer = Writer::new();
        let [prefix_len, after_len] =
            [prefix, after].map(|part| u8::try_from(part.len()).expect("short"));
        let head = ObjectPrefix { prefix_len, after_len, ..ObjectPrefix::new_zeroed() };
        writer.start(Kind::ObjectList, 3).push(&head).push(prefix).push(after).push(rest);
        writer.finish(0, 0).to_vec()
    };
    for (prefix, after) in [(&b""[..], &b""[..]), (b"a/", b""), (b"a/", b"a/7"), (b"\xc3", b"")] {
        let bytes = list(prefix, after, b"");
        let parts = Message::parse(&bytes).expect("whole").prefix().map(|it| (it.1, it.2));
        assert_eq!(parts, Ok((prefix, after)));
    }
    for bytes in [list(b"a", b"b", b"c"), list(b"a", b"\0", b"")] {
        assert!(Message::parse(&bytes).expect("whole").prefix().is_err());
    }
    let bytes = list(b"ab", b"", b"");
    assert!(Message::parse(&bytes[..bytes.len() - 1]).expect("whole").prefix().is_err());
}

/// The answer to a get of these items, with so many grants, each with driver data, and these bytes
/// behind.
fn got(items: &[ObjectGotItem], grants: u16, metadata: &[u8]) -> Vec<u8> {
    let mut writer = Writer::new();
    let head = ObjectGotHead { grants: grants.into(), ..ObjectGotHead::new_zeroed() };
    writer.start(Kind::ObjectGot, 3).push(&head).push(items);
    let grant = GrantItem { driver_data_len: 64, ..GrantItem::new_zeroed() };
    (0..grants).for_each(|_| _ = writer.push(&grant));
    (0..grants).for_each(|_| _ = writer.push(&[9_u8; 64]));
    writer.push(metadata);
    writer.finish(items.len(), grants.into()).to_vec()
}

#[test]
fn got_when_written_then_every_part_comes_back() {
    let item = |grant: u16, here: u8| ObjectGotItem {
        grant: grant.into(),
        metadata_len: u16::from(here).into(),
        metadata_here: here,
        ..ObjectGotItem::new_zeroed()
    };
    let long = ObjectGotItem { metadata_len: 4096.into(), ..item(0, 0) };
    let bytes = got(&[item(1, 2), long, item(0, 3)], 2, b"abcde");
    let parts = Message::parse(&bytes).expect("whole").got().expect("whole");
    assert_eq!((parts.items.len(), parts.grants.len(), parts.driver_data.len()), (3, 2, 2));
    assert_eq!(parts.metadata, b"abcde");
    assert_eq!(bytes.len(), got_bytes(3, 2, 2) + 5);
    let wrong = [
        got(&[item(2, 0)], 2, b""),
        got(&[item(0, 1)], 1, b""),
        got(&[item(0, 0)], 1, b"x"),
        got(&[item(0, 65)], 1, &[0; 65]),
        got(&[ObjectGotItem { metadata_here: 1, ..long }], 1, b"x"),
    ];
    for bytes in wrong {
        assert!(Message::parse(&bytes).expect("the header is whole").got().is_err());
    }
}

#[test]
fn got_bytes_when_a_get_is_full_and_has_no_driver_data_then_it_fits() {
    assert!(got_bytes(MAX_BATCH, MAX_BATCH, 0) <= MAX_OBJECT_MESSAGE_BYTES);
}

proptest! {
    #[test]
    fn named_when_bytes_are_random_then_all_or_nothing(
        count in 0..=253_usize,
        body in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        let mut writer = Writer::new();
        writer.start(Kind::ObjectGet, 1).push(&body[..]);
        let bytes = writer.finish(count, 0).to_vec();
        let message = Message::parse(&bytes).expect("the header is whole");
        if let Ok((_, items)) = message.head_and_named::<ObjectGetHead, ObjectName>() {
            prop_assert_eq!(items.filter(|(_, name, _)| is_object_name(name)).count(), count);
        }
        if let Ok((_, items)) = message.head_and_named::<ObjectCreateHead, ObjectItem>() {
            prop_assert_eq!(items.count(), count);
        }
        let _ = (message.got(), message.prefix(), message.named::<ObjectRecord>());
    }

    #[test]
    fn named_when_names_are_any_text_then_they_come_back(
        names in prop::collection::vec("[^\\x00]{1,40}", 0..20),
    ) {
        let objects: Vec<(&[u8], &[u8])> =
            names.iter().map(|name| (name.as_bytes(), &name.as_bytes()[1..])).collect();
        let back = read(&add(&objects)).expect("sound");
        prop_assert!(back.iter().map(|(name, _)| &name[..]).eq(names.iter().map(String::as_bytes)));
    }
}

#[test]
fn bytes_of_an_item_when_it_is_all_zeros_then_it_has_no_name_and_is_refused() {
    let mut writer = Writer::new();
    writer.start(Kind::ObjectAdd, 1).push(&ObjectGroup { group: 7.into() });
    writer.push(&ObjectItem::new_zeroed());
    assert_eq!(read(writer.finish(1, 0)), Err(DecodeError::Item(0)));
}
