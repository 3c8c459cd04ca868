//! Exports for other tools hold what the views show. Each format is read as its reader reads it.

mod common;
use common::pprof::Profile;
use common::skipped::installed;
use common::*;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

/// A directory with one running process, this test; the file that an export of it wrote.
fn exported(name: &str) -> Vec<u8> {
    let dir = dir();
    dir.put(me(), demo(me()));
    let file = dir.path().join(name);
    let said = dir.ok(&["export", "-o", file.to_str().unwrap()]);
    assert!(said.starts_with("wrote ") && said.contains(name), "{said}");
    std::fs::read(&file).unwrap()
}

/// Live bytes of kinds that take memory: what `ps` says of the same process.
const LIVE: u64 = (96 + 16) * MIB;

#[test]
fn folded_stacks_add_up() {
    let text = String::from_utf8(exported("a.folded")).unwrap();
    let lines: Vec<(&str, u64)> =
        text.lines().map(|line| line.rsplit_once(' ').unwrap()).map(|(steps, n)| (steps, n.parse().unwrap())).collect();
    assert_eq!(lines.iter().map(|(_, bytes)| bytes).sum::<u64>(), LIVE);
    assert!(lines.is_sorted_by(|a, b| a.1 >= b.1), "{text}");
    assert!(lines.iter().all(|(steps, _)| steps.split(';').count() >= 2), "{text}");
    assert!(lines.iter().any(|(steps, _)| steps.starts_with("device;")), "{text}");
    assert!(lines.iter().any(|(steps, _)| steps.starts_with("host-pinned;")), "{text}");
}

/// As inferno draws them: everything that is live, and each step as wide as what it holds.
#[test]
fn folded_stacks_are_what_inferno_draws() {
    let Some(inferno) = installed("inferno-flamegraph") else { return };
    let folded = exported("a.folded");
    let dir = dir();
    let (path, picture) = (dir.path().join("a.folded"), dir.path().join("a.svg"));
    std::fs::write(&path, &folded).unwrap();
    let mut draw = std::process::Command::new(inferno);
    draw.args(["--countname", "bytes", "--minwidth", "0"]).arg(&path).stdout(std::fs::File::create(&picture).unwrap());
    let answer = draw.output().unwrap();
    let said = String::from_utf8_lossy(&answer.stderr);
    // It warns of lines that it does not take.
    assert!(answer.status.success() && said.is_empty(), "{said}");
    let picture = std::fs::read_to_string(picture).unwrap();
    let titles: Vec<&str> = picture.split("<title>").skip(1).filter_map(|rest| rest.split('<').next()).collect();
    let grouped = |n: u64| format!("{},{:03},{:03} bytes", n / 1_000_000, n / 1000 % 1000, n % 1000);
    assert!(titles.contains(&&*format!("all ({}, 100%)", grouped(LIVE))), "{titles:?}");
    for line in String::from_utf8(folded).unwrap().lines() {
        let (steps, _) = line.rsplit_once(' ').unwrap();
        for step in steps.split(';') {
            assert!(titles.iter().any(|title| title.starts_with(&format!("{step} ("))), "{step}: {titles:?}");
        }
    }
}

#[test]
fn speedscope_files_add_up() {
    let file: Value = serde_json::from_slice(&exported("a.speedscope.json")).unwrap();
    assert_eq!(file["$schema"], "https://www.speedscope.app/file-format-schema.json");
    let frames = file["shared"]["frames"].as_array().unwrap().len() as u64;
    let ends: Vec<_> = file["profiles"].as_array().unwrap().iter().map(|profile| &profile["endValue"]).collect();
    assert_eq!(ends, [&json!(LIVE), &json!(3)]);
    for profile in file["profiles"].as_array().unwrap() {
        let (samples, weights) = (profile["samples"].as_array().unwrap(), profile["weights"].as_array().unwrap());
        assert_eq!(samples.len(), weights.len());
        assert_eq!(weights.iter().map(|weight| weight.as_u64().unwrap()).sum::<u64>(), profile["endValue"]);
        let steps = samples.iter().flat_map(|sample| sample.as_array().unwrap());
        assert!(steps.map(|step| step.as_u64().unwrap()).all(|step| step < frames), "{file}");
    }
}

#[test]
fn pprof_profiles_add_up() {
    let profile = Profile::read(&exported("a.pb.gz"));
    assert_eq!(
        profile.types,
        ["alloc_objects count", "alloc_space bytes", "inuse_objects count", "inuse_space bytes", "space bytes"]
    );
    let sums = profile.sums();
    assert_eq!((sums[2], sums[3]), (3, LIVE));
    assert!(sums[0] >= sums[2] && sums[1] > 0, "{sums:?}");
}

