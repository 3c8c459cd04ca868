//! Keeps the place of our last panic, which a report of the bug needs.
//!
//! A contained panic prints nothing and ends nothing. Without its place the bug could not be found.

use std::fmt::{self, Display, Write as _};
use std::panic::PanicHookInfo;
use std::sync::Mutex;

/// Bytes kept of a place and a message; the rest is cut off.
const ROOM: usize = 200;

static LAST: Mutex<Text> = Mutex::new(Text { bytes: [0; ROOM], len: 0 });

/// A text that needs no heap memory.
#[derive(Clone, Copy)]
pub(crate) struct Text {
    bytes: [u8; ROOM],
    len: usize,
}

impl fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = ROOM - self.len;
        // A cut falls between two characters.
        let fits = (0..=text.len().min(room)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        self.bytes[self.len..self.len + fits].copy_from_slice(&text.as_bytes()[..fits]);
        self.len += fits;
        Ok(())
    }
}

impl Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match std::str::from_utf8(&self.bytes[..self.len]) {
            Ok("") | Err(_) => "at an unknown place",
            Ok(text) => text,
        })
    }
}

/// Records a panic. It is the panic hook of our copy of std, takes no memory and waits for no lock.
pub(crate) fn note(info: &PanicHookInfo<'_>) {
    let Ok(mut last) = LAST.try_lock() else { return };
    last.len = 0;
    let payload = info.payload();
    let owned = || payload.downcast_ref::<String>().map(String::as_str);
    let what = payload.downcast_ref::<&str>().copied().or_else(owned).unwrap_or("no message");
    let _ = match info.location() {
        Some(at) => write!(last, "{}:{}: {what}", at.file(), at.line()),
        None => write!(last, "{what}"),
    };
}

/// Returns a message that `what` failed by the last panic of this process, with the details that a report needs.
pub(crate) fn failed(what: &str) -> String {
    format!("{what} failed (a bug in gpumem: please report it, with \"{}\")", last())
}

/// Returns place and message of the last panic of this process.
fn last() -> Text {
    LAST.try_lock().map_or(Text { bytes: [0; ROOM], len: 0 }, |last| *last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters() {
        let mut text = Text { bytes: [0; ROOM], len: 0 };
        assert_eq!(text.to_string(), "at an unknown place");
        write!(text, "{}é and more", "x".repeat(ROOM - 1)).unwrap();
        assert_eq!(text.to_string(), "x".repeat(ROOM - 1));
    }

    #[test]
    fn a_contained_panic_leaves_its_place_and_message() {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(note));
        let thrown = std::panic::catch_unwind(|| panic!("planted {}", 7));
        std::panic::set_hook(before);
        assert!(thrown.is_err());
        let last = last().to_string();
        assert!(last.contains("panics.rs:") && last.ends_with(": planted 7"), "{last}");
    }
}
