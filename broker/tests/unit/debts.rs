//! Debts in virtual time: what users get of the loop with calls of any length, and who is never
//! made to pay.

use super::*;

const MINUTE_US: u64 = 60_000_000;

const fn user(uid: u32) -> DomainKey {
    DomainKey::new(0, uid)
}

const ONE: DomainKey = user(1000);

/// A call that began at `us` and took so long, all of it the processor's time.
fn long(us: u64, took_us: u64) -> Call {
    Call { ended: Now(us + took_us), took_us, cpu_us: took_us, fds: 0 }
}

fn owing() -> Debts {
    let mut debts = Debts::strict();
    debts.note(ONE, &long(0, 2000));
    debts
}

/// Makes a long call at this minute, when all is paid; whether it is too much beside these others.
fn call_at(debts: &mut Debts, minute: u64, served: &[u32]) -> bool {
    let now = minute * MINUTE_US;
    debts.take_back(Now(now));
    debts.note(ONE, &long(now, 2000));
    let call = debts.take_news().expect("a long call");
    assert_eq!((debts.take_news(), call.us), (None, 2000 - USUAL_CALL_US));
    debts.is_too_much(&call, served.iter().map(|uid| user(*uid)))
}

#[test]
fn note_when_a_call_is_long_then_its_user_alone_is_away_for_20_and_then_200_times_as_long() {
    let mut debts = owing();
    assert!(debts.is_away(ONE) && debts.has_owed(ONE) && !debts.is_away(user(1)));
    let until = 2000 + FIRST_DEBT_FACTOR * (2000 - USUAL_CALL_US);
    assert_eq!(debts.due(), Some(Now(until)));
    assert_eq!(debts.take_back(Now(until)), [ONE]);
    debts.note(ONE, &long(MINUTE_US, 2000));
    let until = MINUTE_US + 2000 + DEBT_FACTOR * (2000 - USUAL_CALL_US);
    assert_eq!(debts.due(), Some(Now(until)));
    assert_eq!((debts.take_back(Now(until - 1)), debts.counts()), (vec![], (2, 1)));
    assert_eq!((debts.take_back(Now(until)), debts.counts()), (vec![ONE], (2, 0)));
    assert_eq!(debts.due(), None);
}

#[test]
fn note_when_calls_are_usual_then_nothing_is_remembered() {
    let mut debts = Debts::strict();
    let usual = |fds| Call { fds, ..long(0, USUAL_CALL_US + USUAL_CALL_US_PER_FD * fds as u64) };
    [0, 1, 253].into_iter().for_each(|fds| debts.note(ONE, &usual(fds)));
    assert!(debts.is_empty());
}

#[test]
fn note_when_the_broker_is_of_one_user_then_nothing_is_owed() {
    let mut debts = Debts::new(false);
    debts.note(ONE, &long(0, 1_000_000));
    assert!(debts.is_empty() && debts.take_news().is_none());
}

#[test]
fn note_when_others_had_the_processor_then_only_a_closer_look_follows() {
    let mut debts = Debts::strict();
    for at in 0..1000 {
        debts.note(ONE, &Call { cpu_us: 3, ..long(at * 10_000, 8000) });
    }
    assert!(!debts.is_away(ONE) && !debts.has_owed(ONE));
    assert!(debts.has_suspects(Now(10_000_000)) && !debts.has_suspects(Now(12_000_000)));
}

#[test]
fn note_when_each_call_is_just_short_of_long_then_the_second_is_a_debt() {
    let mut debts = Debts::strict();
    debts.note(ONE, &long(0, LONG_CALL_US - 100));
    assert!(!debts.is_away(ONE));
    debts.note(ONE, &long(1000, LONG_CALL_US - 100));
    assert!(debts.is_away(ONE));
}

/// A user with a busy second behind it: 30,000 calls of 10 us, and one that took `us` by an
/// interrupt.
fn busy_second(debts: &mut Debts, second: u64, us: u64) {
    for call in 0..30_000 {
        debts.note(ONE, &long(second * 1_000_000 + call * 33, 10));
    }
    debts.note(ONE, &long((second + 1) * 1_000_000 - us, us));
}

#[test]
fn note_when_a_hundredth_of_a_users_calls_is_not_usual_then_it_owes_nothing_however_long_that_lasts()
 {
    let mut debts = Debts::strict();
    debts.note(ONE, &long(0, 900));
    (0..200).for_each(|second| busy_second(&mut debts, second, 2900));
    // Only the calls before the first one are not known.
    assert!(!debts.has_owed(ONE));
    (201..210).for_each(|second| busy_second(&mut debts, second, 10));
    busy_second(&mut debts, 210, MOST_ALLOWED_US + 2000);
    assert!(debts.is_away(ONE));
}

#[test]
fn note_when_a_hundred_users_make_long_calls_as_soon_as_they_may_then_they_take_one_part_in_200() {
    const CALL_US: u64 = 55_000;
    let mut debts = Debts::strict();
    let (mut now, mut taken, mut first) = (0, 0, 0);
    while now < 600 * MINUTE_US {
        for uid in 0..100 {
            if !debts.is_away(user(uid)) {
                debts.note(user(uid), &long(now, CALL_US));
                (now, taken) = (now + CALL_US, taken + CALL_US);
            }
        }
        if now < MINUTE_US {
            first = taken;
        }
        now = debts.due().expect("they owe").0.max(now);
        debts.take_back(Now(now));
    }
    assert!(first <= 210 * CALL_US, "{first}");
    let rest = taken - 200 * CALL_US;
    assert!(rest <= now / DEBT_FACTOR + 2 * CALL_US, "{rest} of {now}");
}

