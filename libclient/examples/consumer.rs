//! Reads the handle that `producer.rs` or `producer.c` wrote, from a file or stdin, maps the memory
//! and checks every byte. Must never need anything but a broker.

use fdbroker_client::{Access, Client, Deadline, Handle};
use std::io::Read;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut text = String::new();
    match std::env::args().nth(1) {
        Some(path) => text = std::fs::read_to_string(path)?,
        None => drop(std::io::stdin().read_to_string(&mut text)?),
    }
    let handle: Handle = text.trim().parse()?;

    let client = Client::builder().name("consumer").connect()?;
    // Maps the memory and closes the fd; the mapping stays.
    let import = client.acquire(&handle, Deadline::from_ms(5000))?.import(Access::Read, 0)?;
    let mut bytes = vec![0; import.len()];
    import.read_at(0, &mut bytes)?;
    let wrong = bytes.iter().enumerate().filter(|(i, byte)| usize::from(**byte) != i % 251).count();
    println!("consumer: {} bytes, {wrong} of them wrong", bytes.len());
    import.release()?;
    if wrong == 0 { Ok(()) } else { Err("the bytes are not the producer's".into()) }
}
