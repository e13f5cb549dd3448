//! Makes fdbroker.h from the Rust sources and compares it with the one in the repository. Must
//! never be part of a build: to build a C program takes neither Rust nor this test.
//!
//! cbindgen (MPL-2.0, used only here) translates each section; afterwards this test changes what
//! reads badly for a C programmer.

use fdbroker_protocol::{Facts, FactsItem};
use std::path::Path;

/// Heading and source files of each section.
const SECTIONS: [(&str, &[&str]); 14] = [
    ("Errors and versions", &["errors"]),
    ("Open and close", &["context", "open"]),
    ("The handle", &["handle"]),
    ("Producers: registering memory", &["register"]),
    ("Fd numbers instead of handles", &["virtual_fds"]),
    ("Producers: host memory", &["host"]),
    ("GPU memory", &["gpu", "pool"]),
    ("Consumers: fds and leases", &["acquire"]),
    ("Consumers: memory, through the import cache", &["import", "opener", "suspend"]),
    ("Event loops: one fd for many waits", &["due"]),
    ("Named objects", &["objects", "object_make", "object_get", "object_names", "object_watch"]),
    ("Without waiting", &["request", "object_start"]),
    ("Events: recalls, notices, dispatch", &["callbacks", "events"]),
    ("Counters", &["stats"]),
];

const UPDATE: &str = "FDBROKER_UPDATE_HEADER=1 cargo test -p fdbroker-capi --test header";

#[test]
fn header_when_made_from_the_sources_then_is_the_one_checked_in() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = root.join("include/fdbroker.h");
    let made = header(root);
    if std::env::var_os("FDBROKER_UPDATE_HEADER").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    let same = made.lines().zip(kept.lines()).take_while(|(made, kept)| made == kept).count();
    assert!(
        made == kept,
        "{} differs from the sources from line {} on; update it by: {UPDATE}",
        path.display(),
        same + 1
    );
}

#[test]
fn header_when_made_then_declares_every_exported_function() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let made = header(root);
    for file in std::fs::read_dir(root.join("src")).unwrap() {
        let source = std::fs::read_to_string(file.unwrap().path()).unwrap();
        let functions = source.lines().filter(|line| line.contains("extern \"C\" fn fdbroker_"));
        for line in functions {
            let name = line.split("fn ").nth(1).unwrap().split('(').next().unwrap();
            assert!(made.contains(&format!("{name}(")), "{name} is in no section");
        }
    }
}

fn header(root: &Path) -> String {
    let mut header = root.join("tests/header.begin.h").read();
    for (heading, files) in SECTIONS {
        let dashes = "-".repeat(WIDTH - heading.len() - 11);
        header += &format!("\n/* ---- {heading} {dashes} */\n\n");
        header.push_str(section(&root.join("src"), files).trim());
        header.push('\n');
    }
    header.push_str(&root.join("tests/header.end.h").read());
    header
}

trait Read {
    fn read(&self) -> String;
}

impl Read for std::path::PathBuf {
    fn read(&self) -> String {
        std::fs::read_to_string(self).unwrap_or_else(|error| panic!("{}: {error}", self.display()))
    }
}

/// What the files of one section declare.
fn section(sources: &Path, files: &[&str]) -> String {
    let mut config = cbindgen::Config {
        language: cbindgen::Language::C,
        style: cbindgen::Style::Both,
        documentation_style: cbindgen::DocumentationStyle::C,
        no_includes: true,
        usize_is_size_t: true,
        line_length: 110,
        tab_width: 2,
        ..cbindgen::Config::default()
    };
    config.function.sort_by = Some(cbindgen::SortKey::None);
    config.constant.sort_by = Some(cbindgen::SortKey::None);
    config.function.args = cbindgen::Layout::Auto;
    let mut builder = cbindgen::Builder::new().with_config(config);
    for file in files {
        builder = builder.with_src(sources.join(format!("{file}.rs")));
    }
    let bindings = builder.generate().expect("the sources parse");
    let mut bytes = Vec::new();
    bindings.write(&mut bytes);
    readable(&String::from_utf8(bytes).expect("cbindgen writes UTF-8"))
}

