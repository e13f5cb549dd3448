//! Pages for every command and none for a hidden one.

use super::*;
use crate::cli::visible;

#[test]
fn pages_when_one_names_another_then_it_is_there_too() {
    let pages = pages(visible());
    let names: Vec<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
    for name in ["fdbroker.1", "fdbroker-ls.1", "fdbroker-limits-set.1", "fdbrokerd.8"] {
        assert!(names.contains(&name), "no {name} in {names:?}");
    }
    let mut named = 0;
    for (name, page) in &pages {
        let page = String::from_utf8_lossy(page).replace('\\', "");
        // As `fdbroker-ls(1)`.
        for reference in page.lines().filter_map(|line| line.strip_suffix("(1)")) {
            named += 1;
            let file = format!("{reference}.1");
            assert!(names.contains(&file.as_str()), "{name} names {file}, which is not there");
        }
    }
    assert!(named > 0, "no page names another");
}

#[test]
fn pages_when_made_then_each_has_one_title_without_a_false_date() {
    for (name, page) in pages(visible()) {
        let page = String::from_utf8_lossy(&page).into_owned();
        let titles: Vec<&str> = page.lines().filter(|it| it.starts_with(".TH")).collect();
        let (title, section) = name.rsplit_once('.').expect("a section");
        assert_eq!(titles.len(), 1, "{name}: {titles:?}");
        assert_eq!(page.matches(APOSTROPHE).count(), 1, "{name}");
        let begin = format!(".TH \"{}\" \"{section}\" \"\" ", title.to_uppercase());
        assert!(titles[0].starts_with(&begin), "{name}: {titles:?}");
        assert!(!page.contains("keeper"), "{name} describes what is hidden");
    }
}

#[test]
fn write_notes_when_prose_follows_a_table_then_only_the_table_is_unfilled() {
    let mut page = Vec::new();
    write_notes("Words:\n  a   one\n.b\n\n  c", &mut page).expect("memory");
    let page = String::from_utf8(page).expect("UTF-8");
    let expected = ".SH NOTES\nWords:\n.nf\n  a   one\n.fi\n\\&.b\n.PP\n.nf\n  c\n.fi\n";
    assert_eq!(page.replace(APOSTROPHE, ""), expected);
}
