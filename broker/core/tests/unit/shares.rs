//! Unit tests of `src/shares.rs`, which is not public.

use super::*;

#[test]
fn room_when_one_domain_takes_all_it_may_then_a_ninth_is_left_and_a_sixteenth_of_all_by_the_second()
{
    let mut part = Part { held: 0, used: 0, most: 9000 };
    let first = part.lasting_room(8);
    assert_eq!(first, 8000);
    part = Part { held: first, used: first, most: 9000 };
    assert_eq!(part.lasting_room(8), 0);
    // Of that a sixteenth of the whole is the last.
    part = Part { held: 0, used: first, most: 9000 };
    assert_eq!(part.lasting_room(8), 1000 - 9000 / 16);
}

#[test]
fn room_when_fifteen_domains_take_all_they_may_then_the_next_one_finds_some() {
    for most in [1024, 1820, 16_384, 1_000_000] {
        let mut part = Part { held: 0, used: 0, most };
        for _ in 0..15 {
            part = Part { held: 0, used: part.used + part.lasting_room(8), most };
        }
        assert!(part.lasting_room(8) >= most / 256, "of {most}");
    }
}

#[test]
fn room_when_taken_one_by_one_then_as_much_as_at_once() {
    for most in [0, 1, 2, 8, 9, 10, 73, 600, 1000] {
        let mut part = Part { held: 0, used: 0, most };
        let at_once = part.lasting_room(8);
        while part.lasting_room(8) > 0 {
            (part.held, part.used) = (part.held + 1, part.used + 1);
        }
        assert_eq!(part.held, at_once, "of {most}");
    }
}

#[test]
fn room_when_there_are_no_shares_or_no_cap_then_only_caps_count() {
    let part = Part { held: 7, used: 7, most: 10 };
    assert_eq!(part.lasting_room(NO_CAP), NO_CAP);
    assert_eq!(Part { most: NO_CAP, ..part }.lasting_room(8), NO_CAP);
}
