//! Rounds of looks at the memfds that are held: they can grow. Must never take long at a time.

use crate::clock;
use crate::fds::classify;
use crate::limits::{FILES_PAUSE, FILES_PER_LOOK, FILES_ROUND, FILES_ROUND_OF_FEW, SLOTS_PER_LOOK};
use fdbroker_core::Now;
use fdbroker_protocol::MemoryKind;
use std::os::fd::{AsFd, OwnedFd};

#[derive(Debug, Default)]
pub struct Rounds {
    /// `None`: no fd is held.
    due: Option<Now>,
    /// The slot at which the round goes on.
    from: usize,
}

impl Rounds {
    /// An fd is held from now on.
    pub fn begin(&mut self, now: Now) {
        self.due.get_or_insert(now);
    }

    /// When the next look is due.
    pub fn due(&self) -> Option<Now> {
        self.due
    }

    /// What some of the memfds pin now, bytes, by slot; `stored`: how many fds there are.
    pub fn look(
        &mut self,
        held: &[Option<OwnedFd>],
        kinds: &[Option<MemoryKind>],
        stored: u64,
        now: Now,
    ) -> Vec<(u32, u64)> {
        let looks = 1 + (held.len() / SLOTS_PER_LOOK) as u64 + stored / FILES_PER_LOOK as u64;
        let looks = u32::try_from(looks).unwrap_or(u32::MAX);
        let pause = (FILES_ROUND_OF_FEW / looks).max(FILES_PAUSE).min(FILES_ROUND / looks);
        self.due = (stored > 0).then(|| clock::after(now, pause));
        let (mut measured, from) = (Vec::new(), self.from);
        let end = held.len().min(from + SLOTS_PER_LOOK);
        self.from = if end == held.len() { 0 } else { end };
        for slot in from..end {
            if measured.len() == FILES_PER_LOOK {
                self.from = slot;
                break;
            }
            if let (Some(MemoryKind::Memfd), Some(fd)) = (kinds[slot], &held[slot])
                && let Some(file) = classify::file_of(MemoryKind::Memfd, fd.as_fd())
                && let Ok(number) = u32::try_from(slot)
            {
                measured.push((number, file.pinned_bytes));
            }
        }
        measured
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn look_when_few_are_held_then_again_in_a_second_and_of_many_all_within_ten() {
        for (stored, round) in [(1, 1), (2560, 1), (25_600, 10), (1 << 20, 10)] {
            let (mut rounds, now) = (Rounds::default(), clock::now());
            rounds.begin(now);
            rounds.look(&[], &[], stored, now);
            let looks = u32::try_from(stored / FILES_PER_LOOK as u64).expect("few");
            let least = Duration::from_secs(round) / (looks + 2);
            let due = rounds.due().expect("some are held");
            assert!(due >= clock::after(now, least), "{stored}");
            assert!(due <= clock::after(now, Duration::from_secs(round)), "{stored}");
            rounds.look(&[], &[], 0, now);
            assert_eq!(rounds.due(), None);
        }
    }
}
