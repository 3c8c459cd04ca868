//! Memory that launches of graphs allocated outlives graph and exec, and is told until it is freed.

use gpumem_tests::harness::client;
use gpumem_tests::harness::run::{Running, wait_for};
use serde_json::Value;

const MIB: u64 = 1 << 20;

struct Graphs(Running);

impl Graphs {
    fn start(settings: &[(&str, &str)]) -> Self {
        let running = client("graph_leaves").envs(settings).waits().start(true);
        running.says("ready");
        Self(running)
    }

    fn does(&mut self, line: &str) -> &mut Self {
        let done = self.0.stdout().matches(" done").count();
        self.0.tell(line);
        wait_for(line, || self.0.stdout().matches(" done").count() > done);
        self
    }

    /// (blocks, MiB) that are left, by what `leaks` and `stats` both say.
    #[track_caller]
    fn left(&self) -> (u64, u64) {
        let pid = self.0.pid().to_string();
        let [leaks, stats] = ["leaks", "stats"].map(|command| self.0.gpumem(&[command, &pid])["left_by_graphs"].take());
        assert_eq!(leaks, stats);
        let rows = leaks.as_array().cloned().unwrap_or_default();
        let sum = |field: &str| rows.iter().filter_map(|row| row[field].as_u64()).sum::<u64>();
        (sum("live"), sum("bytes") / MIB)
    }

    /// Checks that every view counts the same blocks and MiB as live device memory. The program holds no other.
    #[track_caller]
    fn in_all_views(&self, live: u64, mib: u64) {
        let pid = self.0.pid().to_string();
        let of = |args: &[&str]| self.0.gpumem(&[&args[..1], &[pid.as_str()], &args[1..]].concat());
        let stats = of(&["stats"]);
        let (device, allocs) = (&stats["devices"][0], of(&["allocs", "--by", "kind"]));
        let of_kind = |rows: &Value, field: &str| -> u64 {
            let row = rows.as_array().into_iter().flatten().find(|row| row["key"] == "graph-left");
            row.and_then(|row| row[field].as_u64()).unwrap_or(0)
        };
        let said = [
            ("stats", stats["live"]["device"].as_u64()),
            ("stats, device", device["tracked_bytes"].as_u64()),
            ("allocs", allocs["bytes"].as_u64()),
            ("allocs by kind", Some(of_kind(&allocs["rows"], "bytes"))),
            ("ps", self.0.gpumem(&["ps"])["processes"][0]["live"]["device"].as_u64()),
            (
                "leaks",
                of(&["leaks"])["suspects"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .filter(|row| row["kind"] == "site")
                    .map(|row| row["bytes"].as_u64())
                    .sum(),
            ),
        ];
        for (view, bytes) in said {
            assert_eq!(bytes, Some(mib * MIB), "{view}: {stats:#}");
        }
        assert_eq!((stats["live"]["count"].as_u64(), of_kind(&allocs["rows"], "live")), (Some(live), live));
        let export = self.text(&["export", "--format", "prometheus"]);
        let of_device = |line: &&str| line.starts_with("gpumem_device_tracked_bytes");
        let line = export.lines().find(of_device).expect("a line");
        assert!(line.ends_with(&format!(" {}", mib * MIB)), "{line}");
    }

    /// A command about the program.
    fn command(&self, args: &[&str]) -> std::process::Command {
        let mut gpumem = std::process::Command::new(&gpumem_tests::harness::artifacts().gpumem);
        gpumem.args(args).arg(self.0.pid().to_string()).env("GPUMEM_DIR", &self.0.dir);
        gpumem
    }

    /// As people read it.
    fn text(&self, args: &[&str]) -> String {
        String::from_utf8(self.command(args).output().expect("gpumem runs").stdout).expect("text").replace("\n  ", " ")
    }
}

const SETTINGS: &[&[(&str, &str)]] = &[&[], &[("GPUMEM_GRAPH_CACHE", "0")], &[("GPUMEM_RECORD_ONLY", "1")]];

#[test]
fn what_launches_left_is_told_until_it_is_freed() {
    for settings in SETTINGS {
        let mut graphs = Graphs::start(settings);
        for what in ["never 8", "freeing 8", "outside 8"] {
            assert_eq!(graphs.does(what).left(), (0, 0), "{what}");
        }
        for round in 1..=3 {
            assert_eq!(graphs.does("auto 16").left(), (round, 16 * round));
        }
        let line = "left: 16.0 MiB 3 times, 48.0 MiB in all, allocated by graphs whose execs are gone, at scratch graph_leaves.c:";
        for text in [graphs.text(&["leaks"]), graphs.text(&["stats"])] {
            assert!(text.contains(line), "{text}");
        }
        graphs.in_all_views(3, 48);
        // By either free, and also without the flag that frees with the next launch.
        assert_eq!(graphs.does("free").left(), (2, 32));
        graphs.in_all_views(2, 32);
        assert_eq!(graphs.does("plain 4").left(), (3, 36));
        assert_eq!(graphs.does("async").left(), (2, 32));
        // Graph and exec go while it runs.
        assert_eq!(graphs.does("running 2").left(), (3, 34));
        // With the context all of it ends.
        assert_eq!(graphs.does("end").left(), (0, 0));
        graphs.in_all_views(0, 0);
        let ran = graphs.0.finish().ok();
        assert_eq!(ran.violations(), [""; 0]);
        ran.ledger().sound().complete();
    }
}

/// A program that captures an allocation without its free, again and again: the call site of the allocation grows, and a
/// gate does not pass.
#[test]
fn a_call_site_whose_graphs_leave_memory_grows() {
    let mut graphs = Graphs::start(&[("GPUMEM_GROWTH_INTERVAL", "20ms")]);
    let began = std::time::Instant::now();
    // Growth that has just paused is too little to judge, so both are asked for beside growth.
    loop {
        assert!(began.elapsed().as_secs() < 60, "{}", graphs.text(&["leaks"]));
        for _ in 0..20 {
            graphs.does("plain 1");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let gate = graphs.command(&["leaks", "--json", "--fail-over", "1MiB"]).output().expect("gpumem runs");
        if gate.status.code() == Some(3) {
            let said: Value = serde_json::from_slice(&gate.stdout).expect("JSON");
            let row = &said["suspects"][0];
            let known = [&row["kind"], &row["verdict"], &row["freed_share"]];
            assert_eq!(known, [&"site".into(), &"grows-steadily".into(), &Value::from(0.0)], "{row:#}");
            assert!(row["key"].to_string().contains("scratch graph_leaves.c"), "{row:#}");
            assert!(row["next"].to_string().contains("cudaFreeAsync"), "{row:#}");
            break;
        }
    }
    graphs.0.finish().ok();
}
