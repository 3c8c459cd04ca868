//! The page of `gpumem report`: what it says, and that nothing in it leads out of it.

mod common;

use common::growth::{dumped, leaking, mark};
use common::recorded::recorded_process;
use common::*;
use gpumem_wire::layout::*;
use serde_json::Value;
use std::path::Path;

/// The data that a page brings for its script.
fn data(page: &str) -> Value {
    let data = page.split("id=\"data\">").nth(1).expect("a page has data").split("</script>").next().unwrap();
    serde_json::from_str(data).expect("it is JSON")
}

/// The page of a ledger.
fn page(dir: &Dir, path: &Path) -> String {
    dir.ok(&["report", path.to_str().unwrap(), "-o", "-"])
}

/// A leak of two minutes with a mark, as a dump.
fn leak(dir: &Dir) -> std::path::PathBuf {
    let mut composer = leaking(gone(), 120);
    mark(&mut composer, 3, "warm", 60);
    let path = dir.path().join("leak.gpumem");
    std::fs::write(&path, dumped(composer).finish()).unwrap();
    path
}

#[test]
fn a_page_says_what_grew_over_time_by_stack_and_what_to_do() {
    let dir = dir();
    let path = leak(&dir);
    let page = page(&dir, &path);
    for said in [
        "grows steadily",
        "demo-server+0x201",
        "+60.0 MiB/min",
        "gpumem allocs",
        "demo-server --port 80",
        "GPUMEM_STACKS",
        "verdicts rest on ",
        "<summary>1 moment</summary>",
        "Made from a dump.",
    ] {
        assert!(page.contains(said), "{said} is missing");
    }
    let data = data(&page);
    let chart = |id: &str| data["charts"].as_array().unwrap().iter().find(|chart| chart["id"] == id).unwrap().clone();
    let sites = chart("site");
    let leak = &sites["rows"][0];
    assert!(leak["name"].as_str().unwrap().contains("demo-server+0x201"));
    let values: Vec<u64> = leak["values"].as_array().unwrap().iter().map(|value| value.as_u64().unwrap()).collect();
    assert!(values.is_sorted() && *values.last().unwrap() == 119 * MIB, "{values:?}");
    assert_eq!(chart("tag")["rows"][0]["name"], "cache");
    assert_eq!((&data["moments"][0]["kind"], &data["moments"][0]["text"]), (&"mark".into(), &"warm".into()));
    // The leak, which came after the first sample, and the weights, which did not grow.
    let stacks = data["flame"]["stacks"].as_array().unwrap();
    let weight = |what: &str| stacks.iter().map(|stack| stack[what].as_u64().unwrap()).collect::<Vec<_>>();
    assert_eq!(weight("live"), [120 * MIB, 64 * MIB]);
    assert_eq!(weight("growth"), [120 * MIB, 0]);
    // What the ledger says was ever allocated there.
    assert_eq!(weight("churn"), [240 * MIB, MIB]);
}

#[test]
fn json_has_what_the_page_shows() {
    let dir = dir();
    let path = leak(&dir);
    let report = dir.json(&["report", path.to_str().unwrap()]);
    let shown = data(&page(&dir, &path));
    for part in ["charts", "moments", "flame"] {
        assert_eq!(report[part], shown[part], "{part}");
    }
    assert_eq!(report["source"]["kind"], "dump");
    assert_eq!(report["holders"][0]["verdict"], "grows steadily");
    assert!(report["findings"].as_array().unwrap().iter().any(|finding| finding["id"] == "growth"));
}

/// The page shows a program's tags and sites as text and does nothing else with them, whatever their names are.
#[test]
fn text_of_the_program_is_text() {
    let dir = dir();
    let mut composer = leaking(gone(), 60);
    let evil = "</script><img src=http://x.test/a onerror=alert(1)><!--";
    mark(&mut composer, 3, evil, 10);
    let tag = composer.text(evil);
    composer.header.cmdline = tag;
    composer.slots([AllocSlot { tag, bytes: MIB, kind: 1, addr: 1, ..Default::default() }]);
    let path = dir.path().join("evil.gpumem");
    std::fs::write(&path, dumped(composer).finish()).unwrap();
    let page = page(&dir, &path);
    assert!(!page.contains("<img") && !page.contains("<!--"));
    assert_eq!(data(&page)["moments"][0]["text"], evil);
    let scripts = page.matches("<script").count();
    assert_eq!(scripts, page.matches("</script>").count());
    assert_eq!(scripts, page.matches("<script nonce=").count() + 1, "one more than those of the page itself");
}

