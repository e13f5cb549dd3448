//! The ledger that one broker hands to the next: any bytes after a right header. An accepted ledger
//! gives a broker that can go on: its sums are right, it comes to rest when polled, and it can be
//! saved again. No ledger must ever make it panic.

use super::core;
use crate::bytes::Bytes;
use fdbroker_core::{Effects, Now};
use fdbrokerd::fuzzing;

/// Later than every time in the seeds.
const NOW: u64 = 1_000_000;
/// Polls at one instant before the core is said to spin.
const MOST_POLLS: usize = 10_000;

pub fn run(data: &[u8]) {
    // Without caps, as most brokers are; and with caps below what is in use.
    for caps in [&[0; 4][..], &[127, 1, 2, 3, 4, 5, 6, 7]] {
        let config = core::config(&mut Bytes(caps));
        let Some(mut restored) = fuzzing::restored(data, &config, Now(NOW)) else { continue };
        restored.check_invariants();
        let mut now = NOW;
        let mut effects = Effects::default();
        for _ in 0..MOST_POLLS {
            let Some(due) = restored.poll_timeout().filter(|due| due.0 < NOW * 2) else { break };
            now = now.max(due.0);
            effects.clear();
            restored.poll(Now(now), &mut effects);
        }
        let due = restored.poll_timeout();
        assert!(due.is_none_or(|due| due.0 > now), "it wants to be polled again and again");
        restored.check_invariants();
        restored.settle_parked(Now(now), &mut effects);
        let again = fuzzing::restored(&fuzzing::saved(&restored), &config, Now(now));
        let again = again.expect("what was saved can be restored");
        assert_eq!(core::without_peak(&again), core::without_peak(&restored), "saved again");
    }
}
