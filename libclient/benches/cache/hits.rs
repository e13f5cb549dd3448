//! Hit and release: one entry, a million at random, and two threads on one entry.

use crate::cpu::{allowed, pin_to, thread_time};
use crate::daemon::Daemon;
use crate::report::{Report, median};
use crate::rivals::{LockedLru, PlainMap};
use crate::through_c::ThroughC;
use crate::world::{World, deadline};
use fdbroker_client::{Access, Client, Handle, ImportCache, ObjectOptions};
use std::hint::black_box;
use std::sync::Barrier;

/// Samples of each case, and hits of one sample.
const WARM_UPS: usize = 50;
const SAMPLES: usize = 301;
const HITS: usize = 20_000;
/// The two cases that are compared with each other take turns.
const TURNS: usize = 31;

pub fn measure(world: &mut World, cache: &ImportCache, through_c: &ThroughC, report: &mut Report) {
    let hot = world.handles[world.handles.len() / 2];
    hit(cache, &hot);
    let before = cache.stats();
    report.add("hit + release, validated, one hot entry", time(|_| hit(cache, &hot)), "ns", 15.0);
    let hot_in_c = time(|_| through_c.hit(&hot));
    report.add("  through C", hot_in_c, "ns", 20.0);

    let mut order = Order(1);
    let shuffled: Vec<Handle> = {
        let mut handles = world.handles.clone();
        (1..handles.len()).rev().for_each(|last| handles.swap(last, order.below(last + 1)));
        handles
    };
    let count = shuffled.len();
    let at_random = time(|index| hit(cache, &shuffled[index % count]));
    report.add("hit + release, random entry of 1,000,000", at_random, "ns", 70.0);
    let random_in_c = time(|index| through_c.hit(&shuffled[index % count]));
    report.add("  through C", random_in_c, "ns", 100.0);
    beside(&hot, &shuffled, report);
    let cold = time(|_| hit(cache, &world.handles[order.below(count)]));
    report.note("  the same, its handle read from a random place too", cold, "ns");
    let hits = cache.stats().hits - before.hits;
    assert_eq!(hits, 3 * ((SAMPLES + WARM_UPS) * HITS) as u64, "every one was a hit");

    if let [one, two, ..] = *allowed() {
        let (alone, both) = contended(cache, &hot, [one, two]);
        report.note("CPU time per hit, one thread alone", alone, "ns");
        report.note("CPU time per hit, two threads on that entry", both, "ns");
        report.add("  ratio", both / alone, "", 1.3);
    } else {
        println!("one CPU only: two threads at once cannot be measured");
    }
    pin_to(allowed()[0]);
}

/// An object that is got again and again, alone in its group, beside the hit of an import above.
pub fn measure_objects(daemon: &Daemon, report: &mut Report) {
    let client = Client::builder().socket(daemon.socket()).connect().expect("the daemon serves");
    let objects = client.objects();
    let name = "model/layers.17.weight";
    objects.put(name, &[7; 1024], ObjectOptions::default(), deadline()).expect("it is put");
    let get = || objects.get_cached(black_box(name), deadline()).expect("it is there");
    drop(get());
    let version = get().version();
    report.note(
        "object got again + release, alone in its group",
        time(|_| drop(black_box(get()))),
        "ns",
    );
    let clock = time(|_| _ = black_box(deadline()));
    report.note("  of this: a deadline made", clock, "ns");
    assert_eq!(get().version(), version);
}

/// The rivals, which validate nothing: the map does not even count users.
fn beside(hot: &Handle, shuffled: &[Handle], report: &mut Report) {
    let (count, map) = (shuffled.len(), PlainMap::of(shuffled));
    let plain = |handle: &Handle| {
        black_box(map.hit(black_box(handle)));
    };
    report.note("plain hash map, one hot entry", time(|_| plain(hot)), "ns");
    report.note("  random entry of 1,000,000", time(|index| plain(&shuffled[index % count])), "ns");
    drop(map);
    let lru = LockedLru::of(shuffled);
    let locked = |handle: &Handle| lru.hit_and_release(black_box(handle));
    report.note("LRU behind a mutex, hit + release, one hot entry", time(|_| locked(hot)), "ns");
    report.note(
        "  random entry of 1,000,000",
        time(|index| locked(&shuffled[index % count])),
        "ns",
    );
}

#[inline]
fn hit(cache: &ImportCache, handle: &Handle) {
    let import = cache.hit(black_box(handle), Access::Read).expect("it is there");
    black_box(import.as_ptr());
}

/// CPU time of one call, the median of the samples, in ns. A hit never waits, so on a machine with
/// nothing else to do it is the time; on another it leaves out what others took.
fn time(mut call: impl FnMut(usize)) -> f64 {
    let mut index = 0;
    let mut sample = || {
        let begun = thread_time();
        for _ in 0..HITS {
            call(index);
            index += 1;
        }
        (thread_time() - begun).as_nanos() as f64 / HITS as f64
    };
    // The first warm the caches.
    for _ in 0..WARM_UPS {
        sample();
    }
    median((0..SAMPLES).map(|_| sample()).collect())
}

/// CPU time of one hit in ns: of a thread alone, and of two that hit the same entry at the same
/// time.
fn contended(cache: &ImportCache, hot: &Handle, cpus: [usize; 2]) -> (f64, f64) {
    let (mut alone, mut both) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        alone.extend(run_on(cache, hot, &cpus[..1]));
        let of_each = run_on(cache, hot, &cpus);
        both.push(of_each.iter().sum::<f64>() / of_each.len() as f64);
    }
    (median(alone), median(both))
}

/// A thread per CPU; the CPU time per hit of each.
fn run_on(cache: &ImportCache, hot: &Handle, cpus: &[usize]) -> Vec<f64> {
    let start = Barrier::new(cpus.len());
    let hits = 50 * HITS;
    std::thread::scope(|scope| {
        let run = |cpu: usize| {
            pin_to(cpu);
            hit(cache, hot);
            start.wait();
            let begun = thread_time();
            (0..hits).for_each(|_| hit(cache, hot));
            (thread_time() - begun).as_nanos() as f64 / hits as f64
        };
        let threads: Vec<_> = cpus.iter().map(|cpu| scope.spawn(move || run(*cpu))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

/// xorshift64: the order is the same in every run.
struct Order(u64);

impl Order {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}
