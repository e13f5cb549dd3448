//! Takes the terminal with the code of `fdbroker top`, and panics when a key is pressed;
//! tests/top/run.sh then looks at the terminal. Must never have code of its own for the terminal:
//! that would prove nothing about top.

#[allow(dead_code)] // the screen uses only a part
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
            // Like one of top's threads: the first one goes on drawing until it sees the panic.
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

/// Fills the screen, so that a frame drawn in the wrong place is seen.
fn draw(screen: &mut Screen, panics: bool) {
    let drawn = screen.draw(|buf| {
        for y in 0..buf.area.height {
            buf.set_string(0, y, "drawn by top_panic", Style::new());
        }
        assert!(!panics, "a panic on purpose");
    });
    drawn.expect("a terminal");
}
