//! The size of the terminal. Must never fail: without a terminal there is no size.

use std::io::IsTerminal;
use std::os::fd::{AsFd, AsRawFd};

/// Columns and rows of the terminal `out`; `None`: not a terminal, or of unknown size.
pub fn size(out: impl AsFd + IsTerminal) -> Option<(u16, u16)> {
    if !out.is_terminal() {
        return None;
    }
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCGWINSZ writes one `winsize` (ioctl_tty(2)), and `size` is one.
    let result = unsafe { libc::ioctl(out.as_fd().as_raw_fd(), libc::TIOCGWINSZ, &mut size) };
    (result == 0 && size.ws_col > 0).then_some((size.ws_col, size.ws_row))
}
