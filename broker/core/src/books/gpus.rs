//! Which GPUs allocations are on: a small number for each that a domain names, with how many
//! allocations are on it. Must never take a claim for a fact, nor let what one domain claims be in
//! the way of another.

use std::collections::BTreeMap;

use crate::limits::GPUS_PER_DOMAIN;
use fdbroker_protocol::Gpu;
use rustc_hash::FxHashMap;

/// The number of no GPU.
pub const NO_GPU: u16 = u16::MAX;

/// The GPUs of each domain, as they go to a successor: [`Gpu::NONE`] is a free place.
pub type SavedGpus = BTreeMap<u32, Vec<[u8; size_of::<Gpu>()]>>;

/// A GPU as owners of a domain name it; [`Gpu::NONE`], of no allocation: a free place.
#[derive(Clone, Copy, Debug)]
struct Entry {
    gpu: Gpu,
    allocations: u32,
}

/// All of them.
#[derive(Debug, Default)]
pub struct Gpus {
    /// By domain, at most [`GPUS_PER_DOMAIN`] places each, the last one never free.
    by_domain: FxHashMap<u32, Vec<Entry>>,
    /// The number of each. Owners choose the names: a tree, which none makes slow.
    by_name: BTreeMap<(u32, Gpu), u16>,
}

impl Gpus {
    fn of(&self, domain: u32) -> &[Entry] {
        self.by_domain.get(&domain).map_or(&[], Vec::as_slice)
    }

    /// What a number of a domain stands for.
    pub fn get(&self, domain: u32, number: u16) -> Gpu {
        match number {
            NO_GPU => Gpu::NONE,
            number => self.of(domain)[usize::from(number)].gpu,
        }
    }

    /// Whether a domain may name this one.
    pub fn fits(&self, domain: u32, gpu: Gpu) -> bool {
        let all = self.of(domain);
        gpu.is_none()
            || all.len() < GPUS_PER_DOMAIN
            || self.by_name.contains_key(&(domain, gpu))
            || all.iter().any(|it| it.gpu.is_none())
    }

    /// One allocation more of a GPU, where it fits: the GPU's number, and whether it is new.
    pub fn add(&mut self, domain: u32, gpu: Gpu) -> (u16, bool) {
        if gpu.is_none() {
            return (NO_GPU, false);
        }
        let all = self.by_domain.entry(domain).or_default();
        let number = *self.by_name.entry((domain, gpu)).or_insert_with(|| {
            let free = all.iter().position(|it| it.gpu.is_none()).unwrap_or(all.len());
            u16::try_from(free).expect("GPUS_PER_DOMAIN fits")
        });
        let at = usize::from(number);
        if at == all.len() {
            all.push(Entry { gpu, allocations: 0 });
        }
        let allocations = all[at].allocations + 1;
        all[at] = Entry { gpu, allocations };
        (number, allocations == 1)
    }

    /// One allocation fewer; whether it was the last one.
    pub fn remove(&mut self, domain: u32, number: u16) -> bool {
        if number == NO_GPU {
            return false;
        }
        let all = self.by_domain.get_mut(&domain).expect("an allocation is of it");
        let entry = &mut all[usize::from(number)];
        entry.allocations -= 1;
        if entry.allocations > 0 {
            return false;
        }
        self.by_name.remove(&(domain, std::mem::replace(&mut entry.gpu, Gpu::NONE)));
        while all.pop_if(|it| it.gpu.is_none()).is_some() {}
        if all.is_empty() {
            self.by_domain.remove(&domain);
        }
        true
    }

