//! Draws a state and a look into the cells of a screen. Nothing here waits or changes anything.
//!
//! * [`lines`]: wrapped text, cells of tables as text, and the help.

mod lines;

use super::look::{Ask, BAD, DIM, GOOD, Look, PLAIN, Sheet, Tab, WARN};
use super::state::{Prompt, Rows, State};
use crate::args::name_of;
use crate::text;
use crate::view::grid::{self, Column};
use clap::ValueEnum;
use lines::{cell, help, wrapped};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const CHOSEN: Style = Style::new().add_modifier(Modifier::REVERSED);

/// Smallest usable screen.
const LEAST: (u16, u16) = (40, 8);
/// Most rows that one line of text above the tables takes.
const MOST_WRAPPED: usize = 2;

/// Draws everything. Returns the number of rows of the list, or lines of the text, that fit: keys move by pages.
pub(super) fn all(buffer: &mut Buffer, state: &State, look: Option<&Look>) -> usize {
    let area = buffer.area;
    // The terminal has no size yet, or lost it.
    if area.is_empty() {
        return 0;
    }
    if area.width < LEAST.0 || area.height < LEAST.1 {
        let (columns, rows) = LEAST;
        let said = format!("too small: {columns}x{rows} needed");
        buffer.set_stringn(area.x, area.y, said, usize::from(area.width), PLAIN);
        return 0;
    }
    let look = look.filter(|look| look.ask.whom == state.whom);
    header(buffer, Rect { height: 1, ..area }, state, look);
    let tabs = Rect { y: area.y + 1, height: 1, ..area };
    if state.whom.is_some() {
        self::tabs(buffer, tabs, state.tab);
    }
    footer(buffer, Rect { y: area.bottom() - 1, height: 1, ..area }, state, look);
    let body = Rect { y: area.y + 2, height: area.height - 3, ..area };
    match (state.help, &state.detail, look) {
        (Some(from), ..) => text_lines(buffer, body, &help(state, body.width), from),
        (None, None, Some(look)) if look.ask.tab == state.tab => tables(buffer, body, state, look),
        (None, Some(detail), Some(Look { ask: Ask { detail: Some(id), .. }, detail: Some(lines), .. }))
            if *id == detail.id =>
        {
            let lines: Vec<String> = lines.iter().flat_map(|line| wrapped(line, body.width, usize::MAX)).collect();
            text_lines(buffer, body, &lines, detail.from)
        }
        _ => {
            put(buffer, body, "reading …", DIM);
            1
        }
    }
}

/// Puts text at the beginning of an area.
fn put(buffer: &mut Buffer, area: Rect, text: &str, style: Style) {
    if area.height > 0 {
        buffer.set_stringn(area.x, area.y, text::clean(text), usize::from(area.width), style);
    }
}

/// Puts parts side by side, each whole or not at all, in order.
fn put_parts(buffer: &mut Buffer, area: Rect, parts: &[(String, Style)]) {
    let (mut x, end) = (usize::from(area.x), usize::from(area.right()));
    for (part, style) in parts.iter().filter(|(part, _)| !part.is_empty()) {
        let part = text::clean(part);
        let wide = text::width(&part);
        if let Some(at) = u16::try_from(x).ok().filter(|_| x + wide <= end) {
            buffer.set_string(at, area.y, &part, *style);
            x += wide + 2;
        }
    }
}

fn header(buffer: &mut Buffer, area: Rect, state: &State, look: Option<&Look>) {
    let pace = look.map_or(state.interval, |look| look.pace.max(state.interval));
    let interval = text::units::span(pace.as_nanos() as u64);
    let pace = if state.paused { ("paused".into(), CHOSEN) } else { (format!("every {interval}"), DIM) };
    let mut parts = vec![("gpumem top".to_owned(), DIM)];
    match look.map(|look| &look.head) {
        None => {}
        Some(head) if head.name.is_empty() => parts.push((head.status.clone(), PLAIN)),
        Some(head) => {
            let style = if head.running { PLAIN } else { WARN };
            parts.push((text::shorten(&head.name, 24).into_owned(), BOLD));
            parts.push((format!("pid {}", head.pid), PLAIN));
            parts.push((head.status.clone(), style));
        }
    }
    if let Some(age) = look.and_then(|look| look.head.baseline_age) {
        // Before parts that may not fit: the columns now have another meaning.
        parts.insert(3.min(parts.len()), (format!("Δ {}", text::units::span(age.as_nanos() as u64)), CHOSEN));
    }
    // The mark of a paused screen must always fit too.
    parts.insert(if state.paused { 1 } else { parts.len() }, pace);
    put_parts(buffer, area, &parts);
}

fn tabs(buffer: &mut Buffer, area: Rect, now: Tab) {
    let name =
        |(at, tab): (usize, &Tab)| (format!("{} {}", at + 1, name_of(*tab)), if *tab == now { CHOSEN } else { PLAIN });
    let mut parts: Vec<_> = Tab::value_variants().iter().enumerate().map(name).collect();
    let wide = parts.iter().map(|(part, _)| text::width(part) + 2).sum::<usize>();
    if wide > usize::from(area.width) + 2 {
        parts.retain(|(_, style)| *style == CHOSEN);
        parts.push(("← →: others".into(), DIM));
    }
    parts.push(("?: keys".into(), DIM));
    put_parts(buffer, area, &parts);
}

