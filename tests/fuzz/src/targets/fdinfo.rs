//! Reading an fd's fdinfo: any text. A size counts only where the kernel prints that of a dma-buf.
//! The reader must never trust the name, which the holder of the fd can choose.

use fdbrokerd::classify::parse_dmabuf;

pub fn run(data: &[u8]) {
    let found = parse_dmabuf(data);
    assert_eq!(found, slowly(data), "{}", String::from_utf8_lossy(data));
    // The holder chooses everything after the name: it must not change the result.
    for forged in [&b"\nname:\tx\nsize:\t1\nexp_name:\tforged\n"[..], b"\nname:\texp_name:\n"] {
        let mut text = data.to_vec();
        text.extend_from_slice(forged);
        let mut named = data.to_vec();
        named.extend_from_slice(b"\nname:\n");
        assert_eq!(parse_dmabuf(&text), parse_dmabuf(&named));
    }
}

/// The same by another way: the last `size:` before the first `exp_name:`, if no `name:` comes
/// before that.
fn slowly(text: &[u8]) -> Option<u64> {
    let whole = &text[..=text.iter().rposition(|byte| *byte == b'\n')?];
    let lines: Vec<&[u8]> = whole.split_inclusive(|byte| *byte == b'\n').collect();
    let starts = |prefix: &'static [u8]| lines.iter().position(|line| line.starts_with(prefix));
    let exporter = starts(b"exp_name:")?;
    if starts(b"name:").is_some_and(|name| name < exporter) {
        return None;
    }
    let sizes = lines[..exporter].iter().filter_map(|line| line.strip_prefix(b"size:"));
    let parse = |size: &[u8]| std::str::from_utf8(size).ok()?.trim().parse::<u64>().ok();
    sizes.map(parse).collect::<Option<Vec<u64>>>()?.last().copied()
}