    /// Each with its domain and number, and how many allocations are on it.
    pub fn all(&self) -> impl Iterator<Item = (u32, u16, u32)> + '_ {
        let all =
            self.by_domain.iter().flat_map(|(domain, of)| (0..).zip(of).map(|it| (*domain, it)));
        let named = all.filter(|(_, (_, entry))| !entry.gpu.is_none());
        named.map(|(domain, (number, entry))| (domain, number, entry.allocations))
    }

    pub fn saved(&self) -> SavedGpus {
        let bytes = |of: &Vec<Entry>| of.iter().map(|it| it.gpu.to_bytes()).collect();
        self.by_domain.iter().map(|(domain, of)| (*domain, bytes(of))).collect()
    }

    /// Of these, without allocations yet; `None`: they cannot be.
    pub fn restore(saved: SavedGpus) -> Option<Self> {
        let mut new = Gpus::default();
        for (domain, of) in saved {
            let entry = |bytes| Entry { gpu: Gpu::from_bytes(bytes), allocations: 0 };
            let of: Vec<Entry> = of.into_iter().map(entry).collect();
            let mut named = (0..).zip(&of).filter(|(_, it)| !it.gpu.is_none());
            let is_sound = |(number, it): (u16, &Entry)| {
                it.gpu.is_sound() && new.by_name.insert((domain, it.gpu), number).is_none()
            };
            if of.len() > GPUS_PER_DOMAIN
                || of.last().is_none_or(|last| last.gpu.is_none())
                || !named.all(is_sound)
            {
                return None;
            }
            new.by_domain.insert(domain, of);
        }
        Some(new)
    }

    /// A restored allocation is on it; `false`: it cannot be.
    pub fn count(&mut self, domain: u32, number: u16) -> bool {
        let entry = self.by_domain.get_mut(&domain).and_then(|of| of.get_mut(usize::from(number)));
        let entry = entry.filter(|it| !it.gpu.is_none());
        let is_there = entry.map(|it| it.allocations += 1).is_some();
        is_there || number == NO_GPU
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(number: u16) -> Gpu {
        let mut uuid = [0; 16];
        uuid[..2].copy_from_slice(&number.to_le_bytes());
        Gpu::cuda(uuid, 0, false)
    }

    #[test]
    fn gpu_when_its_last_allocation_leaves_then_its_number_is_anothers() {
        let mut gpus = Gpus::default();
        assert_eq!(gpus.add(1, gpu(7)), (0, true));
        assert_eq!(gpus.add(1, gpu(7)), (0, false));
        assert_eq!(gpus.add(1, gpu(9)), (1, true));
        assert_eq!(gpus.add(2, gpu(7)), (0, true), "another domain's claim");
        assert!(!gpus.remove(1, 0));
        assert!(gpus.remove(1, 0));
        assert_eq!(gpus.add(1, gpu(8)), (0, true));
        assert_eq!((gpus.get(1, 0), gpus.get(1, 1), gpus.get(2, 0)), (gpu(8), gpu(9), gpu(7)));
        assert!(gpus.remove(1, 0) && gpus.remove(1, 1) && gpus.remove(2, 0));
        assert!(gpus.by_domain.is_empty() && gpus.by_name.is_empty());
    }

    #[test]
    fn gpus_when_claimed_by_the_thousand_then_bounded_in_their_domain_alone() {
        let mut gpus = Gpus::default();
        for number in 0..GPUS_PER_DOMAIN as u16 {
            assert!(gpus.fits(1, gpu(number)));
            assert_eq!(gpus.add(1, gpu(number)), (number, true));
        }
        assert!(!gpus.fits(1, gpu(9999)));
        assert!(gpus.fits(1, gpu(0)), "it is known");
        assert!(gpus.fits(1, Gpu::NONE));
        assert!(gpus.fits(2, gpu(9999)));
        assert!(gpus.remove(1, 3));
        assert!(gpus.fits(1, gpu(9999)));
        assert_eq!(gpus.add(1, gpu(9999)), (3, true));
    }

    #[test]
    fn gpus_when_restored_then_only_as_they_can_be() {
        let mut gpus = Gpus::default();
        for number in [1, 2, 3] {
            gpus.add(5, gpu(number));
        }
        gpus.remove(5, 1);
        let saved = gpus.saved();
        let mut again = Gpus::restore(saved.clone()).expect("they can be");
        assert!(again.count(5, 0) && again.count(5, 2) && again.count(5, NO_GPU));
        assert!(!again.count(5, 1) && !again.count(5, 3) && !again.count(6, 0));
        assert_eq!(again.saved(), saved);
        let mut wrong = gpu(1);
        wrong.api = 9;
        let [one, none, wrong] = [gpu(1), Gpu::NONE, wrong].map(Gpu::to_bytes);
        for of in [vec![], vec![one, none], vec![one, one], vec![wrong], vec![one; 257]] {
            assert!(Gpus::restore([(5, of)].into()).is_none());
        }
    }
}
