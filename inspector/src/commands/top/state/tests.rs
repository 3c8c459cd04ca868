use super::super::look::{Head, List, RowKey};
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
        head: Some(Head { pid: 7, running: true, idle_bytes: 1 << 30, ..Head::default() }),
        list: List { sheet: table.sheet(rows.iter()), keys: rows.iter().map(key).collect(), ..List::default() },
        ..Look::default()
    }
}

fn state() -> State {
    let mut state = State::new(Some("/7.ledger".into()), Duration::from_secs(1), false);
    state.page = 10;
    state
}

/// Presses keys one after another; returns the effect of the last one.
fn press(state: &mut State, look: &Look, keys: &str) -> Option<Effect> {
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
    press(&mut state, &empty, "\t\t\t\t");
    assert_eq!(state.ask.tab, Tab::Overview, "round and round");
    assert_eq!(press(&mut state, &empty, "q"), Some(Effect::Quit));
    assert_eq!(press(&mut state, &empty, "?q"), Some(Effect::Quit), "also from the help");
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
fn groups_pauses_and_baselines_are_asked_for() {
    let mut state = state();
    let look = look(&state, &[]);
    press(&mut state, &look, "2g");
    assert_eq!(state.ask.by, allocs::By::Stack);
    press(&mut state, &look, "GG");
    assert_eq!(state.ask.by, allocs::By::Device, "round and round");
    press(&mut state, &look, " b");
    assert_eq!((state.ask.paused, state.ask.baseline), (true, 1));
    press(&mut state, &look, "pb");
    assert_eq!((state.ask.paused, state.ask.baseline), (false, 2), "a new one");
    press(&mut state, &look, "B+");
    assert_eq!((state.ask.baseline, state.ask.interval), (0, Duration::from_secs(2)));
    press(&mut state, &look, "------");
    assert_eq!(state.ask.interval, Duration::from_millis(250), "not oftener");
}

#[test]
fn nothing_happens_to_the_process_before_it_was_asked() {
    let mut state = state();
    let look = look(&state, &[]);
    assert_eq!(press(&mut state, &look, "t"), None);
    assert!(state.prompt.as_ref().unwrap().label().contains("give 1.0 GiB"), "{:?}", state.prompt);
    assert_eq!(press(&mut state, &look, "n"), None);
    assert_eq!((state.prompt.is_none(), state.message.as_ref().unwrap().text.as_str()), (true, "nothing was done"));
    assert_eq!(press(&mut state, &look, "t\r"), None, "Enter is no yes");
    assert_eq!(press(&mut state, &look, "ty"), Some(Effect::Act(Request::Trim { press: false })));
    assert_eq!(press(&mut state, &look, "mwarm up\r"), Some(Effect::Act(Request::Mark("warm up".into()))));
    assert_eq!(press(&mut state, &look, "mx\x08\r"), None, "a mark needs a name");
}

#[test]
fn what_was_seen_before_the_process_was_chosen_says_nothing_of_it() {
    let mut state = State::new(None, Duration::from_secs(1), false);
    let mut list = look(&state, &[]);
    list.head = None;
    state.ask.whom = Some("/7.ledger".into());
    assert_eq!(press(&mut state, &list, "t"), None);
    let message = state.message.as_ref().unwrap();
    assert!(!message.bad && message.text.starts_with("one moment"), "{message:?}");
    let its = look(&state, &[]);
    press(&mut state, &its, "t");
    assert!(state.prompt.is_some());
}

#[test]
fn readonly_asks_nothing() {
    let mut state = State::new(Some("/7.ledger".into()), Duration::from_secs(1), true);
    let look = look(&state, &[]);
    for key in ["m", "t"] {
        assert_eq!(press(&mut state, &look, key), None);
        assert!(state.prompt.is_none() && state.message.as_ref().unwrap().text.contains("--readonly"));
    }
    assert_eq!(press(&mut state, &look, "b"), None);
    assert_eq!(state.ask.baseline, 1, "a baseline is ours");
}

#[test]
fn what_is_pasted_presses_no_keys() {
    let mut state = state();
    let look = look(&state, &[]);
    state.paste("ty", Some(&look));
    assert!(state.prompt.is_none());
    press(&mut state, &look, "/");
    state.paste("a\nb\x1b", Some(&look));
    assert_eq!(state.filter, "ab");
}
