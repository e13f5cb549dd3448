//! Takes the terminal as `fdbroker top` does, with the same code, and panics when a key is pressed. For tests/top/run.sh, which
//! looks at the terminal then. Must never have a terminal code of its own: it would prove nothing.

#[allow(dead_code)] // what the screen needs of it
#[path = "../../broker/cli/src/error.rs"]
mod error;
#[allow(dead_code, unused_imports, unused_macros)]
#[path = "../../broker/cli/src/output/mod.rs"]
mod output;
#[allow(dead_code)]
#[path = "../../broker/cli/src/commands/top/screen.rs"]
mod screen;

use ratatui::style::Style;
use screen::Screen;
use std::io::Read;
use std::process::ExitCode;

fn main() -> ExitCode {
    let place = std::env::args().nth(1).unwrap_or_default();
    if !["drawing", "between", "thread"].contains(&place.as_str()) {
        eprintln!("usage: top_panic drawing|between|thread     (where it panics)");
        return ExitCode::from(2);
    }
    let mut screen = Screen::open().expect("a terminal");
    draw(&mut screen, false);
    std::io::stdin().read_exact(&mut [0]).expect("a key");
    match place.as_str() {
        "drawing" => draw(&mut screen, true),
        "between" => panic!("a panic on purpose"),
        _ => {
            // As one of top's threads: the first one draws still, until it sees that.
            let other = std::thread::spawn(|| panic!("a panic on purpose"));
            while !other.is_finished() {
                draw(&mut screen, false);
            }
            draw(&mut screen, false);
        }
    }
    drop(screen);
    eprintln!("top_panic: its thread has ended");
    ExitCode::FAILURE
}

/// A full screen, so that whatever is drawn where it should not be is seen.
fn draw(screen: &mut Screen, panics: bool) {
    let drawn = screen.draw(|buf| {
        for y in 0..buf.area.height {
            buf.set_string(0, y, "drawn by top_panic", Style::new());
        }
        assert!(!panics, "a panic on purpose");
    });
    drawn.expect("a terminal");
}
