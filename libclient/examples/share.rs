//! One process shares a buffer, another reads it: `share produce` prints a handle and waits for Enter,
//! `share consume HANDLE` prints what is there. Needs a broker; must never need anything else.

use fdbroker_client::{Access, Arena, Client, Deadline, Error, ErrorCode, Handle, HostMemory};
use std::io::Read;

fn main() -> Result<(), Error> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["produce"] => produce(),
        ["consume", handle] => consume(&parse(handle)?),
        _ => {
            eprintln!("usage: share produce | share consume HANDLE");
            std::process::exit(2)
        }
    }
}

fn produce() -> Result<(), Error> {
    let client = Client::builder().name("producer").connect()?;
    let arena = Arena::new(&client, HostMemory::Memfd, 1 << 20)?;
    let buffer = arena.alloc(4096)?;
    buffer.write_at(0, b"hello from the producer")?;
    let handle = buffer.register(Deadline::from_ms(5000))?;
    println!("{}", handle.to_bytes().map(|byte| format!("{byte:02x}")).concat());
    // A read error is as good as Enter.
    let _ = std::io::stdin().read(&mut [0]);
    Ok(())
}

fn consume(handle: &Handle) -> Result<(), Error> {
    let client = Client::builder().name("consumer").connect()?;
    let import = client.acquire(handle, Deadline::from_ms(5000))?.import(Access::Read, 0)?;
    let mut bytes = [0; 23];
    import.read_at(0, &mut bytes)?;
    println!("{}", String::from_utf8_lossy(&bytes));
    import.release()
}

fn parse(text: &str) -> Result<Handle, Error> {
    let byte = |at: usize| text.get(at..at + 2).and_then(|hex| u8::from_str_radix(hex, 16).ok());
    let bytes: Option<Vec<u8>> = (0..text.len()).step_by(2).map(byte).collect();
    let handle = bytes.and_then(|bytes| Handle::from_slice(&bytes).ok());
    handle.ok_or_else(|| Error::new(ErrorCode::BadHandle, "a handle is 128 hexadecimal digits"))
}
