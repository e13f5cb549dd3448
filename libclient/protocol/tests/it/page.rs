//! The page that documents the protocol against the code: numbers, names and sizes must agree.

use fdbroker_protocol::layouts::LAYOUTS;
use fdbroker_protocol::{ErrorCode, Kind, Resource};

const PAGE: &str = include_str!("../../PROTOCOL.md");

#[test]
fn page_when_read_then_names_every_kind_by_its_number() {
    for kind in Kind::ALL {
        assert!(PAGE.contains(&format!("0x{:02x}", *kind as u16)), "{kind} is not on the page");
    }
}

#[test]
fn page_when_read_then_has_every_error_with_its_number() {
    for code in ErrorCode::ALL {
        let row = format!("| {} | {} |", *code as u16, code.name());
        assert!(PAGE.contains(&row), "{row} is not on the page");
        assert_eq!(ErrorCode::from_number(*code as u16), Some(*code));
    }
    assert_eq!(ErrorCode::from_number(0), None);
    assert_eq!(ErrorCode::from_number(999), None);
}

#[test]
fn page_when_read_then_has_every_resource_with_its_scopes() {
    for resource in Resource::ALL {
        let scopes: Vec<_> = resource.scopes().iter().map(|scope| scope.name()).collect();
        let (number, scopes) = (*resource as u8, scopes.join(", "));
        let row = format!("| {number} | {resource} | {scopes} | {} |", resource.help());
        assert!(PAGE.contains(&row), "{row} is not on the page");
    }
}

#[test]
fn page_when_it_gives_a_size_then_the_layout_has_it() {
    for (name, bytes) in LAYOUTS {
        let short = name.rsplit(':').next().expect("a name");
        for (at, _) in PAGE.match_indices(&format!("{short} ")) {
            let before = PAGE[..at].chars().next_back();
            let rest: String =
                PAGE[at + short.len() + 1..].chars().take_while(char::is_ascii_digit).collect();
            if before.is_some_and(char::is_alphanumeric) || rest.is_empty() {
                continue;
            }
            assert_eq!(rest, bytes.to_string(), "size of {name} on the page");
        }
    }
}
