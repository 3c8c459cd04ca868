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

    /// As people read it.
    fn text(&self, command: &str) -> String {
        let mut gpumem = std::process::Command::new(&gpumem_tests::harness::artifacts().gpumem);
        gpumem.args([command, &self.0.pid().to_string()]).env("GPUMEM_DIR", &self.0.dir);
        String::from_utf8(gpumem.output().expect("gpumem runs").stdout).expect("text").replace("\n  ", " ")
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
        for text in [graphs.text("leaks"), graphs.text("stats")] {
            assert!(text.contains(line), "{text}");
        }
        let listed = graphs.0.gpumem(&["allocs", &graphs.0.pid().to_string(), "--all", "--kind", "graph-node"]);
        let flags: Vec<&Value> = listed["rows"].as_array().unwrap().iter().map(|row| &row["flags"]).collect();
        assert_eq!((flags.len(), flags[0].to_string().contains("left-by-graph")), (3, true), "{listed:#}");
        // By either free, and also without the flag that frees with the next launch.
        assert_eq!(graphs.does("free").left(), (2, 32));
        assert_eq!(graphs.does("plain 4").left(), (3, 36));
        assert_eq!(graphs.does("async").left(), (2, 32));
        // Graph and exec go while it runs.
        assert_eq!(graphs.does("running 2").left(), (3, 34));
        // With the context all of it ends.
        assert_eq!(graphs.does("end").left(), (0, 0));
        let ran = graphs.0.finish().ok();
        assert_eq!(ran.violations(), [""; 0]);
        ran.ledger().sound().complete();
    }
}
