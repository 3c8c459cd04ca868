//! Draws a state and a look into the cells of a screen. Nothing here waits or changes anything.

use super::keys::{self, reading};
use super::look::{Look, Tab};
use super::state::State;
use crate::args::name_of;
use crate::text::{self, units};
use crate::view::painted::{self, wrapped};
use crate::view::table::{BAD, DIM, GOOD, HEAD, paint};
use clap::ValueEnum;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};

const CHOSEN: anstyle::Style = anstyle::Style::new().invert();

/// Smallest usable screen.
const LEAST: (u16, u16) = (40, 8);
/// The list keeps one of this many rows of the screen below long text.
const LIST: usize = 3;

/// Draws everything. Returns the number of rows of the list, or lines of the text, that fit, because keys move by pages;
/// and the last line that the text can begin with.
pub(super) fn all(buffer: &mut Buffer, state: &State, look: Option<&Look>) -> (usize, usize) {
    let area = buffer.area;
    // The terminal has no size yet, or lost it.
    if area.is_empty() {
        return (1, 0);
    }
    if area.width < LEAST.0 || area.height < LEAST.1 {
        let (columns, rows) = LEAST;
        painted::line(buffer, area, &format!("too small: {columns}x{rows} needed"));
        return (1, 0);
    }
    let look = look.filter(|look| look.ask.whom == state.ask.whom && look.ask.tab == state.ask.tab);
    painted::line(buffer, area, &parts(area.width, &header(state, look)));
    let last = Rect { y: area.bottom() - 1, height: 1, ..area };
    match state.is_typing() {
        true => typed(buffer, last, &state.filter),
        false => painted::line(buffer, last, &footer(state, look, area.width)),
    }
    let body = Rect { y: area.y + 1, height: area.height - 2, ..area };
    match (state.help, look) {
        (true, _) => text_lines(buffer, body, &help(state.ask.tab, state.ask.whom.is_some()), state.from),
        (_, Some(look)) if state.ask.detail.is_some() && look.ask.detail == state.ask.detail => {
            text_lines(buffer, body, look.detail.as_deref().unwrap_or_default(), state.from)
        }
        (_, Some(look)) if state.is_text() && state.ask.detail.is_none() => {
            text_lines(buffer, body, &look.lines, state.from)
        }
        (_, Some(look)) if state.ask.detail.is_none() => tables(buffer, body, state, look),
        _ => {
            painted::line(buffer, body, &paint(DIM, "reading …"));
            (1, 0)
        }
    }
}

/// Joins parts to a line, each whole or not at all, in order.
fn parts(width: u16, parts: &[(String, anstyle::Style)]) -> String {
    let (mut line, mut left) = (String::new(), usize::from(width));
    for (part, style) in parts.iter().filter(|(part, _)| !part.is_empty()) {
        let (part, gap) = (text::clean(part), if line.is_empty() { "" } else { "  " });
        if let Some(rest) = left.checked_sub(text::width(&part) + gap.len()) {
            left = rest;
            line.push_str(&format!("{gap}{}", paint(*style, part)));
        }
    }
    line
}

fn header(state: &State, look: Option<&Look>) -> Vec<(String, anstyle::Style)> {
    let pace = look.map_or(state.ask.interval, |look| look.pace.max(state.ask.interval));
    let mut parts = vec![("gpumem top".to_owned(), HEAD)];
    if state.ask.whom.is_some() {
        let tab = |(at, tab): (usize, &Tab)| {
            (
                format!("{} {}", at + 1, name_of(*tab)),
                if *tab == state.ask.tab { CHOSEN } else { anstyle::Style::new() },
            )
        };
        parts = Tab::value_variants().iter().enumerate().map(tab).collect();
    }
    match state.ask.paused {
        true => parts.insert(0, ("paused".into(), CHOSEN)),
        false => parts.push((format!("every {}", units::span(pace.as_nanos() as u64)), DIM)),
    }
    parts.push(("?: keys".into(), DIM));
    parts
}

