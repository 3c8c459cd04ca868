//! Abilities of a terminal: colours or none, all characters or ASCII alone. Views draw everything into a buffer, which
//! is made plainer afterwards.

use ratatui::buffer::Buffer;
use ratatui::style::Color;
use unicode_width::UnicodeWidthStr;

/// Characters and colours that may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Means {
    pub colour: bool,
    pub ascii: bool,
}

/// Characters that views draw with, and ASCII for each of them; each is one column wide.
const DRAWN: &str = "▁▂▃▄▅▆▇█…←→↑↓▲▼Δµ─│–·";
const ASCII: &str = "_.:-=+*#~<>^v^vdu-|-.";

impl Means {
    /// Removes everything from a buffer that may not be written.
    pub(crate) fn apply(self, buffer: &mut Buffer) {
        for cell in &mut buffer.content {
            if !self.colour {
                (cell.fg, cell.bg) = (Color::Reset, Color::Reset);
            }
            if self.ascii && !cell.symbol().is_ascii() {
                let known = DRAWN.chars().zip(ASCII.chars()).find(|(drawn, _)| cell.symbol().chars().eq([*drawn]));
                // A character of two columns has an empty cell behind it, which stays.
                match known {
                    Some((_, ascii)) => cell.set_char(ascii),
                    None => cell.set_symbol(&"??"[..cell.symbol().width().clamp(1, 2)]),
                };
            }
        }
    }
}

/// True if these locale variables, the strongest first, select UTF-8. Without any, the locale is C.
pub(crate) fn is_utf8(locale: impl IntoIterator<Item = Option<String>>) -> bool {
    let named = locale.into_iter().flatten().find(|name| !name.is_empty());
    named.is_some_and(|name| {
        let name = name.to_ascii_lowercase();
        name.contains("utf-8") || name.contains("utf8")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::layout::Rect;
    use ratatui::style::Style;

    #[test]
    fn what_a_terminal_cannot_show_is_not_written() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 20, 1));
        buffer.set_string(0, 0, "Δ/min ▁▅█ 日é … ok", Style::new().fg(Color::Red));
        Means { colour: true, ascii: false }.apply(&mut buffer);
        assert_eq!(buffer[(0, 0)].fg, Color::Red);
        Means { colour: false, ascii: true }.apply(&mut buffer);
        let text: String = buffer.content.iter().map(|cell| cell.symbol()).collect();
        assert!(text.is_ascii() && text.starts_with("d/min _=# ??"), "{text}");
        assert!(buffer.content.iter().all(|cell| cell.fg == Color::Reset));
    }

    #[test]
    fn the_strongest_variable_of_a_locale_counts() {
        let locale = |names: [&str; 3]| is_utf8(names.map(|name| Some(name.to_owned())));
        assert!(locale(["", "", "de_DE.UTF-8"]) && locale(["C.utf8", "C", "C"]));
        assert!(!locale(["C", "", "de_DE.UTF-8"]) && !locale(["", "", "POSIX"]) && !is_utf8([None, None]));
    }
}
