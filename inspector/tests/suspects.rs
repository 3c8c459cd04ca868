//! `gpumem leaks --suspect` on what a process answers: what is called lost, in which words, and within which time.

mod common;
use common::*;
use gpumem_inspector::compose::Composer;
use gpumem_wire::counters;
use gpumem_wire::kinds::AllocKind;
use gpumem_wire::layout::{ALLOC_EXPORTED, AllocSlot, StackSlot, TableKind};
use gpumem_wire::references::{Place, References, Seen};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

/// Allocations of 1 MiB: to the first four words of the heap refer, to the fifth none, and to the sixth the fifth.
fn ledger() -> Composer {
    ledger_of(MIB)
}

/// The same, of so many bytes each.
fn ledger_of(bytes: u64) -> Composer {
    let mut ledger = begin(me());
    ledger.header.heartbeat_ns = monotonic_ns();
    module(&mut ledger, "/opt/demo/demo-server", APP, 0x10_0000, APP);
    ledger.stack(0, StackSlot { allocs: 6, ..Default::default() }, &[APP + 0x101]);
    let alloc = |serial: u64| AllocSlot {
        stack: 1,
        serial,
        addr: 0x7000_0000_0000 + serial * 0x1000_0000,
        bytes,
        kind: AllocKind::Device as u8,
        flags: if serial == 7 { ALLOC_EXPORTED } else { 0 },
        ..Default::default()
    };
    ledger.slots((1..=7).map(alloc));
    ledger
}

/// Returns the result of a search, with these facts.
fn found(facts: &[(&str, &str)]) -> References {
    let mut found = References::default();
    for serial in 1..=7 {
        let mut seen = Seen::default();
        match serial {
            1..=4 => seen.add(Place::Heap, 1),
            6 => seen.add(Place::Device, 1),
            _ => {}
        }
        found.allocs.insert(serial, seen);
    }
    found.edges.push((5, 6));
    found.facts = facts.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
    found
}

/// A process that answers requests one after another, each as `answer` says, which is told how long it may take; how
/// long each could.
fn serve(dir: &Dir, answer: impl Fn(u64) -> Option<String> + Send + 'static) -> std::sync::mpsc::Receiver<u64> {
    serve_of(dir, ledger(), answer)
}

/// The same, with this ledger.
fn serve_of(
    dir: &Dir,
    ledger: Composer,
    answer: impl Fn(u64) -> Option<String> + Send + 'static,
) -> std::sync::mpsc::Receiver<u64> {
    dir.put(me(), ledger);
    let listener = UnixListener::bind(dir.path().join(me().socket_name())).unwrap();
    let (asked, received) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut line = String::new();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
            let longest: u64 = line.trim().rsplit(' ').next().unwrap().parse().unwrap();
            let _ = asked.send(longest);
            match answer(longest) {
                Some(text) => drop(stream.write_all(text.as_bytes())),
                // It never answers: whoever asked hangs up.
                None => drop(stream.read(&mut [0])),
            }
        }
    });
    received
}

/// The report, where each search has these facts.
fn with(facts: &'static [(&str, &str)], more: &[&str]) -> (Value, String, u8) {
    let dir = dir();
    let _asked = serve(&dir, |_| Some(found(facts).text()));
    let args = ["leaks", "--suspect", "--older", "0", "--pause", "0"];
    let said = dir.json(&[&args[..], &["--all"]].concat());
    let text = dir.gpumem(&[&args[..], more].concat());
    (said, text.out, text.code as u8)
}

fn standing(said: &Value, serial: u64) -> String {
    let rows = said["allocations"].as_array().unwrap();
    let row = rows.iter().find(|row| row["serial"] == serial).unwrap_or_else(|| panic!("{serial}: {said:#}"));
    row["standing"].as_str().unwrap().to_owned()
}

#[test]
fn what_has_no_reference_is_suspect_and_what_is_outside_is_not() {
    let (said, text, code) = with(&[], &["--fail-over", "0"]);
    assert_eq!([1, 5, 6, 7].map(|n| standing(&said, n)), ["referred", "none-seen", "only-from-such", "outside"]);
    assert_eq!((said["suspect_bytes"].as_u64(), code), (Some(2 * MIB), 3));
    assert_eq!(said["all_was_read"], true);
    assert!(text.contains("no reference seen in two scans"), "{text}");
    assert!(!text.contains("outside"), "it is no suspect: {text}");
}

