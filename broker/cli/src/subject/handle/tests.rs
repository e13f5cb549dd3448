//! Handles with wrong digits, and of other nodes and brokers.

use super::*;
use fdbroker_protocol::{Facts, MemoryKind};

const NODE: u64 = 77;

fn key() -> NodeKey {
    NodeKey::from_bytes([7; NodeKey::BYTES])
}

fn sealed() -> Handle {
    let id = AllocationId { slot: 12, generation: 3 };
    key().seal(NODE, id, &Facts::new(MemoryKind::Memfd, 4096))
}

#[test]
fn check_when_any_digit_of_the_prefix_is_wrong_then_never_another_allocation() {
    assert!(matches!(check(&sealed(), NODE, Some(key())), Ok(id) if id == sealed().id()));
    let hex = sealed().to_string();
    for place in 0..64 {
        let mut digits = hex.clone().into_bytes();
        digits[place] = if digits[place] == b'0' { b'1' } else { b'0' };
        let text = String::from_utf8(digits).expect("hex digits");
        let checked = text.parse::<Handle>().map(|handle| check(&handle, NODE, Some(key())));
        let is_refused = matches!(checked, Err(_) | Ok(Err(Error::NotFound(_))));
        assert!(is_refused, "digit {place}: {checked:?}");
    }
}

#[test]
fn check_when_the_key_is_not_for_this_user_then_the_node_is_checked() {
    assert!(matches!(check(&sealed(), NODE, None), Ok(id) if id == sealed().id()));
    assert!(matches!(check(&sealed(), NODE + 1, None), Err(Error::NotFound(_))));
}

#[test]
fn read_key_when_there_is_none_then_none() {
    assert_eq!(read_key(Path::new("/no/such/key")), None);
    assert_eq!(read_key(Path::new("/dev/null")), None);
}
