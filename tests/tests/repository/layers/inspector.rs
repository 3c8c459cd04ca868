//! The layers of the inspector.

use super::rules::House;

pub const HOUSE: House = House {
    root: "inspector/src/lib.rs",
    layers: &[
        &[("the command line", &["", "cli"])],
        &[("commands", &["commands"])],
        &[
            ("context", &["context", "args"]),
            ("report", &["report"]),
            ("launch", &["launch"]),
            ("metrics", &["metrics"]),
            ("web", &["web"]),
        ],
        &[("parking", &["parking"])],
        &[("model", &["model"]), ("view", &["view"])],
        &[("symbols", &["symbols"])],
        &[("source", &["source"])],
        &[("failure", &["failure"]), ("compose", &["compose"])],
        &[("text", &["text"])],
    ],
    // What is drawn is given: a view reads no ledger and asks no process.
    narrow: &[("view", &["failure", "compose", "text"])],
};
