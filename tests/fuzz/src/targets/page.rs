//! The generation page and the key that a former broker left: any bytes, of any length. After a
//! whole page a broker starts above all its generations; after any other it makes a new page and
//! key. It must never follow a length that the header claims and the file does not have.

use crate::bytes::Bytes;
use fdbroker_core::{Caps, Config, Core, FormerSlot};
use fdbroker_protocol::AllocationId;
use fdbroker_protocol::page::{LAST_GENERATION, PAGE_MAGIC, PAGE_VERSION, PageHeader, page_bytes};
use fdbrokerd::generation_page::{self, Opened};
use fdbrokerd::names::{KEY_NAME, PAGE_NAME};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::mem::offset_of;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{LazyLock, OnceLock};

const SLOTS: u32 = 16;
/// A file is made long enough for at most so many slots.
const MOST_SLOTS: u32 = 1 << 16;

/// One that knows of no allocation.
static CORE: LazyLock<Core> = LazyLock::new(|| {
    let config = Config {
        node: Caps::NONE,
        domain: Caps::NONE,
        job: Caps::NONE,
        client: Caps::NONE,
        table_fds: 1000,
        max_clients: 1,
        max_domains: 1,
        max_parked_per_client: 1,
        max_refused_per_domain: 1,
        max_slots: SLOTS,
        first_generation: 1,
        base_credits: 1,
        max_credits: 1,
        recall_timeout_us: 1,
        keep_ttl_us: 1,
        object_ttl_us: 1,
        grace_us: 1,
        share_factor: 8,
        subordinate_uids: Default::default(),
    };
    Core::new(config).expect("the numbers can work")
});

static DIRECTORY: OnceLock<tempfile::TempDir> = OnceLock::new();

pub fn run(data: &[u8]) {
    let directory = DIRECTORY.get_or_init(|| tempfile::tempdir().expect("a directory")).path();
    let mut bytes = Bytes(data);
    let how = bytes.u8();
    let key = bytes.take(if how & 1 != 0 { 32 } else { usize::from(how >> 3) });
    let mut content = bytes.0.to_vec();
    if how & 2 != 0 && content.len() >= size_of::<PageHeader>() {
        content[..8].copy_from_slice(&PAGE_MAGIC.to_ne_bytes());
        put(&mut content, offset_of!(PageHeader, version), PAGE_VERSION);
    }
    let slots = word(&content, offset_of!(PageHeader, slots)).min(MOST_SLOTS);
    write(&directory.join(KEY_NAME), key);
    let page = write(&directory.join(PAGE_NAME), &content);
    if how & 4 != 0 {
        page.set_len(page_bytes(slots) as u64).expect("a file grows");
    }
    let former = former(&page, key);
    let Opened { page, former: slots, .. } = open(directory);
    assert_eq!(page.slots(), SLOTS);
    let first = page.first_generation();
    match former {
        Some(high) => assert!(first > high, "{first} is not above {high}"),
        None => assert!(first == 1 && slots.is_empty(), "nothing was there to go on with"),
    }
    let is_sound =
        |slot: &FormerSlot| slot.id.slot < SLOTS && (1..first).contains(&slot.id.generation);
    assert!(slots.iter().all(is_sound));
    let core = &CORE;
    assert!(page.publish(SLOTS - 1, first, core) && !page.publish(SLOTS, first, core));
    drop(page);
    let again = open(directory);
    let last = again.former.last().map(|slot| slot.id);
    let is_kept = last == Some(AllocationId { slot: SLOTS - 1, generation: first });
    // After the last possible generation the broker begins anew.
    assert!(first == LAST_GENERATION || again.page.first_generation() > first && is_kept);
}

fn open(directory: &Path) -> Opened {
    generation_page::open(directory, SLOTS).expect("the directory is ours")
}

/// The highest generation, if the broker must go on with this page and key.
fn former(page: &File, key: &[u8]) -> Option<u32> {
    let length = page.metadata().expect("an open file").len();
    let mut header = [0; size_of::<PageHeader>()];
    page.read_exact_at(&mut header, 0).ok()?;
    let slots = word(&header, offset_of!(PageHeader, slots));
    let high = word(&header, offset_of!(PageHeader, generation_high));
    let is_whole = header[..8] == PAGE_MAGIC.to_ne_bytes()
        && word(&header, offset_of!(PageHeader, version)) == PAGE_VERSION
        && length == page_bytes(slots) as u64
        && key.len() == 32
        // Used up: the broker begins anew under another key.
        && high < LAST_GENERATION;
    is_whole.then_some(high)
}

fn write(path: &Path, bytes: &[u8]) -> File {
    let _ = std::fs::remove_file(path);
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create_new(true).mode(0o600);
    let mut file = options.open(path).expect("the directory is ours");
    file.write_all(bytes).expect("there is room");
    file
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |word| u32::from_ne_bytes(word.try_into().expect("4")))
}

fn put(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
}