#[test]
fn a_page_loads_nothing() {
    let dir = dir();
    let page = page(&dir, &leak(&dir));
    assert!(page.contains("default-src 'none'"));
    // The one address is a name that no browser loads.
    let rest = page.replace("http://www.w3.org/2000/svg", "");
    for way in
        ["http:", "https:", "//cdn", "url(", "@import", " src=", "<link", "<iframe", "fetch(", "XMLHttp", "import("]
    {
        assert!(!rest.contains(way), "{way}");
    }
}

#[test]
fn without_samples_it_says_so() {
    let dir = dir();
    let path = dir.put(gone(), begin(gone()));
    let page = page(&dir, &path);
    assert!(page.contains("There is no timeline") && page.contains("No memory was allocated."), "{page}");
}

#[test]
fn a_page_lands_in_a_file_of_the_process() {
    let dir = dir();
    let path = leak(&dir);
    let mut command = gpumem();
    command.current_dir(dir.path()).arg("report").arg(&path);
    let said = answer(command);
    assert_eq!(said.code, 0, "{}", said.err);
    let name = said.out.strip_prefix("wrote ").and_then(|rest| rest.split(' ').next()).unwrap();
    assert!(name.starts_with("gpumem-") && name.ends_with(".html"), "{}", said.out);
    assert!(std::fs::read_to_string(dir.path().join(name)).unwrap().starts_with("<!DOCTYPE html>"));
}

/// If another view is asked for a recording, the answer names the view that reads it.
#[test]
fn a_recording_is_no_ledger() {
    let dir = dir();
    let path = dir.path().join("r.rec.gz");
    let mut file = flate2::write::GzEncoder::new(std::fs::File::create(&path).unwrap(), flate2::Compression::fast());
    std::io::Write::write_all(&mut file, b"{\"gpumem_recording\":{\"version\":1}}\n").unwrap();
    file.finish().unwrap();
    let path = path.to_str().unwrap();
    let answer = dir.gpumem(&["allocs", path]);
    assert!(answer.code == 1 && answer.err.contains("gpumem report reads"), "{}", answer.err);
    // This one is cut before its first look.
    let answer = dir.gpumem(&["report", path]);
    assert!(answer.code == 1 && answer.err.contains("is no recording"), "{}", answer.err);
    let answer = dir.gpumem(&["report", "/dev/null"]);
    assert_eq!(answer.code, 1, "{}", answer.err);
}

/// Processes of one run are on one page: the largest whole, the others as rows. What is beside them by chance is not.
#[test]
fn processes_that_were_recorded_together_are_on_one_page() {
    let dir = dir();
    let first = recorded_process(&dir, "r.rec.gz", 100, MIB, 7);
    for pid in 101..140 {
        recorded_process(&dir, &format!("r.rec.{pid}.gz"), pid, pid * MIB, 7);
    }
    recorded_process(&dir, "r.rec.140.gz", 140, 999 * MIB, 8);
    recorded_process(&dir, "r.rec.141.gz", 141, 999 * MIB, 0);
    recorded_process(&dir, "r.rec.x.gz", 142, 999 * MIB, 7);
    std::fs::write(dir.path().join("r.rec.143.gz"), "no recording").unwrap();
    let report = dir.json(&["report", first.to_str().unwrap()]);
    assert_eq!((&report["process"]["pid"], &report["recorded_command"]), (&100.into(), &"torchrun <i>train.py".into()));
    let processes = report["processes"].as_array().unwrap();
    assert_eq!(processes.len(), 40);
    let with_report = |pid: u64| processes.iter().find(|process| process["pid"] == pid).unwrap()["report"].as_u64();
    assert_eq!(
        (with_report(100), with_report(139), with_report(125), with_report(124)),
        (Some(0), Some(1), Some(15), None)
    );
    assert_eq!(report["others"].as_array().unwrap().len(), 15);
    assert_eq!(report["others"][14]["process"]["pid"], 125);
    let chart = &report["card_charts"][0];
    let at = |time: usize| {
        chart["rows"].as_array().unwrap().iter().map(|row| row["values"][time].as_u64().unwrap()).sum::<u64>()
    };
    let highest = (0..chart["times"].as_array().unwrap().len()).map(at).max();
    assert_eq!(highest, Some(MIB + (101..140).map(|pid| pid * MIB).sum::<u64>()), "all at once");
    let page = page(&dir, &first);
    for said in ["torchrun &lt;i&gt;train.py", "40 processes", "torchrun (9)", "The 24 processes with the lowest peaks"]
    {
        assert!(page.contains(said), "{said} is missing");
    }
    assert!(!page.contains("<b>rank") && !page.contains("<i>train"));
    assert_eq!(page.matches("<details class=\"process\"").count(), 16);
    assert_eq!(data(&page)["parts"].as_object().unwrap().len(), 16);

    // Another one of them is the page of that process alone, as is one that has no others.
    let alone = dir.json(&["report", dir.path().join("r.rec.139.gz").to_str().unwrap()]);
    assert!(alone.get("processes").is_none() && alone["process"]["pid"] == 139);
    let alone = recorded_process(&dir, "alone.gz", 100, MIB, 9);
    assert!(dir.json(&["report", alone.to_str().unwrap()]).get("processes").is_none());
}