/// Draws the prompt, a message, or the order of the rows.
fn footer(buffer: &mut Buffer, area: Rect, state: &State, look: Option<&Look>) {
    if let Some(prompt) = &state.prompt {
        return self::prompt(buffer, area, prompt);
    }
    if let Some(message) = &state.message {
        let style = if message.bad { BAD } else { GOOD };
        let lines = wrapped(&message.text, area.width, 1);
        return put(buffer, area, lines.first().map_or("", String::as_str), style);
    }
    let Some(look) = look else { return };
    if state.help.is_some() || state.detail.is_some() {
        return put_parts(buffer, area, &[("Esc: back".into(), DIM), ("↑ ↓: further".into(), DIM)]);
    }
    let mut parts = Vec::new();
    let rows = state.rows();
    let sheet = &look.list;
    if !state.filter.is_empty() {
        parts.push((format!("only {:?}", state.filter), CHOSEN));
    }
    if !sheet.of.is_empty() {
        parts.push((format!("by {}", sheet.of), PLAIN));
    }
    if let Some(column) = rows.sorted_by.and_then(|at| sheet.columns.get(at)) {
        parts.push((format!("sorted by {}", title(look, column)), PLAIN));
    }
    if rows.reversed {
        parts.push(("reversed".into(), PLAIN));
    }
    let shown = rows.shown(sheet, &state.filter).len();
    let at = if shown == 0 { 0 } else { rows.at + 1 };
    let more = if sheet.left_out == 0 {
        String::new()
    } else {
        format!(" and {} smaller", text::units::number(sheet.left_out as u64))
    };
    parts.push((format!("{at} of {shown}{more}"), DIM));
    if look.unnamed > 0 {
        parts.push((format!("{} to be named", text::units::number(look.unnamed as u64)), DIM));
    }
    put_parts(buffer, area, &parts);
}

fn prompt(buffer: &mut Buffer, area: Rect, prompt: &Prompt) {
    let label = prompt.label();
    let width = usize::from(area.width);
    put(buffer, area, &label, BOLD);
    let at = text::width(&label).min(width);
    let room = width.saturating_sub(at + 1);
    // Show the end of the typed text.
    let typed: Vec<char> = prompt.text.chars().collect();
    let tail: String = typed[typed.len().saturating_sub(room)..].iter().collect();
    let rest = Rect { x: area.x + at as u16, width: area.width - at as u16, ..area };
    put(buffer, rest, &tail, PLAIN);
    let cursor = rest.x + (text::width(&tail) as u16).min(rest.width.saturating_sub(1));
    if let Some(cell) = buffer.cell_mut((cursor, area.y)) {
        cell.set_style(CHOSEN);
    }
}

fn title(look: &Look, column: &super::look::Column) -> &'static str {
    if look.head.baseline_age.is_some() { column.changed } else { column.title }
}

/// Draws warnings, lines of text, the numbers, and the list.
fn tables(buffer: &mut Buffer, area: Rect, state: &State, look: &Look) -> usize {
    let mut area = area;
    let below = |area: Rect, rows: usize| {
        let rows = (rows as u16).min(area.height);
        Rect { y: area.y + rows, height: area.height - rows, ..area }
    };
    let warnings = look.warnings.iter().map(|line| (line, WARN));
    for (line, style) in warnings.chain(look.lines.iter().map(|line| (line, PLAIN))) {
        for line in wrapped(line, area.width, MOST_WRAPPED) {
            put(buffer, area, &line, style);
            area = below(area, 1);
        }
    }
    if !look.numbers.rows.is_empty() {
        // On a small screen the list keeps a part.
        let most = usize::from(area.height).saturating_sub(4).max(usize::from(area.height) / 2);
        let rows = (look.numbers.rows.len() + 1).min(most);
        let at = Rect { height: rows as u16, ..area };
        sheet(buffer, at, look, &look.numbers, &Rows::default(), "", false);
        area = below(area, rows + 1);
    }
    sheet(buffer, area, look, &look.list, &state.rows(), &state.filter, true)
}

/// Draws a table, starting at the page with the chosen row; returns the number of rows that fit.
fn sheet(
    buffer: &mut Buffer,
    area: Rect,
    look: &Look,
    sheet: &Sheet,
    rows: &Rows,
    filter: &str,
    chosen: bool,
) -> usize {
    let page = usize::from(area.height).saturating_sub(1).max(1);
    let shown = rows.shown(sheet, filter);
    if shown.is_empty() {
        put(buffer, area, if filter.is_empty() { sheet.empty } else { "no row has that text" }, DIM);
        return page;
    }
    let last = |at: usize| at + 1 == sheet.columns.len() && !sheet.of.is_empty();
    let column = |(at, column): (usize, &super::look::Column)| Column {
        title: if last(at) { &sheet.of } else { title(look, column) },
        kind: column.kind,
        least: column.least,
        gives_way: column.gives_way,
    };
    let columns: Vec<Column> = sheet.columns.iter().enumerate().map(column).collect();
    let bars = grid::bars(usize::from(area.width));
    let first = rows.at / page * page;
    let line = |(at, row): (usize, &&super::look::Row)| grid::Line {
        cells: row.cells.iter().map(|of| (cell(of, bars).into(), row.style)).collect(),
        selected: chosen && first + at == rows.at,
    };
    let lines: Vec<_> = shown.iter().skip(first).take(page).enumerate().map(line).collect();
    grid::draw(buffer, area, &columns, BOLD, &lines);
    page
}

/// Draws lines of text from one on; returns the number that fit.
fn text_lines(buffer: &mut Buffer, area: Rect, lines: &[String], from: usize) -> usize {
    let page = usize::from(area.height);
    let from = from.min(lines.len().saturating_sub(page));
    for (y, (at, line)) in (area.y..area.bottom()).zip(lines.iter().enumerate().skip(from)) {
        put(buffer, Rect { y, height: 1, ..area }, line, if at == 0 { BOLD } else { PLAIN });
    }
    page
}

#[cfg(test)]
mod tests;
