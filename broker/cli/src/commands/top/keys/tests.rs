//! The bytes of keys, and what each key does.

use super::*;

fn typed(choice: &mut Choice, text: &str) {
    for character in text.chars() {
        choice.press(Key::Char(character));
    }
}

#[test]
fn decode_when_keys_come_together_then_each_in_its_order() {
    let mut decoder = Decoder::default();
    let keys = decoder.decode("q\x1b[A\x1bOB\x1b[5~é\r\x7f\x03\x1b[24~\x01x".as_bytes());
    let expected = [
        Key::Char('q'),
        Key::Up,
        Key::Down,
        Key::PageUp,
        Key::Char('é'),
        Key::Enter,
        Key::Backspace,
        Key::Interrupt,
        Key::Char('x'),
    ];
    assert_eq!(keys, expected);
    assert!(!decoder.is_waiting());
}

#[test]
fn decode_when_a_sequence_comes_in_parts_then_one_key() {
    let mut decoder = Decoder::default();
    for (part, keys) in [("\x1b", &[][..]), ("[", &[]), ("6", &[]), ("~", &[Key::PageDown])] {
        assert_eq!(decoder.decode(part.as_bytes()), keys);
    }
    assert_eq!(decoder.decode(&[0xc3]), []);
    assert_eq!(decoder.decode(&[0xa9]), [Key::Char('é')]);
}

#[test]
fn decode_when_only_escape_then_the_key_once_nothing_follows() {
    let mut decoder = Decoder::default();
    assert_eq!(decoder.decode(b"\x1b"), []);
    assert!(decoder.is_waiting());
    assert_eq!(decoder.give_up(), Some(Key::Escape));
    assert_eq!(decoder.decode(b"\x1b["), []);
    assert_eq!(decoder.give_up(), None);
    assert!(!decoder.is_waiting());
}

#[test]
fn decode_when_nonsense_then_left_out_and_nothing_grows() {
    let mut decoder = Decoder::default();
    assert_eq!(decoder.decode(&[0xff, 0xfe, b'a']), [Key::Char('a')]);
    for _ in 0..100 {
        decoder.decode(b"\x1b[;");
        decoder.decode(b";;;;;;");
        assert!(decoder.pending.len() < 2 * SEQUENCE_BYTES);
    }
}

#[test]
fn press_when_each_key_then_its_choice() {
    let mut choice = Choice { interval: Duration::from_secs(1), ..Choice::default() };
    assert_eq!(choice.press(Key::Char('q')), Act::Quit);
    assert_eq!(choice.press(Key::Interrupt), Act::Quit);
    assert_eq!(choice.press(Key::Suspend), Act::Suspend);
    typed(&mut choice, "psr+");
    assert!(choice.is_paused && choice.order.reversed);
    assert_eq!(choice.order.column, Order::default().column + 1);
    assert_eq!(choice.interval, Duration::from_secs(2));
    typed(&mut choice, " --");
    assert!(!choice.is_paused);
    assert_eq!(choice.interval, Duration::from_millis(500));
}

#[test]
fn press_when_help_is_shown_then_any_key_ends_it_and_does_nothing_else() {
    let mut choice = Choice::default();
    choice.press(Key::Char('?'));
    assert!(choice.helps);
    assert_eq!(choice.press(Key::Char('q')), Act::Draw);
    assert!(!choice.helps);
}

#[test]
fn press_when_a_filter_is_typed_then_it_counts_at_once_and_escape_brings_back_the_old() {
    let mut choice = Choice::default();
    typed(&mut choice, "/qa");
    choice.press(Key::Backspace);
    assert_eq!(choice.filter.0, "q");
    choice.press(Key::Enter);
    typed(&mut choice, "/other");
    choice.press(Key::Escape);
    assert_eq!(choice.filter.0, "q");
    assert_eq!(choice.typing_over, None);
    choice.press(Key::Escape);
    assert_eq!(choice.filter.0, "");
    typed(&mut choice, "/");
    typed(&mut choice, &"x".repeat(1000));
    assert_eq!(choice.filter.0.len(), FILTER_CHARACTERS);
}

#[test]
fn press_when_moved_then_never_beyond_the_last() {
    let shown = Shown { clients: 25, page: 10 };
    let mut choice = Choice { shown, ..Choice::default() };
    let expected =
        [(Key::Up, 0), (Key::Down, 1), (Key::PageDown, 11), (Key::PageUp, 1), (Key::End, 15)];
    for (key, scroll) in expected {
        choice.press(key);
        assert_eq!(choice.scroll, scroll, "{key:?}");
    }
    for _ in 0..100 {
        choice.press(Key::PageDown);
    }
    assert_eq!(choice.scroll, 24);
    choice.press(Key::Home);
    assert_eq!(choice.scroll, 0);
}

#[test]
fn step_when_at_an_end_then_stays() {
    assert_eq!(step(Duration::from_secs(3600), true), Duration::from_secs(3600));
    assert_eq!(step(Duration::from_secs(3600), false), Duration::from_secs(60));
    assert_eq!(step(Duration::from_millis(100), false), Duration::from_millis(100));
}
