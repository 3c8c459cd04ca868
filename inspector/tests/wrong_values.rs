//! Wrong values for every option of every command, and wrong files: each answer names what is wrong and what is allowed, in
//! gpumem's own words.

mod common;
use clap::{ArgAction, CommandFactory, Parser};
use common::*;
use std::path::Path;

/// Words of libraries about a value, which tell a user nothing.
const RAW: &[&str] = &[
    "invalid digit",
    "os error",
    "number too large",
    "number too small",
    "out of range integral",
    "cannot parse",
    "invalid float",
    "invalid socket address",
    "Error(",
    "Error {",
    "ErrorKind",
    "Os {",
    "None",
    "Some(",
    "EOF while",
    "expected value at line",
    "expected ident",
    "missing field",
    "expected struct",
    "invalid type: unit",
    "utf-8 sequence",
    "did not contain valid UTF-8",
    "failed to fill whole buffer",
    "unexpected end of file",
    "panicked",
    "RUST_BACKTRACE",
    "entity not found",
    "InvalidInput",
    "invalid input parameter",
];

fn no_raw_words(text: &str, of: &dyn std::fmt::Debug) {
    for raw in RAW {
        assert!(!text.contains(raw), "{of:?}: {raw:?} is a library's word:\n{text}");
    }
}

/// Values that are wrong for every option, except for those that take any text.
const WRONG: [&str; 9] = ["", " ", "x y", "-1", "1e999", "99999999999999999999999", "0x10", "1.5.2", "ü\u{1b}[31m"];

#[test]
fn every_option_refuses_in_words() {
    let mut root = gpumem_inspector::Args::command();
    root.build();
    let mut refused = 0;
    for command in root.get_subcommands() {
        let takes = |arg: &&clap::Arg| matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
        for arg in command.get_arguments().filter(takes) {
            for wrong in WRONG {
                let given = match arg.get_long() {
                    Some(long) => vec![format!("--{long}={wrong}")],
                    // A word that begins with a dash would be an option.
                    None => vec!["--".into(), wrong.into()],
                };
                let words = ["gpumem".to_owned(), command.get_name().to_owned()].into_iter().chain(given);
                let Err(error) = gpumem_inspector::Args::try_parse_from(words) else { continue };
                let text = error.to_string();
                no_raw_words(&text, &(command.get_name(), arg.get_id(), wrong));
                use clap::error::ErrorKind::{InvalidValue, ValueValidation};
                if !matches!(error.kind(), InvalidValue | ValueValidation) {
                    continue;
                }
                refused += 1;
                let name = arg.get_long().map_or_else(|| format!("{arg}"), |long| format!("--{long}"));
                assert!(text.contains(name.trim_matches(['[', ']', '.'])), "{name}, {wrong:?}: {text}");
                let says_what =
                    ["allowed", "possible values", "a value is required", "such as", "is no variable", "needs a value"];
                assert!(says_what.iter().any(|word| text.contains(word)), "{name}, {wrong:?}: what is allowed? {text}");
            }
        }
    }
    assert!(refused > 300, "{refused} values were refused");
}

/// A file of each kind that is not what a command wants.
fn wrong_files(dir: &Path) -> Vec<String> {
    let whole = demo(gone()).finish();
    let file = |name: &str, bytes: &[u8]| {
        let path = dir.join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let folder = dir.join("folder");
    std::fs::create_dir(&folder).unwrap();
    vec![
        dir.join("missing").to_str().unwrap().to_owned(),
        folder.to_str().unwrap().to_owned(),
        format!("{}/x", file("file", b"x")),
        file("empty", b""),
        file("text.rec.gz", b"no recording\n"),
        file("short", &whole[..40]),
        file("packed.rec.gz", &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 1, 2, 3]),
    ]
}