/// Struct tags without `_t`; short comments beside what they explain, others as a block; arguments
/// side by side.
fn readable(text: &str) -> String {
    let mut out = String::new();
    let mut lines = text.lines().peekable();
    // What stood last was a constant with its comment beside it: constants of one kind stand
    // together.
    let mut after_constant = false;
    let mut blank = false;
    while let Some(line) = lines.next() {
        let comment = match line.trim() {
            "/*" => Some(comment(&mut lines)),
            "" => {
                blank = true;
                continue;
            }
            _ => None,
        };
        let item = match comment {
            None => item(line, &mut lines),
            Some(_) => {
                let line = lines.next().expect("a comment explains something");
                item(line, &mut lines)
            }
        };
        let beside = comment.as_deref().and_then(|comment| beside(&item, comment));
        let is_constant = item.starts_with("#define") && beside.is_some();
        if blank && !(after_constant && is_constant) {
            out.push('\n');
        }
        (blank, after_constant) = (false, is_constant);
        match (beside, comment) {
            (Some(line), _) => out += &(line + "\n"),
            (None, Some(comment)) => out += &(above(&item, &comment) + &item + "\n"),
            (None, None) => out += &(item + "\n"),
        }
    }
    out
}

/// The lines of a comment, up to its end.
fn comment<'a>(lines: &mut impl Iterator<Item = &'a str>) -> Vec<String> {
    let inside = lines.take_while(|line| line.trim() != "*/");
    inside.map(|line| line.trim().to_owned()).collect()
}

/// One line of code; of a function with its arguments on many lines, all of them.
fn item<'a>(line: &str, lines: &mut impl Iterator<Item = &'a str>) -> String {
    let mut item = plain_tag(line);
    if item.contains('(') && !item.starts_with("#define") {
        while !item.ends_with(';') {
            let line = lines.next().expect("a declaration ends");
            item = item + " " + &plain_tag(line.trim());
        }
        return wrapped(&item);
    }
    match item.strip_prefix("#define ").and_then(|constant| constant.split_once(" -")) {
        Some((name, value)) => format!("#define {name} (-{value})"),
        None => item,
    }
}

const WIDTH: usize = 110;

/// Broken at commas, continued four columns in.
fn wrapped(declaration: &str) -> String {
    let mut out = String::new();
    let mut width = 0;
    for (index, part) in declaration.split_inclusive(", ").enumerate() {
        if index > 0 && width + part.trim_end().len() > WIDTH {
            out.truncate(out.trim_end().len());
            out.push_str("\n    ");
            width = 4;
        }
        out.push_str(part);
        width += part.len();
    }
    out
}

/// The item with its comment beside it, when both are short.
fn beside(item: &str, comment: &[String]) -> Option<String> {
    let [only] = comment else { return None };
    let column = if item.starts_with("#define") { 39 } else { 32 };
    let line = format!("{item:<column$} /* {only} */");
    let may_stand = item.starts_with("#define") || item.starts_with(' ') && item.ends_with(';');
    (may_stand && line.len() <= 120).then_some(line)
}

/// The comment as a block above the item.
fn above(item: &str, comment: &[String]) -> String {
    let indent = &item[..item.len() - item.trim_start().len()];
    let mut out = String::new();
    for (index, line) in comment.iter().enumerate() {
        let begin = if index == 0 { "/*" } else { " *" };
        let end = if index + 1 == comment.len() { " */" } else { "" };
        let space = if line.is_empty() { "" } else { " " };
        out += &format!("{indent}{begin}{space}{line}{end}\n");
    }
    out
}

/// `typedef struct fdbroker_x_t` -> `typedef struct fdbroker_x`; elsewhere the typedef's name
/// alone.
fn plain_tag(line: &str) -> String {
    match line.strip_prefix("typedef struct ") {
        Some(rest) => match rest.split_once("_t ") {
            Some((tag, rest)) => format!("typedef struct {tag} {rest}"),
            None => line.to_owned(),
        },
        None => line.replace("struct fdbroker_", "fdbroker_"),
    }
}