#[test]
fn snapshots_are_read_as_pytorchs_own_are() {
    let bytes = exported("a.pickle");
    let value: serde_json::Value = serde_pickle::from_slice(&bytes, serde_pickle::DeOptions::new()).unwrap();
    let segments = value["segments"].as_array().unwrap();
    assert_eq!(segments.iter().map(|segment| segment["total_size"].as_u64().unwrap()).sum::<u64>(), 96 * MIB);
    for segment in segments {
        let block = &segment["blocks"][0];
        assert_eq!((&block["state"], &block["size"]), (&json!("active_allocated"), &segment["total_size"]));
        assert!(block["frames"].as_array().unwrap().iter().all(|frame| frame["name"].is_string()), "{segment}");
    }
    let events = value["device_traces"][0].as_array().unwrap();
    assert_eq!(events.len(), segments.len());
    assert!(events.is_sorted_by(|a, b| a["time_us"].as_u64() <= b["time_us"].as_u64()), "{value}");
}

/// The opcodes that the file has, of those that the reader of <https://pytorch.org/memory_viz> knows and we write: each
/// with how many bytes follow it.
#[test]
fn snapshots_are_what_memory_viz_can_unpickle() {
    let bytes = exported("a.pickle");
    let long = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    assert!(bytes[0] == 0x80 && (2..=4).contains(&bytes[1]), "a protocol that it reads: {:?}", &bytes[..2]);
    let (mut at, mut deep) = (2, 0_i64);
    loop {
        let opcode = bytes[at];
        at += 1;
        match opcode {
            b'.' => break,
            b'(' => deep += 1,
            // A tuple, items of a dictionary, items of a list: what was put since the mark.
            b't' | b'u' | b'e' => deep -= 1,
            // An empty dictionary and list, true, false, none.
            b'}' | b']' | 0x88 | 0x89 | b'N' => {}
            b'X' => at += 4 + long(at),
            b'J' => at += 4,
            b'K' => at += 1,
            b'M' => at += 2,
            // It makes a number of a long of up to eight bytes, and a BigInt, with which it cannot reckon, of others.
            0x8a => {
                assert!(bytes[at] <= 8, "a long of {} bytes at {at}", bytes[at]);
                at += 1 + usize::from(bytes[at]);
            }
            other => panic!("opcode {other:#x} at {at}"),
        }
    }
    assert_eq!((at, deep), (bytes.len(), 0));
}

#[test]
fn timelines_hold_samples_and_events() {
    let trace: Value = serde_json::from_slice(&exported("a.trace.json")).unwrap();
    let entries = trace["traceEvents"].as_array().unwrap();
    let of = |kind: &str| entries.iter().filter(|entry| entry["ph"] == kind).collect::<Vec<_>>();
    assert_eq!(of("M")[0]["args"]["name"], "demo-server");
    let live = of("C").into_iter().rfind(|entry| entry["name"] == "device_live_bytes").unwrap();
    assert!(live["args"]["value"].is_u64() && live["ts"].as_f64().unwrap() > 0.0, "{live}");
    assert!(of("i").iter().all(|event| event["s"] == "p" && event["name"].is_string()), "{trace}");
}

#[test]
fn lines_of_json_hold_every_allocation() {
    let text = String::from_utf8(exported("a.jsonl")).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 4);
    assert!(lines.iter().all(|line| line["bytes"].is_u64() && line["site"].is_string()), "{text}");
}

#[test]
fn a_format_has_to_be_named() {
    let dir = dir();
    dir.put(me(), demo(me()));
    for (args, words, code) in [
        (
            &["export", "-o", "/tmp/x.unknown"][..],
            "the ending of /tmp/x.unknown names no format; known are .speedscope.json",
            1,
        ),
        (&["export", "-o", "-"], "no file is named, and no format; known are .speedscope.json", 2),
    ] {
        let answer = dir.gpumem(args);
        assert_eq!(answer.code, code, "{args:?}");
        assert!(answer.err.contains(words) && answer.err.contains("--to"), "{}", answer.err);
    }
    assert!(!Path::new("/tmp/x.unknown").exists());
    // What is named wins over the ending.
    let odd = dir.path().join("stacks.json");
    dir.ok(&["export", "--to", "folded", "-o", odd.to_str().unwrap()]);
    assert!(std::fs::read_to_string(odd).unwrap().contains("device;"));
}

/// A collector of metrics is another user. What else is exported has paths and command lines.
#[test]
fn metrics_may_be_read_by_others() {
    use std::os::unix::fs::PermissionsExt;
    let dir = dir();
    dir.put(me(), demo(me()));
    for (name, mode) in [("a.prom", 0o644), ("a.json", 0o600)] {
        let file = dir.path().join(name);
        let mut command = Command::new("sh");
        command.args(["-c", "umask 022; exec \"$0\" export -o \"$1\"", env!("CARGO_BIN_EXE_gpumem")]).arg(&file);
        assert!(command.env("GPUMEM_DIR", dir.path()).status().unwrap().success());
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, mode, "{name}");
    }
}