/// A check waits as long as it is told to, and the process is told so: it has some of that time to answer.
#[test]
fn a_check_takes_no_longer_than_it_is_told_to() {
    let dir = dir();
    let silent = std::sync::atomic::AtomicBool::new(false);
    let asked = serve(&dir, move |_| {
        let answers = !silent.fetch_or(true, std::sync::atomic::Ordering::Relaxed);
        answers.then(|| "ok 2 live and 0 freed blocks read: nothing written where it should not be\n".to_owned())
    });
    let got = dir.gpumem(&["check"]);
    assert!(got.code == 0 && got.out.contains("2 live and 0 freed blocks read"), "{} {}", got.out, got.err);
    let got = dir.gpumem(&["check", "--timeout", "500ms"]);
    assert!(got.code == 1 && got.err.contains("did not answer in 0.5 s"), "{} {}", got.out, got.err);
    assert_eq!(asked.try_iter().collect::<Vec<u64>>(), [8000, 400]);
}

/// A word that stands as the driver's do and may be the program's: the block is not called lost, nor what hangs from it.
#[test]
fn what_only_the_driver_seems_to_refer_to_is_told_apart() {
    let dir = dir();
    let _asked = serve(&dir, |_| {
        let mut found = found(&[]);
        found.allocs.get_mut(&5).unwrap().add(Place::DriverLike, 1);
        Some(found.text())
    });
    let args = ["leaks", "--suspect", "--older", "0", "--pause", "0"];
    let said = dir.json(&[&args[..], &["--all"]].concat());
    let standings = ["referred", "only-like-driver", "only-like-driver", "outside"];
    assert_eq!([1, 5, 6, 7].map(|n| standing(&said, n)), standings, "{said:#}");
    assert_eq!(said["suspect_bytes"], 2 * MIB, "{said:#}");
    let text = dir.gpumem(&args).out;
    assert!(text.contains("only the driver seems to refer to it") && !text.contains("no reference seen"), "{text}");
}

/// Memory that was not read may hold any address. So no allocation is called lost, and a gate neither passes nor fails.
#[test]
fn where_something_could_not_be_read_it_is_not_known() {
    for (facts, why) in [
        (&[("host_incomplete", "there was no time to read all of it")][..], "not all host memory was read: there was"),
        (&[("device_incomplete", "a stream was being captured all the time")], "a stream was being captured"),
        (&[("host_incomplete", "gpumem's own memory is in more pieces than are told apart")], "more pieces than"),
        (&[("graphs_unread", "1")], "1 graph could not be read"),
    ] {
        let facts: &'static [(&str, &str)] = Box::leak(facts.to_vec().into_boxed_slice());
        let dir = dir();
        let _asked = serve(&dir, |_| Some(found(facts).text()));
        let args = ["leaks", "--suspect", "--older", "0", "--pause", "0"];
        let said = dir.json(&[&args[..], &["--all"]].concat());
        let standings = ["referred", "unknown", "unknown", "outside"];
        assert_eq!([1, 5, 6, 7].map(|n| standing(&said, n)), standings, "{facts:?}");
        assert_eq!((&said["suspect_bytes"], &said["unknown_bytes"]), (&0.into(), &(2 * MIB).into()), "{facts:?}");
        assert!(said["not_known"].as_str().is_some_and(|said| said.contains(why)), "{said:#}");
        let shown = dir.gpumem(&args);
        assert_eq!(shown.code, 0, "{facts:?}: {}", shown.err);
        assert!(shown.out.contains("no allocation is called lost"), "{facts:?}: {}", shown.out);
        let not_known = "not known: no reference to 2 allocations (2.0 MiB) was found in what was read";
        assert!(shown.out.contains(not_known) && !shown.out.contains("no suspect"), "{facts:?}: {}", shown.out);
        assert!(!shown.out.contains("no reference seen"), "{facts:?}: {}", shown.out);
        let gate = dir.gpumem(&[&args[..], &["--fail-over", "1GiB"]].concat());
        assert_eq!(gate.code, 1, "{facts:?}: {}", gate.out);
        assert!(
            gate.err.contains("not known whether more than 1.0 GiB are suspect: ") && gate.err.contains(why),
            "{}",
            gate.err
        );
    }
}

/// "No suspect" is said of what was judged.
#[test]
fn what_was_not_judged_is_not_called_typical() {
    let dir = dir();
    let _asked = serve(&dir, |_| Some(found(&[]).text()));
    let young = dir.gpumem(&["leaks", "--suspect", "--older", "100000000", "--pause", "0"]);
    assert!(
        young.out.contains("no allocation could be judged; 6 too young to judge (--older sets the age)"),
        "{}{}",
        young.out,
        young.err
    );
}

