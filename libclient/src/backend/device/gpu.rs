//! Which device of this process a GPU is. Must never guess: a GPU that is not seen has no ordinal.

use fdbroker_protocol::Gpu;
use std::env;

/// The ordinal of a GPU among those that this process sees; else why there is none.
pub fn ordinal_of(gpu: &Gpu, seen: &[Gpu], variables: &[&str]) -> Result<u32, String> {
    if gpu.is_none() {
        return Err("the memory's owner did not say which GPU it is on; say for which device to \
                    open it"
            .to_owned());
    }
    let mut same = (0..).zip(seen).filter(|(_, one)| one.is_same(gpu));
    match (same.next(), same.next()) {
        (Some((ordinal, _)), None) => return Ok(ordinal),
        // Tiles of a driver that does not tell them apart.
        (Some(_), Some(_)) => {
            return Err(format!(
                "the memory is on {gpu}, and several devices here go by that name; say for which \
                 to open it"
            ));
        }
        (None, _) => {}
    }
    let list: Vec<String> =
        (0..).zip(seen).map(|(ordinal, gpu): (u32, _)| format!("{ordinal} is {gpu}")).collect();
    let list = if list.is_empty() { "no device".to_owned() } else { list.join(", ") };
    let set: String = variables
        .iter()
        .filter_map(|name| Some(format!(", with {name}={}", env::var_os(name)?.display())))
        .collect();
    Err(format!(
        "the memory is on {gpu}, which this process does not see ({list}{}); show it that GPU, or \
         say for which of its own devices to open it, which then reaches that memory from afar",
        set.escape_debug()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(number: u8) -> Gpu {
        Gpu::cuda([number; 16], 0, false)
    }

    #[test]
    fn ordinal_of_when_the_gpu_is_seen_then_its_number_here_and_not_its_owners() {
        assert_eq!(ordinal_of(&gpu(7), &[gpu(9), gpu(7)], &[]), Ok(1));
        assert_eq!(ordinal_of(&gpu(7), &[gpu(7), gpu(9)], &[]), Ok(0));
        let several = ordinal_of(&gpu(7), &[gpu(7), gpu(9), gpu(7)], &[]).unwrap_err();
        assert!(several.contains("several"), "{several}");
    }

    #[test]
    fn ordinal_of_when_it_is_hidden_then_says_which_it_is_and_which_are_seen() {
        let why = ordinal_of(&gpu(7), &[gpu(9)], &["FDBROKER_TEST_NOT_SET", "PATH"]).unwrap_err();
        for words in [gpu(7).to_string(), format!("0 is {}", gpu(9)), "PATH=".to_owned()] {
            assert!(why.contains(&words), "no {words} in: {why}");
        }
        assert!(!why.contains("NOT_SET"), "{why}");
        assert!(ordinal_of(&gpu(7), &[], &[]).unwrap_err().contains("no device"));
    }

    #[test]
    fn ordinal_of_when_no_gpu_is_said_then_none_is_guessed() {
        assert!(ordinal_of(&Gpu::NONE, &[gpu(1)], &[]).unwrap_err().contains("did not say"));
        assert!(ordinal_of(&Gpu::NONE, &[Gpu::NONE], &[]).is_err());
    }
}
