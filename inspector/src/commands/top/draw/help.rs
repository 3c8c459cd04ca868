//! The keys, and how to read each tab.

use super::super::keys::KEYS;
use super::super::look::Tab;
use super::super::state::State;
use super::lines::wrapped;
use crate::text;

/// Least width for a key's meaning beside the key.
const BESIDE: u16 = 76;

fn reading(state: &State) -> &'static [&'static str] {
    match state.tab {
        _ if state.whom.is_none() => &["A row for each process with libgpumem.so. Enter looks at one."],
        Tab::Overview => &[
            "Above: totals of the process. ~ is an estimate. Below: the call sites that hold most.",
            "devices, all users: memory in use on the devices of this process, by whoever.",
        ],
        Tab::Allocations => &[
            "A row for each group of live allocations. Enter shows the call stacks of one.",
            "growth: what gpumem leaks says of a call site; ▲ marks those that grow steadily.",
        ],
        Tab::Graphs => &[
            "Above: what the graph cache holds and does. Below: a row for each group of graphs and execs.",
            "device ~, host ~: estimates of what they take. launched: when the last one was, how long ago.",
        ],
        Tab::Pool => &[
            "Above: what the pool keeps and did. Below: a row for each context.",
            "idle: freed by the program and kept for it; t gives that back to the driver.",
        ],
        Tab::Events => &[
            "What happened, the newest first. Enter shows when, where and in which thread.",
            "Red: something failed. Yellow: something to look at.",
        ],
    }
}

/// Returns the whole help, in lines of this width.
pub(super) fn lines(state: &State, columns: u16) -> Vec<String> {
    let mut lines = vec!["Keys".to_owned()];
    let width = KEYS.iter().map(|line| text::width(line.keys)).max().unwrap_or(0);
    for line in KEYS {
        if columns < BESIDE {
            lines.push(line.keys.to_owned());
            let says = wrapped(line.says, columns - 4, usize::MAX);
            lines.extend(says.iter().map(|says| format!("    {}", says.trim_start())));
            continue;
        }
        let says = wrapped(line.says, columns - width as u16 - 2, usize::MAX);
        for (at, says) in says.iter().enumerate() {
            let keys = if at == 0 { line.keys } else { "" };
            let gap = " ".repeat(width - text::width(keys) + 2);
            lines.push(format!("{keys}{gap}{}", says.trim_start()));
        }
    }
    let common = [
        "Δ/min: how fast it grows, as gpumem leaks has it: the slope over the later half of the samples.",
        "history: the last 15 minutes, or since the first sample; its lowest and its highest value.",
    ];
    lines.push(String::new());
    for said in reading(state).iter().chain(&common) {
        lines.extend(wrapped(said, columns, usize::MAX));
    }
    lines
}
