//! The layers of the shim. A use that breaks them fails, as does a module that no room has.
//!
//! Data that must travel upwards travels as plain data, or by a trait that the lower room defines (`shim/above.rs`).

use super::rules::House;

pub const HOUSE: House = House {
    root: "shim/src/lib.rs",
    layers: &[
        // What tests of the linked library see.
        &[("tested", &["tested"])],
        // How calls come in.
        &[("doors", &["", "doors"])],
        // One file per noun of the API.
        &[("hooks", &["hooks"])],
        // How the shim starts, and whom its records may ask.
        &[("start", &["start"])],
        // What is asked from outside.
        &[("control", &["control"])],
        // What refers to memory. Launches of graphs whose memory was freed.
        &[("references", &["references"]), ("freed_graphs", &["freed_graphs"])],
        // The only place where pool and graphs meet.
        &[("request", &["request"])],
        // It acts on the blocks that the pool hands over.
        &[("guard", &["guard"])],
        &[("pool", &["pool"])],
        // What is done about memory that call sites strand.
        &[("stranded", &["stranded"])],
        // What graphs refer to.
        &[("memory_use", &["graphs::memory_use"])],
        &[("graphs", &["graphs"])],
        // Asking the processes that share the card.
        &[("share", &["share"])],
        // What the device has done.
        &[("progress", &["progress"])],
        // What is recorded, and whether anything is.
        &[("records", &["records", "trace", "shim", "gate", "call", "in_force", "trust", "newer"])],
        // What is live: the passive maps of the records. What is known of call sites that strand memory.
        // The processes that this one shares a limit with.
        &[("registry", &["records::registry"]), ("sites", &["stranded::state"]), ("group", &["group"])],
        &[("ledger", &["ledger"]), ("stacks", &["stacks"])],
        // The real libraries.
        &[("backend", &["backend"])],
        // What a process is to us.
        &[("process", &["process"])],
    ],
    narrow: &[
        // What a call means is known to its hook. Of the rooms below doors know how the shim starts, whether it acts
        // (the records), and whose real functions there are.
        ("doors", &["hooks", "start", "records", "stacks", "backend", "process"]),
        // The pool knows nothing of graphs.
        ("pool", &["stranded", "progress", "records", "registry", "sites", "group", "backend", "ledger", "process"]),
        // Of graphs the guard knows what they refer to.
        (
            "guard",
            &[
                "pool",
                "stranded",
                "memory_use",
                "progress",
                "records",
                "registry",
                "sites",
                "backend",
                "ledger",
                "process",
            ],
        ),
        // Of graphs it knows what they refer to.
        ("freed_graphs", &["memory_use", "records", "ledger", "process"]),
        // No driver is called.
        ("stranded", &["memory_use", "records", "registry", "sites", "ledger", "stacks", "process"]),
    ],
};
