use super::super::look::{List, RowKey};
use super::*;
use crate::model::allocs;
use crate::view::table::Table;
use ratatui::crossterm::event::{KeyCode, KeyModifiers};

/// Returns the rows with these names and bytes.
fn look(state: &State, rows: &[(&str, u64)]) -> Look {
    let table = Table::<(&str, u64)>::new().bytes("live", 0, |row| row.1).text("site", 0, |row| row.0);
    let key = |row: &(&str, u64)| RowKey { id: row.0.into(), ..RowKey::default() };
    Look {
        ask: state.ask.clone(),
        list: List { sheet: table.sheet(rows.iter()), keys: rows.iter().map(key).collect(), ..List::default() },
        ..Look::default()
    }
}

fn state() -> State {
    let mut state = State::new(Some("/7.ledger".into()), Duration::from_secs(1));
    state.page = 10;
    state
}

/// Presses keys one after another; returns the effect of the last one.
fn press(state: &mut State, look: &Look, keys: &str) -> Option<Does> {
    let key = |c| match c {
        '\r' => KeyCode::Enter,
        '\x1b' => KeyCode::Esc,
        '\t' => KeyCode::Tab,
        '\x08' => KeyCode::Backspace,
        '↓' => KeyCode::Down,
        '⇟' => KeyCode::End,
        c => KeyCode::Char(c),
    };
    keys.chars().map(|c| state.key(&KeyEvent::new(key(c), KeyModifiers::NONE), Some(look))).last().flatten()
}

fn names(state: &State, look: &Look) -> Vec<String> {
    state.rows().shown(&look.list, &state.filter).iter().map(|&row| look.list.keys[row].id.clone()).collect()
}

fn chosen(state: &State, look: &Look) -> String {
    state.rows().chosen(&look.list, &state.filter).map(|row| look.list.keys[row].id.clone()).unwrap_or_default()
}

#[test]
fn keys_go_from_tab_to_tab() {
    let mut state = state();
    let empty = look(&state, &[]);
    press(&mut state, &empty, "2");
    assert_eq!(state.ask.tab, Tab::Allocations);
    press(&mut state, &empty, "\t\t\t");
    assert_eq!(state.ask.tab, Tab::Overview, "round and round");
    assert_eq!(press(&mut state, &empty, "q"), Some(Does::Quit));
    assert_eq!(press(&mut state, &empty, "?q"), Some(Does::Quit), "also from the help");
}

#[test]
fn rows_are_sorted_filtered_and_turned_round() {
    let mut state = state();
    let empty = look(&state, &[]);
    press(&mut state, &empty, "2");
    let look = look(&state, &[("b", 5), ("a", 9), ("ab", 1)]);
    assert_eq!(names(&state, &look), ["b", "a", "ab"], "as they came");
    press(&mut state, &look, "s");
    assert_eq!(names(&state, &look), ["a", "b", "ab"], "by bytes");
    press(&mut state, &look, "r");
    assert_eq!(names(&state, &look), ["ab", "b", "a"]);
    press(&mut state, &look, "rSS");
    assert_eq!(names(&state, &look), ["a", "ab", "b"], "by the last column: names");
    press(&mut state, &look, "/A\r");
    assert_eq!(names(&state, &look), ["a", "ab"]);
    press(&mut state, &look, "/xyz\x1b");
    assert_eq!(names(&state, &look), ["a", "ab"], "Esc takes back what was typed");
    press(&mut state, &look, "\x1b");
    assert_eq!((names(&state, &look).len(), state.ask.whom.is_some()), (3, true), "then the filter, then the process");
    press(&mut state, &look, "\x1b");
    assert!(state.ask.whom.is_none());
}

#[test]
fn what_was_chosen_stays_chosen_wherever_it_goes() {
    let mut state = state();
    let empty = look(&state, &[]);
    press(&mut state, &empty, "2");
    let first = look(&state, &[("a", 9), ("b", 5), ("c", 1)]);
    press(&mut state, &first, "↓");
    assert_eq!(chosen(&state, &first), "b");
    let second = look(&state, &[("c", 9), ("a", 8), ("b", 5)]);
    state.looked(&second);
    assert_eq!(chosen(&state, &second), "b");
    press(&mut state, &second, "⇟kk");
    assert_eq!(chosen(&state, &second), "c");
    state.looked(&first);
    assert_eq!(chosen(&state, &first), "a", "at the top it stays at the top");
    press(&mut state, &first, "⇟");
    let fewer = look(&state, &[("a", 9)]);
    state.looked(&fewer);
    assert_eq!(chosen(&state, &fewer), "a", "the last one, where it is gone");
    press(&mut state, &fewer, "\r");
    assert_eq!(state.ask.detail.as_deref(), Some("a"));
    press(&mut state, &fewer, "\x1b");
    assert_eq!(state.ask.detail, None);
}

#[test]
fn groups_pauses_and_intervals_are_asked_for() {
    let mut state = state();
    let look = look(&state, &[]);
    press(&mut state, &look, "2g");
    assert_eq!(state.ask.by, allocs::By::Stack);
    press(&mut state, &look, "GG");
    assert_eq!(state.ask.by, allocs::By::Device, "round and round");
    press(&mut state, &look, " ");
    assert!(state.ask.paused);
    press(&mut state, &look, "p+");
    assert_eq!((state.ask.paused, state.ask.interval), (false, Duration::from_secs(2)));
    press(&mut state, &look, "------");
    assert_eq!(state.ask.interval, Duration::from_millis(250), "not oftener");
}

/// The keys that once changed the process: other commands do that now.
#[test]
fn no_key_changes_the_process() {
    let mut state = state();
    let look = look(&state, &[("a", 9)]);
    let before = state.ask.clone();
    for key in ["b", "B", "m", "t", "v"] {
        assert_eq!(press(&mut state, &look, key), None, "{key}");
        assert!(state.ask == before && !state.is_typing() && state.message.is_none(), "{key}");
    }
}

#[test]
fn what_is_pasted_presses_no_keys() {
    let mut state = state();
    let look = look(&state, &[]);
    state.paste("/q", Some(&look));
    assert!(!state.is_typing() && state.filter.is_empty());
    press(&mut state, &look, "/");
    state.paste("a\nb\x1b", Some(&look));
    assert_eq!(state.filter, "ab");
}
