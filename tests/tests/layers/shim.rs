//! The layers of the shim, as they are meant to be. What breaks them today stands in `shim_exceptions.txt`, one
//! `module -> module` a line: a line that is no longer needed is taken out, and none may come in. A module that moves
//! takes its lines along under its new name.

use crate::rules::House;

pub const HOUSE: House = House {
    root: "shim/src/lib.rs",
    layers: &[
        // How calls come in.
        &[("doors", &["", "doors"])],
        // One file per noun of the API, and what is asked from outside.
        &[("hooks", &["hooks"]), ("control", &["control"])],
        // The only place where pool and graphs meet.
        &[("reclaim", &["pool::ladder", "registry::ran_out", "registry::in_graph"])],
        &[("pool", &["pool"]), ("graphs", &["graphs"])],
        // What the device has done.
        &[("progress", &["progress"])],
        // What is live, who asked for it, and whether anything is recorded.
        &[("records", &["registry", "stranded", "trace", "shim", "gate", "call", "trust", "newer"])],
        &[("ledger", &["ledger"]), ("stacks", &["stacks"])],
        // The real libraries.
        &[("vendor", &["vendor"])],
        // What a process is to us.
        &[("process", &["process"])],
    ],
};

pub const EXCEPTIONS: &str = include_str!("shim_exceptions.txt");
