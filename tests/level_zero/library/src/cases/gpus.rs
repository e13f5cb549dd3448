//! Which GPU a device is, whatever this process sees: FLAT, COMPOSITE and COMBINED, masks, and
//! drivers that made UUIDs of ordinals. No case here starts a broker.

use crate::GPUS;
use crate::fault::{Fault, Outcome, holds, same};
use fdbroker_client::Gpu;
use fdbroker_client::level_zero::Device;
use std::process::Command;

type Variables<'a> = &'a [(&'a str, &'a str)];
const COMPOSITE: (&str, &str) = ("ZE_FLAT_DEVICE_HIERARCHY", "COMPOSITE");
const COMBINED: (&str, &str) = ("ZE_FLAT_DEVICE_HIERARCHY", "COMBINED");
const ORDINAL: (&str, &str) = ("ZE_TEST_DRIVER_UUIDS", "ordinal");

/// The devices of this process, a line each; then, of each GPU named, its ordinal here or why not.
pub fn tell(wanted: &[String]) -> Outcome {
    for ordinal in 0..Device::count()? {
        let bytes = Device::open(ordinal)?.gpu().to_bytes();
        println!("{}", bytes.map(|byte| format!("{byte:02x}")).concat());
    }
    for wanted in wanted {
        match Device::ordinal_of(&parse(wanted)?) {
            Ok(ordinal) => println!("{ordinal}"),
            Err(why) => println!("{why}"),
        }
    }
    Ok(())
}

fn parse(hex: &str) -> Result<Gpu, Fault> {
    let byte = |at| u8::from_str_radix(hex.get(at..at + 2).unwrap_or_default(), 16);
    let bytes = (0..48).step_by(2).map(byte).collect::<Result<Vec<_>, _>>()?;
    Ok(Gpu::from_bytes(bytes.try_into().map_err(|_| "not 24 bytes")?))
}

/// What a process tells that sees two cards of two tiles by these variables.
fn told(variables: Variables<'_>, wanted: &[Gpu]) -> Result<Vec<String>, Fault> {
    let hex = |gpu: &Gpu| gpu.to_bytes().map(|byte| format!("{byte:02x}")).concat();
    let done = Command::new(std::env::current_exe()?)
        .arg(GPUS)
        .args(wanted.iter().map(hex))
        .envs([("ZE_TEST_DRIVER_CARDS", "two"), ("ZE_TEST_DRIVER_TILES", "two")])
        .envs(variables.iter().copied())
        .output()?;
    holds(done.status.success(), || String::from_utf8_lossy(&done.stderr).into_owned())?;
    Ok(String::from_utf8_lossy(&done.stdout).lines().map(str::to_owned).collect())
}

fn seen(variables: Variables<'_>) -> Result<Vec<Gpu>, Fault> {
    told(variables, &[])?.iter().map(|line| parse(line)).collect()
}

pub fn hierarchies() -> Outcome {
    let (tiles, cards) = (seen(&[])?, seen(&[COMPOSITE])?);
    same("tiles and cards", (tiles.len(), cards.len()), (4, 2))?;
    for one in 0..4 {
        let others = tiles.iter().filter(|other| other.is_same(&tiles[one])).count();
        same("devices that are a tile", others, 1)?;
        holds(!cards.iter().any(|card| card.is_same(&tiles[one])), || "a tile is a card".into())?;
    }
    for (variables, wanted) in [
        (&[COMBINED][..], &tiles[..]),
        (&[("ZE_AFFINITY_MASK", "3,0")], &[tiles[0], tiles[3]]),
        (&[("ZE_AFFINITY_MASK", "1")], &[tiles[1]]),
        (&[COMBINED, ("ZE_AFFINITY_MASK", "1,2,3")], &tiles[1..]),
        (&[COMPOSITE, ("ZE_AFFINITY_MASK", "1")], &cards[1..]),
        (&[COMPOSITE, ("ZE_AFFINITY_MASK", "0.1")], &[tiles[1]]),
    ] {
        let found = seen(variables)?;
        let is_so = found.iter().zip(wanted).all(|(found, wanted)| found.is_same(wanted));
        holds(is_so && found.len() == wanted.len(), || format!("{variables:?}: {found:?}"))?;
    }
    Ok(())
}

pub fn ordinals() -> Outcome {
    let tiles = seen(&[])?;
    let lines = told(&[("ZE_AFFINITY_MASK", "2,3")], &[tiles[3], tiles[2], tiles[0], Gpu::NONE])?;
    same("ordinals of what is seen", (&lines[2][..], &lines[3][..]), ("1", "0"))?;
    for words in [tiles[0].to_string(), format!("0 is {}", tiles[2]), "ZE_AFFINITY_MASK=2,3".into()]
    {
        holds(lines[4].contains(&words), || format!("no {words} in {}", lines[4]))?;
    }
    holds(lines[5].contains("did not say"), || lines[5].clone())
}

pub fn old_drivers() -> Outcome {
    // A UUID of an ordinal says nothing: the card's address does.
    let cards = seen(&[COMPOSITE])?;
    for mask in ["0,1", "1"] {
        let found = seen(&[COMPOSITE, ORDINAL, ("ZE_AFFINITY_MASK", mask)])?;
        let last = found.last().ok_or("no device")?;
        holds(last.is_same(&cards[1]), || format!("with {mask} {last:?}"))?;
    }
    let (tiles, old) = (seen(&[COMBINED])?, seen(&[COMBINED, ORDINAL])?);
    let is_so = tiles.iter().zip(&old).all(|(new, old)| old.is_same(new));
    holds(is_so && old.len() == 4, || format!("{old:?}"))?;
    // Nothing tells such tiles apart in FLAT: none of them is guessed.
    let flat = seen(&[ORDINAL])?;
    let lines = told(&[ORDINAL], &flat[..1])?;
    holds(lines[4].contains("several"), || lines[4].clone())
}