/// The ledger of a process that holds so many allocations, each with a tag that cannot be packed into less.
fn tagged(id: gpumem_wire::place::ProcessId, allocs: u64) -> gpumem_inspector::compose::Composer {
    let mut composer = begin(id);
    let mut random = 1_u64;
    let mut word = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        format!("{:08x}", random >> 32)
    };
    let tags: Vec<_> = (0..allocs).map(|_| composer.text(&(0..32).map(|_| word()).collect::<String>())).collect();
    let alloc = |(serial, tag)| AllocSlot {
        tag,
        addr: 0x7000_0000_0000 + serial * 0x100_0000,
        bytes: 2 * MIB,
        time_ns: 1,
        serial,
        tid: id.pid,
        context: 1,
        kind: gpumem_wire::kinds::AllocKind::Device as u8,
        ..Default::default()
    };
    composer.slots((1..).zip(tags).map(alloc));
    composer
}

/// Beyond half of its bound the file becomes the older part, in place of the one before: two parts, in bounds, each of
/// which says everything anew, and a report of both.
#[test]
fn a_recording_keeps_to_its_bound_in_two_parts() {
    let (dir, process) = (dir(), Sleeper::start());
    let put = |allocs: u64| {
        let new = dir.path().join("new");
        std::fs::write(&new, tagged(process.id(), allocs).finish()).unwrap();
        // As a whole: a reader is never in the middle of it.
        std::fs::rename(&new, dir.path().join(process.id().ledger_name())).unwrap();
    };
    // One look fills a part.
    put(1700);
    let (file, older) = (dir.path().join("r.rec.gz"), dir.path().join("r.rec.gz.1"));
    let mut recorder = gpumem();
    recorder.env("GPUMEM_DIR", dir.path()).args(["record", "-d", "0.05", "--max-size", "1MiB", "-o"]).arg(&file);
    let mut recorder = recorder.arg(process.id().pid.to_string()).stderr(std::process::Stdio::null()).spawn().unwrap();
    for wait in 0.. {
        if older.exists() {
            break;
        }
        assert!(recorder.try_wait().unwrap().is_none() && wait < 20_000, "there is no second part");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    // The second part is as full, and the look that the end brings begins the third.
    put(3);
    // SAFETY: kill takes two numbers, and the child was not waited for yet.
    assert_eq!(unsafe { libc::kill(recorder.id() as i32, libc::SIGINT) }, 0);
    assert!(recorder.wait().unwrap().success());
    let names = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| name.starts_with("r.")).collect();
    names.sort();
    assert_eq!(names, ["r.rec.gz", "r.rec.gz.1"]);
    let bytes = [&older, &file].map(|path| std::fs::metadata(path).unwrap().len());
    assert!(bytes[0] >= MIB / 2 && bytes[0] + bytes[1] <= MIB, "{bytes:?}");
    let part = |path: &Path| {
        let mut text = String::new();
        let mut file = flate2::read::MultiGzDecoder::new(std::fs::File::open(path).unwrap());
        std::io::Read::read_to_string(&mut file, &mut text).unwrap();
        let first: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        first.to_string().split("\"part\":").nth(1).unwrap().split([',', '}']).next().unwrap().parse::<u64>().unwrap()
    };
    assert_eq!((part(&older), part(&file)), (1, 2), "the first one has gone");
    let report = dir.json(&["report", file.to_str().unwrap()]);
    assert!(report["source"]["timeline"].as_str().unwrap().contains("it was stopped"), "{}", report["source"]);
    let times = |report: &Value| report["charts"][0]["times"].as_array().map_or(0, Vec::len);
    let alone = dir.json(&["report", older.to_str().unwrap()]);
    assert!(times(&report) > times(&alone), "{} and {}", times(&report), times(&alone));
}
