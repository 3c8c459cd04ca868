//! Painted text, as commands print it, on a screen.

use anstream::adapter::WinconBytes;
use anstyle::{AnsiColor, Effects};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

/// Draws a line at the top of an area; an ellipsis marks a cut end.
pub(crate) fn line(buffer: &mut Buffer, area: Rect, painted: &str) {
    let mut at = area.x;
    for (style, text) in WinconBytes::new().extract_next(painted.as_bytes()).filter(|_| area.height > 0) {
        let room = area.right().saturating_sub(at);
        (at, _) = buffer.set_stringn(at, area.y, &text, room.into(), screen_style(style));
        if crate::text::width(&text) > room.into() && area.width > 0 {
            buffer[(area.right() - 1, area.y)].set_char('…');
        }
    }
}

/// Returns a style of commands as a style of the screen.
fn screen_style(style: anstyle::Style) -> Style {
    let (red, green, yellow) = (AnsiColor::Red.into(), AnsiColor::Green.into(), AnsiColor::Yellow.into());
    let colours = [(red, Color::Red), (green, Color::Green), (yellow, Color::Yellow)];
    let colour = colours.into_iter().find(|(colour, _)| style.get_fg_color() == Some(*colour));
    let effects =
        [(Effects::BOLD, Modifier::BOLD), (Effects::DIMMED, Modifier::DIM), (Effects::INVERT, Modifier::REVERSED)];
    let effects = effects.into_iter().filter(|(effect, _)| style.get_effects().contains(*effect));
    let modified = effects.fold(Style::new(), |style, (_, modifier)| style.add_modifier(modifier));
    colour.map_or(modified, |(_, colour)| modified.fg(colour))
}

/// Returns printed text as lines that are no wider than this.
pub(crate) fn wrapped(lines: &[String], columns: u16) -> Vec<String> {
    let wrap =
        |line: &String| crate::text::wrap(line, columns.into()).split('\n').map(str::to_owned).collect::<Vec<_>>();
    lines.iter().flat_map(wrap).collect()
}

/// Returns the lines that `print` prints.
pub(crate) fn lines(print: impl FnOnce(&mut dyn std::io::Write) -> std::io::Result<()>) -> Vec<String> {
    let mut out = Vec::new();
    // Memory takes everything.
    let _ = print(&mut out);
    String::from_utf8_lossy(&out).lines().map(str::to_owned).collect()
}