/// Allocations whose records were dropped for want of room are neither looked for nor read.
#[test]
fn allocations_without_a_record_are_told() {
    let dir = dir();
    let _asked = {
        let mut ledger = ledger();
        let mut words = vec![0; counters::PER_SHARD];
        words[counters::DROPPED_RECORDS] = 3;
        words[counters::allocs(AllocKind::Device)] = 10;
        ledger.words(TableKind::Counters, &words);
        serve_of(&dir, ledger, |_| Some(found(&[]).text()))
    };
    let args = ["leaks", "--suspect", "--older", "0", "--pause", "0"];
    let said = dir.json(&args);
    assert_eq!((standing(&said, 5).as_str(), &said["all_was_read"]), ("none-seen", &Value::Bool(false)), "{said:#}");
    let text = dir.gpumem(&args).out;
    assert!(
        text.contains("3 allocations without a record") && text.contains("no reference seen in what was read"),
        "{text}"
    );
}

/// On a narrow terminal the words are shorter, and say the same: the weaker ones stay the weaker ones.
#[test]
fn how_sure_it_is_stands_on_narrow_terminals_too() {
    type Facts = &'static [(&'static str, &'static str)];
    const PARTLY: Facts = &[("device_wanted", "7"), ("device_allocs", "5")];
    const CUT: Facts = &[("host_incomplete", "there was no time to read all of it")];
    let cases: [(Facts, &[&str]); 3] = [
        (&[], &["none seen", "from suspects"]),
        (PARTLY, &["none where read", "from suspects"]),
        (CUT, &["not known"]),
    ];
    for (facts, words) in cases {
        let dir = dir();
        let _asked = serve_of(&dir, ledger_of(1023 * MIB + MIB / 2), |_| Some(found(facts).text()));
        for columns in [60, 80, 100, 109] {
            let lines =
                terminal::lines(&dir, columns, &["leaks", "--suspect", "--all", "--older", "0", "--pause", "0"]);
            let text = lines.join("\n");
            for word in words {
                assert!(lines.iter().filter(|line| line.contains(word)).count() >= 1, "{word} at {columns}:\n{text}");
            }
            let is_row = |line: &&String| line.contains("GiB") && !line.starts_with("searched");
            for line in lines.iter().filter(is_row) {
                let width = unicode_width::UnicodeWidthStr::width(line.as_str());
                assert!(width <= usize::from(columns), "at {columns}:\n{text}");
            }
        }
    }
}

/// Kinds of device memory that are never read may hold the only reference: the words are weaker then.
#[test]
fn where_some_is_never_read_the_words_are_weaker() {
    let facts = &[("device_wanted", "7"), ("device_allocs", "5"), ("device_gone", "1")];
    let (said, text, code) = with(facts, &["--fail-over", "0"]);
    assert_eq!((standing(&said, 5).as_str(), code), ("none-seen", 3));
    assert_eq!(said["all_was_read"], false);
    assert!(text.contains("no reference seen in what was read"), "{text}");
    assert!(text.contains("the device memory of 1 allocation lies outside gpumem's pool"), "{text}");
    // What went meanwhile refers to nothing any more.
    let gone = &[("device_wanted", "7"), ("device_allocs", "5"), ("device_gone", "2")];
    let (said, text, _) = with(gone, &[]);
    assert!(said["all_was_read"] == true && text.contains("no reference seen in two scans"), "{text}");
}

/// `--timeout` is the whole command's, whatever the process does: both looks and the pause between them.
#[test]
fn the_time_is_that_of_the_whole_command() {
    const LONGEST: u64 = 2000;
    // The first look takes its time, and to the second there is no answer.
    let dir = dir();
    let looks = std::sync::atomic::AtomicU64::new(0);
    let asked = serve(&dir, move |longest| {
        if looks.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 1 {
            return None;
        }
        std::thread::sleep(Duration::from_millis(longest));
        Some(found(&[]).text())
    });
    let begin = Instant::now();
    let got = dir.gpumem(&["leaks", "--suspect", "--timeout", "2s"]);
    let took = begin.elapsed();
    assert_eq!(got.code, 1, "{}", got.out);
    assert!(got.err.contains("did not answer"), "{}", got.err);
    // Once two looks could take 2 s each, and 5 s more, beside a pause of 3 s.
    assert!(took < Duration::from_millis(4 * LONGEST), "{took:?}");
    let given: Vec<u64> = asked.try_iter().collect();
    assert!(given.len() == 2 && given.iter().sum::<u64>() < LONGEST, "{given:?}");
    // Both have some of it.
    assert!(given.iter().all(|&longest| longest > LONGEST / 10), "{given:?}");
}
