//! Shares a buffer: writes its handle as text to a file or stdout, and waits for Enter.
//! `consumer.rs` and `consumer.c` read it. Must never need anything but a broker: `fdbroker run --
//! sh` starts a private one.

use fdbroker_client::{Arena, Client, Deadline, HostMemory};
use std::io::Read;

const SIZE_BYTES: usize = 1 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::builder().name("producer").connect()?;
    let arena = Arena::new(&client, HostMemory::Memfd, SIZE_BYTES)?;
    let buffer = arena.alloc(SIZE_BYTES)?;
    let bytes: Vec<u8> = (0..SIZE_BYTES).map(pattern).collect();
    buffer.write_at(0, &bytes)?;

    // A handle is 64 plain bytes, and any way to carry them will do.
    let text = format!("{}\n", buffer.register(Deadline::from_ms(5000))?);
    match std::env::args().nth(1) {
        Some(path) => std::fs::write(path, text)?,
        None => print!("{text}"),
    }
    eprintln!("producer: shares {SIZE_BYTES} bytes; Enter ends it");
    // A read error ends the program like Enter.
    let _ = std::io::stdin().read(&mut [0]);
    Ok(())
}

fn pattern(position: usize) -> u8 {
    u8::try_from(position % 251).expect("a remainder of 251")
}