#[test]
fn wrong_files_are_named_in_words() {
    let dir = dir();
    for file in wrong_files(dir.path()) {
        let file = file.as_str();
        for args in [
            &["allocs", file][..],
            &["graphs", "--file", file],
            &["stats", file],
            &["events", file],
            &["leaks", file],
            &["get", file],
            &["set", file, "LIMIT=1GiB"],
            &["trim", file],
            &["mark", "m", file],
            &["off", file],
            &["check", file],
            &["dump", file, "-o", "/dev/null"],
            &["diff", file, file],
            &["export", file, "--to", "csv"],
            &["report", file, "-o", "/dev/null"],
            &["record", file, "--for", "0"],
            &["run", "--lib", file, "--", "true"],
            &["serve", "--listen", "127.0.0.1:0", "--web-config", file],
        ] {
            let mut command = gpumem();
            command.env("GPUMEM_DIR", dir.path()).args(args);
            let bytes = std::fs::metadata(file).ok().filter(|meta| meta.is_file()).map(|meta| meta.len());
            match args[0] {
                // A config that says nothing is one: it would be served.
                "serve" if bytes == Some(0) => continue,
                // What cannot be preloaded the loader tells, and goes on.
                "run" if bytes.is_some() => continue,
                _ => {}
            }
            let answer = answer(command);
            assert_ne!(answer.code, 0, "{args:?}: {}", answer.out);
            let said = format!("{}{}", answer.out, answer.err);
            no_raw_words(&said, &args);
            assert!(said.contains(file), "{args:?} does not name the file: {said}");
        }
    }
}

#[test]
fn places_that_cannot_be_written_are_named() {
    let dir = dir();
    let ledger = dir.put(gone(), demo(gone()));
    let ledger = ledger.to_str().unwrap();
    let under_a_file = format!("{ledger}/x");
    for place in ["/nonexistent/x", "/", under_a_file.as_str(), ""] {
        for args in [
            &["dump", ledger, "-o", place][..],
            &["export", ledger, "--to", "csv", "-o", place],
            &["report", ledger, "-o", place],
            &["man", "--out", place],
        ] {
            if args[0] == "man" && place != under_a_file {
                continue;
            }
            let answer = dir.gpumem(args);
            assert_ne!(answer.code, 0, "{args:?}: {}", answer.out);
            no_raw_words(&answer.err, &args);
            let named = if place.is_empty() { "-o" } else { place };
            assert!(answer.err.contains(named) || answer.err.contains("--output"), "{args:?}: {}", answer.err);
        }
    }
}

#[test]
fn json_is_refused_where_the_answer_is_none() {
    let dir = dir();
    let ledger = dir.put(gone(), demo(gone()));
    let ledger = ledger.to_str().unwrap();
    for args in [
        &["export", ledger, "--to", "csv"][..],
        &["export", ledger, "--to", "folded"],
        &["export", ledger, "--to", "prometheus"],
        &["completions", "bash"],
        &["man"],
        &["help"],
        &["help", "faq"],
    ] {
        let answer = dir.gpumem(&[args, &["--json"]].concat());
        assert_eq!((answer.code, answer.out.as_str()), (2, ""), "{args:?}: {}", answer.err);
        assert!(answer.err.contains("--json") && answer.err.contains("leave --json out"), "{args:?}: {}", answer.err);
    }
    // What is JSON stays so, and a file's name is told in JSON.
    assert_eq!(
        dir.json(&["export", ledger])["process"]["pid"],
        dir.json(&["export", ledger, "--to", "json"])["process"]["pid"]
    );
    let out = dir.path().join("a.csv");
    let told = dir.json(&["export", ledger, "-o", out.to_str().unwrap()]);
    assert_eq!(told["bytes"], std::fs::metadata(&out).unwrap().len());
    let out = dir.path().join("report.json");
    let told = dir.json(&["report", ledger, "-o", out.to_str().unwrap()]);
    assert_eq!(told["file"], out.to_str().unwrap());
}

#[test]
fn what_the_log_says_looks_like_every_other_message() {
    let dir = dir();
    let mut command = gpumem();
    command.env("GPUMEM_DIR", "relative").args(["ps"]);
    let err = answer(command).err;
    assert!(err.starts_with("gpumem: warning: GPUMEM_DIR="), "{err}");
    assert!(err.lines().all(|line| line.starts_with("gpumem: ")), "{err}");
    dir.put(gone(), demo(gone()));
    let mut command = gpumem();
    command.env("GPUMEM_DIR", dir.path()).args(["allocs", "-v"]);
    let err = answer(command).err;
    assert!(err.contains("gpumem: info: no process is running"), "{err}");
}
