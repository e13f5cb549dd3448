//! Unit tests of `src/shares.rs`, which is not public.

use super::*;

#[test]
fn room_when_one_domain_takes_all_it_may_then_a_ninth_is_left_and_of_that_a_ninth() {
    let mut part = Part { held: 0, used: 0, most: 9000 };
    let first = part.room(8);
    assert_eq!(first, 8000);
    part = Part { held: first, used: first, most: 9000 };
    assert_eq!(part.room(8), 0);
    part = Part { held: 0, used: first, most: 9000 };
    assert_eq!(part.room(8), 889);
}

#[test]
fn room_when_taken_one_by_one_then_as_much_as_at_once() {
    for most in [0, 1, 2, 8, 9, 10, 73, 1000] {
        let mut part = Part { held: 0, used: 0, most };
        let at_once = part.room(8);
        while part.room(8) > 0 {
            (part.held, part.used) = (part.held + 1, part.used + 1);
        }
        assert_eq!(part.held, at_once, "of {most}");
    }
}

#[test]
fn room_when_there_are_no_shares_or_no_cap_then_only_caps_count() {
    let part = Part { held: 7, used: 7, most: 10 };
    assert_eq!(part.room(NO_CAP), NO_CAP);
    assert_eq!(Part { most: NO_CAP, ..part }.room(8), NO_CAP);
}