/// Returns a message, or the order of the rows.
fn footer(state: &State, look: Option<&Look>, width: u16) -> String {
    if let Some(message) = &state.message {
        return paint(if message.bad { BAD } else { GOOD }, text::clean(&message.text));
    }
    if state.is_text() {
        return parts(width, &[("Esc: back".into(), DIM), ("↑ ↓: further".into(), DIM)]);
    }
    let Some(list) = look.map(|look| &look.list) else { return String::new() };
    let (mut said, rows, plain) = (Vec::new(), state.rows(), anstyle::Style::new());
    if !state.filter.is_empty() {
        said.push((format!("only {:?}", state.filter), CHOSEN));
    }
    if !list.by.is_empty() {
        said.push((format!("by {}", list.by), plain));
    }
    said.extend(rows.sorted_by.as_ref().map(|title| (format!("sorted by {title}"), plain)));
    said.push((if rows.reversed { "reversed".into() } else { String::new() }, plain));
    let shown = rows.shown(list, &state.filter).len();
    let at = if shown == 0 { 0 } else { rows.at + 1 };
    let number = |n: usize| units::number(n as u64);
    let more = if list.left_out == 0 { String::new() } else { format!(" and {} more", number(list.left_out)) };
    said.push((format!("{at} of {shown}{more}"), DIM));
    if let Some(look) = look.filter(|look| look.unnamed > 0) {
        said.push((format!("{} to be named", number(look.unnamed)), DIM));
    }
    parts(width, &said)
}

/// Draws the filter that is being typed.
fn typed(buffer: &mut Buffer, area: Rect, filter: &str) {
    const LABEL: &str = "only rows with: ";
    painted::line(buffer, area, &paint(HEAD, LABEL));
    let width = usize::from(area.width);
    let at = LABEL.len().min(width);
    // Show the end of the typed text.
    let typed: Vec<char> = filter.chars().collect();
    let tail: String = typed[typed.len().saturating_sub(width.saturating_sub(at + 1))..].iter().collect();
    let rest = Rect { x: area.x + at as u16, width: area.width - at as u16, ..area };
    painted::line(buffer, rest, &text::clean(&tail));
    let cursor = rest.x + (text::width(&tail) as u16).min(rest.width.saturating_sub(1));
    if let Some(cell) = buffer.cell_mut((cursor, area.y)) {
        cell.set_style(Style::new().add_modifier(Modifier::REVERSED));
    }
}

/// Draws the lines, the totals, and the list from the page with the chosen row on.
fn tables(buffer: &mut Buffer, area: Rect, state: &State, look: &Look) -> (usize, usize) {
    let width = usize::from(area.width);
    let mut above = wrapped(&look.lines, area.width);
    if look.totals.len() > 0 {
        above.extend(look.totals.lines(width, &(0..look.totals.len()).collect::<Vec<_>>()));
    }
    // On a small screen the list keeps a part.
    above.truncate(usize::from(area.height).saturating_sub(usize::from(area.height) / LIST));
    let top = above.len() + usize::from(look.totals.len() > 0);
    text_lines(buffer, area, &above, 0);
    let list = Rect { y: area.y + top as u16, height: area.height - top as u16, ..area };
    let rows = state.rows();
    let shown = rows.shown(&look.list, &state.filter);
    let page = usize::from(list.height).saturating_sub(1).max(1);
    let first = rows.at / page * page;
    if shown.is_empty() {
        let empty = if state.filter.is_empty() { look.list.empty } else { "no row has that text" };
        painted::line(buffer, list, &paint(DIM, empty));
        return (page, 0);
    }
    let here = &shown[first.min(shown.len())..shown.len().min(first + page)];
    text_lines(buffer, list, &look.list.sheet.lines(width, here), 0);
    let chosen = Rect { y: list.y + 1 + (rows.at - first) as u16, height: 1, ..list };
    buffer.set_style(chosen.intersection(list), Style::new().add_modifier(Modifier::REVERSED));
    (page, 0)
}

/// Draws lines of text from one on.
fn text_lines(buffer: &mut Buffer, area: Rect, lines: &[String], from: usize) -> (usize, usize) {
    let (page, lines) = (usize::from(area.height), wrapped(lines, area.width));
    let last = lines.len().saturating_sub(page);
    for (y, line) in (area.y..area.bottom()).zip(&lines[from.min(last)..]) {
        painted::line(buffer, Rect { y, height: 1, ..area }, line);
    }
    (page, last)
}

/// Returns the whole help: the keys, and how to read the tab.
fn help(tab: Tab, of_one: bool) -> Vec<String> {
    let mut lines = vec![paint(HEAD, "Keys")];
    lines.extend(keys::lines());
    lines.push(String::new());
    lines.extend(reading(tab, of_one).iter().map(|said| (*said).to_owned()));
    lines
}

#[cfg(test)]
mod tests;
