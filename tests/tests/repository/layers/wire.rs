//! The layers of what shim and inspector share.

use super::rules::House;

pub const HOUSE: House = House {
    root: "shim/wire/src/lib.rs",
    layers: &[
        &[("the library", &[""])],
        // What is read, asked and written.
        &[(
            "words",
            &[
                "command",
                "counters",
                "group",
                "growth",
                "kinds",
                "layout",
                "location",
                "place",
                "processor",
                "read",
                "references",
                "settings",
                "share",
                "tools",
                "trace",
                "units",
                "verdict",
            ],
        )],
    ],
    narrow: &[],
};
