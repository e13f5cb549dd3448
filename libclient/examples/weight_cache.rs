//! A small cache of weights: the first start reads the files and keeps them as named objects, every
//! later start gets them mapped, also after the first has ended. Must never need anything but a
//! broker.
//!
//! ```text
//! weight_cache llama weights/*.bin      # reads the files
//! weight_cache llama weights/*.bin      # has them at once
//! ```

use fdbroker_client::{
    Client, Deadline, Error, ErrorCode, NewObject, Object, ObjectOptions, Objects, Place,
};
use std::fs::File;
use std::io::Read;
use std::time::{Duration, Instant};

/// How long the weights stay after their last use.
const KEEP: Duration = Duration::from_secs(600);
/// How long another start may take to read the files.
const PATIENCE_MS: u32 = 60_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let model = arguments.next().ok_or("usage: weight_cache MODEL FILE...")?;
    let files: Vec<String> = arguments.collect();
    let names: Vec<String> = (0..files.len()).map(|at| format!("{model}/{at}")).collect();

    let objects = Client::builder().name("weight_cache").connect()?.objects();
    let begun = Instant::now();
    let (how, weights) = match objects.get_many(&names, Deadline::from_ms(0)) {
        Ok(weights) => ("got", weights),
        Err(error) if error.code == ErrorCode::NotFound => {
            let how = load(&objects, &names, &files)?;
            (how, objects.get_many(&names, Deadline::from_ms(PATIENCE_MS))?)
        }
        // Another start reads them at this moment.
        Err(error) if error.code == ErrorCode::NotSealed => {
            ("awaited", objects.get_many(&names, Deadline::from_ms(PATIENCE_MS))?)
        }
        Err(error) => return Err(error.into()),
    };
    let took = begun.elapsed();
    let bytes: usize = weights.iter().map(Object::len).sum();
    println!(
        "weight_cache: {how} {} weights, {bytes} bytes, sum {}",
        weights.len(),
        sum(&weights)?
    );
    eprintln!("weight_cache: in {:.1} ms", took.as_secs_f64() * 1e3);
    Ok(())
}

/// Reads the files into one group of objects, which appear at once.
fn load(
    objects: &Objects,
    names: &[String],
    files: &[String],
) -> Result<&'static str, Box<dyn std::error::Error>> {
    let size = |file: &String| std::fs::metadata(file).map(|found| found.len());
    let sizes = files.iter().map(size).collect::<Result<Vec<u64>, _>>()?;
    let new: Vec<NewObject<'_>> =
        names.iter().zip(sizes).map(|(name, size)| NewObject::new(name, size)).collect();
    let options = ObjectOptions::default().keep(KEEP);
    let deadline = Deadline::from_ms(PATIENCE_MS);
    let mut group = match objects.create(&new, Place::Host, options, deadline) {
        Err(Error { code: ErrorCode::Exists, .. }) => return Ok("awaited"),
        made => made?,
    };
    for (at, file) in files.iter().enumerate() {
        // Straight into the memory that readers get.
        File::open(file)?.read_exact(group.bytes_mut(at)?)?;
    }
    group.seal(deadline)?;
    Ok("read")
}

fn sum(weights: &[Object]) -> Result<u64, Error> {
    let mut sum = 0;
    for weight in weights {
        sum += weight.bytes()?.iter().map(|byte| u64::from(*byte)).sum::<u64>();
    }
    Ok(sum)
}