/// Interrupts of 30 ms hit every tenth call and as often the loop's own work, which is what
/// excuses.
#[test]
fn note_when_interrupts_hit_the_loop_between_calls_as_often_then_one_user_has_a_first_debt_at_most()
{
    let mut debts = Debts::new(true);
    for at in 0..6000_u64 {
        let now = at * 100_000;
        debts.take_back(Now(now));
        let hit = user((at % 7) as u32);
        debts.note(hit, &long(now, 30_000));
        debts.excuse(30_000, Now(now + 50_000));
    }
    assert_eq!(debts.counts(), (1, 0));
}

#[test]
fn note_when_a_users_own_timers_excuse_its_calls_then_for_four_times_their_time_and_a_minute() {
    let mut debts = Debts::strict();
    debts.excuse(1000, Now(0));
    debts.note(ONE, &long(0, 4 * 1000 + USUAL_CALL_US));
    assert!(!debts.is_away(ONE));
    debts.note(ONE, &long(5000, LONG_CALL_US + USUAL_CALL_US));
    assert!(debts.is_away(ONE), "that is used up");
    debts.excuse(1_000_000, Now(10_000));
    debts.note(user(2), &long(10_000 + MINUTE_US, 2000));
    assert!(debts.is_away(user(2)), "that was long ago");
}

#[test]
fn is_too_much_when_long_in_three_minutes_while_others_were_served_then_the_third_time() {
    let mut debts = Debts::strict();
    assert_eq!([1, 2, 3].map(|at| call_at(&mut debts, at, &[1, 2, 1000])), [false, false, true]);
    assert!(debts.is_away(ONE));
    let until = debts.shut_out_until(ONE).unwrap();
    assert!(!debts.take_back(Now(until.0 - 1)).contains(&ONE));
    assert_eq!((debts.take_back(until), debts.shut_out_until(ONE)), (vec![ONE], None));
    assert!(call_at(&mut debts, 20, &[1]), "then one is enough");
}

#[test]
fn is_too_much_when_only_calls_with_fds_are_long_then_the_user_owes_and_keeps_its_connections() {
    let mut debts = Debts::strict();
    for minute in 1..20 {
        let now = minute * MINUTE_US;
        debts.take_back(Now(now));
        debts.note(ONE, &Call { fds: 1, ..long(now, 2000) });
        let call = debts.take_news().expect("a long call");
        assert!(debts.is_away(ONE));
        assert!(!debts.is_too_much(&call, (1..100).map(user)));
    }
}

#[test]
fn is_too_much_when_the_long_calls_are_in_one_minute_then_they_count_once() {
    let mut debts = Debts::strict();
    call_at(&mut debts, 1, &[1]);
    for second in 1..60 {
        let now = Now(MINUTE_US + second * 1_000_000);
        debts.take_back(now);
        debts.note(ONE, &long(now.0, 1200));
        let call = debts.take_news().expect("a long call");
        assert!(!debts.is_too_much(&call, [user(1)].into_iter()), "{second}");
    }
    assert_eq!([3, 4].map(|at| call_at(&mut debts, at, &[1])), [false, true]);
}

#[test]
fn is_too_much_when_others_were_hit_too_or_none_was_served_then_never() {
    let mut debts = Debts::strict();
    for minute in 1..20 {
        let now = minute * MINUTE_US;
        debts.note(user(1), &long(now - 1_000_000, 2000));
        while debts.take_news().is_some() {}
        assert!(!call_at(&mut debts, minute, &[1, 2]));
        assert!(!call_at(&mut debts, minute + 1, &[]));
    }
}

#[test]
fn is_too_much_when_each_of_a_hundred_users_has_one_long_call_then_none_ends() {
    let mut debts = Debts::strict();
    (0..100).for_each(|uid| debts.note(user(uid), &long(0, 50_000)));
    while let Some(call) = debts.take_news() {
        assert!(call.is_first && !debts.is_too_much(&call, (0..100).map(user)));
        assert_eq!(
            call.until.0,
            50_000 + FIRST_DEBT_FACTOR * (50_000 - USUAL_CALL_US),
            "its own alone"
        );
    }
}

#[test]
fn is_first_when_the_last_long_call_is_forgotten_then_again() {
    let mut debts = owing();
    let is_first = |debts: &mut Debts| debts.take_news().expect("a long call").is_first;
    assert!(is_first(&mut debts));
    debts.note(ONE, &long(30 * MINUTE_US, 2000));
    assert!(!is_first(&mut debts));
    debts.note(ONE, &long(95 * MINUTE_US, 2000));
    assert!(is_first(&mut debts));
}

#[test]
fn entry_when_there_are_too_many_users_then_those_that_owe_are_kept() {
    let mut debts = owing();
    for uid in 0..2 * DEBTORS as u32 {
        debts.note(user(100_000 + uid), &long(u64::from(uid), USUAL_CALL_US + 1));
    }
    assert_eq!(debts.users.len(), DEBTORS);
    assert!(debts.is_away(ONE));
}

#[test]
fn restore_when_a_user_owes_then_it_is_away_for_as_long_and_counts_go_on() {
    let mut debts = Debts::strict();
    assert!(![1, 2].iter().any(|at| call_at(&mut debts, *at, &[1])));
    let mut next = Debts::strict();
    next.restore(&debts.save());
    assert_eq!((next.due(), next.counts()), (debts.due(), debts.counts()));
    assert!(next.is_away(ONE) && call_at(&mut next, 3, &[1]));
    let mut last = Debts::strict();
    last.restore(&next.save());
    assert_eq!(last.shut_out_until(ONE), next.shut_out_until(ONE));
}