/// The fields of a struct in fdbroker.h, in their order: type and name.
fn fields(header: &str, name: &str) -> Vec<(String, String)> {
    let end = header.find(&format!("}} {name};")).unwrap_or_else(|| panic!("no struct {name}"));
    let begin = header[..end].rfind("typedef struct").expect("a struct begins");
    let body = header[begin..end].lines().skip(1).filter_map(|line| line.split_once(';'));
    let declared =
        body.map(|(field, _)| field.trim()).filter(|field| !field.starts_with(['/', '*']));
    let cut = |field: &str| {
        let at = field.rfind([' ', '*']).expect("type and name") + 1;
        (field[..at].trim().to_owned(), field[at..].to_owned())
    };
    declared.map(cut).collect()
}

/// A fact that is added does not compile here until C has a field of its name, or is said to have
/// none.
#[test]
fn facts_when_in_c_then_each_has_a_field_of_its_name_and_width() {
    let header = header(Path::new(env!("CARGO_MANIFEST_DIR")));
    let FactsItem { kind: _, device, gpu, size_bytes, fd_offset, owner_allocation_id } =
        Facts::NONE.into();
    let facts = [
        ("kind", size_of::<u32>()),
        ("device", size_of_val(&device)),
        ("size_bytes", size_of_val(&size_bytes)),
        ("fd_offset", size_of_val(&fd_offset)),
        ("owner_allocation_id", size_of_val(&owner_allocation_id)),
    ];
    // What is as recalled needs no field in an answer; a handle has no place for all of them.
    for (name, without) in [
        ("fdbroker_allocation_t", &[][..]),
        ("fdbroker_grant_t", &[]),
        ("fdbroker_recall_t", &["kind"]),
        ("fdbroker_recall_answer_t", &["kind", "device"]),
        ("fdbroker_handle_info_t", &["fd_offset"]),
    ] {
        let fields = fields(&header, name);
        for (fact, bytes) in facts.iter().filter(|(fact, _)| !without.contains(fact)) {
            let found = (format!("uint{}_t", bytes * 8), (*fact).to_owned());
            assert!(fields.contains(&found), "{name} has no {found:?}: {fields:?}");
        }
    }
    // Bytes, as an array; recalls and their answers are the owner's, which knows its GPU.
    for name in ["fdbroker_allocation_t", "fdbroker_grant_t"] {
        let found = ("uint8_t".to_owned(), format!("gpu[{}]", size_of_val(&gpu)));
        let fields = fields(&header, name);
        assert!(fields.contains(&found), "{name} has no {found:?}: {fields:?}");
    }
}

#[test]
fn structs_of_python_when_compared_with_c_then_the_same_fields_in_the_same_order() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let abi = std::fs::read_to_string(root.join("../python/fdbroker/_abi.py")).unwrap();
    let header = header(root);
    for (class, name) in [
        ("HandleInfo", "fdbroker_handle_info_t"),
        ("Options", "fdbroker_options_t"),
        ("Import", "fdbroker_import_t"),
    ] {
        let begin = abi.find(&format!("class {class}(Structure)")).expect("a class");
        let body = abi[begin..].split("_fields_ = [").nth(1).unwrap().split("]  #").next().unwrap();
        let of_python: Vec<&str> =
            body.split('(').skip(1).map(|field| field.split(')').next().unwrap()).collect();
        let of_c: Vec<String> = fields(&header, name)
            .iter()
            .map(|(ty, field)| {
                let ty = match ty.as_str() {
                    "const char *" => "c_char_p".to_owned(),
                    pointer if pointer.ends_with('*') => "c_void_p".to_owned(),
                    number => format!("c_{}", number.trim_end_matches("_t")),
                };
                format!("\"{field}\", {ty}")
            })
            .collect();
        assert_eq!(of_python, of_c, "{class} and {name}");
    }
}
