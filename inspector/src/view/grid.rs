//! A table on a screen. Numbers are never cut, columns that do not fit are left out whole, and text gets the remaining
//! width.

use crate::text;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};

/// A column.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column<'a> {
    pub title: &'a str,
    pub kind: Kind,
    /// Least width in columns, so that the table does not move when a number grows.
    pub least: usize,
    /// Columns with the highest number are left out first if there is no room. 0: never.
    pub gives_way: u8,
}

/// How a column is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Right-aligned, never cut.
    Number,
    /// Left-aligned, never cut.
    Word,
    /// Left-aligned, shortened in the middle to the remaining width.
    Text,
    /// A line of bars, in a share of the screen's width.
    Bars,
}

/// Least width of text.
const TEXT: usize = 12;
/// Gap between two columns.
const GAP: usize = 2;
/// Least and most width of a column of bars, and the share of the screen's width.
const BARS: (usize, usize, usize) = (8, 40, 6);

/// A row of a table.
pub(crate) struct Line<'a> {
    pub cells: Vec<(std::borrow::Cow<'a, str>, Style)>,
    pub selected: bool,
}

/// Returns the width of a column of bars on a screen of this width.
pub(crate) fn bars(columns: usize) -> usize {
    (columns / BARS.2).clamp(BARS.0, BARS.1)
}

/// Selects the columns that fit, with their widths; `widths` has the widths of their contents.
pub(crate) fn fit(columns: &[Column], widths: &[usize], edge: usize) -> Vec<(usize, usize)> {
    let wide = |(at, column): (usize, &Column)| match column.kind {
        // If this column holds little text, it needs less room, and others can stay.
        Kind::Text => (at, column.least.min(widths.get(at).copied().unwrap_or(0).max(text::width(column.title)))),
        Kind::Bars => (at, bars(edge)),
        Kind::Number | Kind::Word => {
            (at, widths.get(at).copied().unwrap_or(0).max(column.least).max(text::width(column.title)))
        }
    };
    let mut shown: Vec<(usize, usize)> = columns.iter().enumerate().map(wide).collect();
    let taken =
        |shown: &[(usize, usize)]| shown.iter().map(|(_, width)| width + GAP).sum::<usize>().saturating_sub(GAP);
    while taken(&shown) > edge {
        let weakest = shown.iter().enumerate().max_by_key(|(place, (at, _))| (columns[*at].gives_way, *place));
        match weakest {
            Some((place, (at, _))) if columns[*at].gives_way > 0 => drop(shown.remove(place)),
            _ => break,
        }
    }
    let left = edge.saturating_sub(taken(&shown));
    let over = taken(&shown).saturating_sub(edge);
    if let Some((_, width)) = shown.iter_mut().rev().find(|(at, _)| columns[*at].kind == Kind::Text) {
        // Shortened text has an ellipsis. Text cut at the edge has none.
        *width = (*width + left).saturating_sub(over).max(TEXT.min(*width));
    }
    shown
}

/// Draws the heading and rows; rows below the area are left out.
pub(crate) fn draw(buffer: &mut Buffer, area: Rect, columns: &[Column], titles: Style, lines: &[Line]) {
    let mut widths = vec![0; columns.len()];
    for line in lines {
        for (width, (cell, _)) in widths.iter_mut().zip(&line.cells) {
            *width = text::width(cell).max(*width);
        }
    }
    let shown = fit(columns, &widths, usize::from(area.width));
    let heading = |&(at, _): &(usize, usize)| (columns[at].title, titles);
    if area.height > 0 {
        row(buffer, area, columns, &shown, &shown.iter().map(heading).collect::<Vec<_>>());
    }
    for (y, line) in (area.y + 1..area.bottom()).zip(lines) {
        let at = Rect { y, height: 1, ..area };
        let cell = |&(at, _): &(usize, usize)| {
            line.cells.get(at).map_or(("", Style::new()), |(text, style)| (&**text, *style))
        };
        row(buffer, at, columns, &shown, &shown.iter().map(cell).collect::<Vec<_>>());
        if line.selected {
            buffer.set_style(at, Style::new().add_modifier(Modifier::REVERSED));
        }
    }
}

fn row(buffer: &mut Buffer, area: Rect, columns: &[Column], shown: &[(usize, usize)], cells: &[(&str, Style)]) {
    let mut x = usize::from(area.x);
    for (&(at, width), &(cell, style)) in shown.iter().zip(cells) {
        let cell = text::clean(cell);
        let cell = match columns[at].kind {
            Kind::Text => text::shorten(&cell, width),
            _ => cell,
        };
        let before = match columns[at].kind {
            Kind::Number => width.saturating_sub(text::width(&cell)),
            _ => 0,
        };
        let end = usize::from(area.right());
        if let (Ok(begin), Some(room)) = (u16::try_from(x + before), end.checked_sub(x + before)) {
            buffer.set_stringn(begin, area.y, &cell, room.min(width), style);
        }
        x += width + GAP;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 4] = [
        Column { title: "live", kind: Kind::Number, least: 10, gives_way: 0 },
        Column { title: "count", kind: Kind::Number, least: 9, gives_way: 2 },
        Column { title: "history", kind: Kind::Bars, least: 8, gives_way: 1 },
        Column { title: "site", kind: Kind::Text, least: 12, gives_way: 0 },
    ];

    #[test]
    fn columns_give_way_as_a_whole_and_text_takes_the_rest() {
        let at = |edge| fit(&COLUMNS, &[8, 12, 99, 99], edge);
        assert_eq!(at(80), [(0, 10), (1, 12), (2, 13), (3, 39)]);
        assert_eq!(at(40), [(0, 10), (2, 8), (3, 18)], "the count goes first");
        assert_eq!(at(30), [(0, 10), (3, 18)]);
        assert_eq!(at(10), [(0, 10), (3, 12)], "what never gives way stays");
    }

    #[test]
    fn rows_are_drawn_under_their_heading() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 40, 3));
        let cells = ["1.0 GiB", "1,234,567,890", "▁█", "a very long name of a call site"];
        let cells = cells.map(|cell| (cell.into(), Style::new())).to_vec();
        draw(&mut buffer, Rect::new(0, 0, 40, 3), &COLUMNS, Style::new(), &[Line { cells, selected: true }]);
        let text = |y| (0..40).map(|x| buffer[(x, y)].symbol().to_owned()).collect::<String>();
        assert_eq!(text(0).trim_end(), "      live  history   site");
        assert_eq!(text(1).trim_end(), "   1.0 GiB  ▁█        a very l…call site");
        assert!(buffer[(39, 1)].modifier.contains(Modifier::REVERSED) && text(2).trim().is_empty());
    }
}
