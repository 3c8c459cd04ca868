//! Memory that two processes share: what one has freed and the other has open is told in both, and goes with the last of it.

use gpumem_tests::harness::client;
use gpumem_tests::harness::run::{Running, Scratch, wait_for};
use serde_json::{Value, json};
use std::path::Path;

const MIB: u64 = 1 << 20;

struct Sharer(Running);

impl Sharer {
    fn start(dir: &Path, settings: &[(&str, &str)]) -> Self {
        let running = client("shares").dir(dir).envs(settings).waits().start(true);
        running.says("ready");
        Self(running)
    }

    /// Has it do something, and waits for its answer. Answers are counted, since words come again.
    fn does(&mut self, line: &str) -> &mut Self {
        let (word, done) = (line.split(' ').next().unwrap(), self.0.stdout().matches(" done").count());
        self.0.tell(line);
        wait_for(line, || self.0.stdout().matches(" done").count() > done);
        assert!(self.0.stdout().lines().last().unwrap().starts_with(word));
        self
    }

    /// The handle that it exports.
    fn exports(&mut self) -> String {
        self.does("export").0.stdout().lines().last().unwrap().split(' ').nth(1).unwrap().to_owned()
    }

    fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// Returns the answer of a command about it.
    fn says(&self, command: &str) -> Value {
        self.0.gpumem(&[command, &self.pid().to_string()])
    }

    /// Returns the memory that it shares, as both `leaks` and `stats` report it.
    #[track_caller]
    fn shares(&self) -> Value {
        let [leaks, stats] = ["leaks", "stats"].map(|command| self.says(command)["sharing"].take());
        assert_eq!(leaks, stats);
        leaks
    }

    /// As people read it.
    fn text(&self, args: &[&str]) -> String {
        let mut command = std::process::Command::new(&gpumem_tests::harness::artifacts().gpumem);
        command.args(args).arg(self.pid().to_string()).env("GPUMEM_DIR", &self.0.dir);
        String::from_utf8(command.output().expect("gpumem runs").stdout).expect("text").replace("\n  ", " ")
    }

    /// The findings of `doctor` about it.
    fn doctor(&self) -> Vec<Value> {
        let said = self.says("doctor");
        said["findings"].as_array().unwrap().iter().filter(|row| row["id"] == "shared").cloned().collect()
    }
}

/// Settings under which memory of the program's is the driver's own, or a block of the pool.
const SETTINGS: &[&[(&str, &str)]] = &[&[], &[("GPUMEM_POOL", "0")], &[("GPUMEM_RECORD_ONLY", "1")]];

#[test]
fn what_is_freed_here_and_open_elsewhere_is_told_in_both_processes() {
    for settings in SETTINGS {
        let dir = Scratch::new();
        let (mut of, mut to) = (Sharer::start(dir.path(), settings), Sharer::start(dir.path(), &[]));
        let handle = of.does("make 64").exports();
        assert_eq!(of.exports(), handle, "twice is the same");
        assert_eq!(of.shares(), Value::Null, "nobody has it open");
        to.does(&format!("open {handle}"));
        let shared = of.shares();
        let row = &shared["exported"][0];
        assert_eq!((&row["bytes"], &row["live"], &row["freed"]), (&json!(64 * MIB), &json!(1), &json!(false)));
        assert!(!of.text(&["leaks"]).contains("shared:"), "it is live, and among what is live");
        assert_eq!(of.doctor()[0]["severity"], "ok");

        of.does("free");
        let shared = of.shares();
        assert_eq!(shared["exported"].as_array().map(Vec::len), Some(1), "{shared:#}");
        let row = &shared["exported"][0];
        assert_eq!((&row["bytes"], &row["freed"], &row["pid"]), (&json!(64 * MIB), &json!(true), &json!(to.pid())));
        assert!(row["site"].as_str().unwrap().starts_with("publish shares.c:"), "{row}");
        assert!(row["opened_at"].as_str().unwrap().starts_with("attach shares.c:"), "{row}");
        let line = format!("64.0 MiB freed, exported, still open in pid {} (shares), opened at attach", to.pid());
        for args in [&["leaks"][..], &["stats"], &["stats", "--all"], &["doctor"]] {
            assert!(of.text(args).contains(&line), "{args:?}: {}", of.text(args));
        }
        // If no process is named, both sides follow the table.
        let mut command = std::process::Command::new(&gpumem_tests::harness::artifacts().gpumem);
        let done = command.arg("leaks").env("GPUMEM_DIR", dir.path()).output().expect("gpumem runs");
        let said = String::from_utf8(done.stdout).expect("text");
        assert!(said.contains(&format!("shared: pid {} (shares): {line}", of.pid())), "{said}");
        assert_eq!((&of.doctor()[0]["severity"], &of.doctor()[0]["bytes"]), (&json!("warning"), &json!(64 * MIB)));

        // Its twin.
        let twin = to.shares();
        let row = &twin["imported"][0];
        assert_eq!((&row["bytes"], &row["freed"], &row["pid"]), (&json!(64 * MIB), &json!(true), &json!(of.pid())));
        let line = format!("64.0 MiB of pid {} (shares), which has freed it, opened at attach", of.pid());
        for args in [&["leaks"][..], &["stats"], &["doctor"]] {
            assert!(to.text(args).contains(&line), "{args:?}: {}", to.text(args));
        }
        if settings.is_empty() {
            let (ledger, half) = (std::fs::read(&of.0.ledger().path).unwrap(), &bytes(&handle)[..32]);
            assert!(!ledger.windows(32).any(|at| at == half), "who has the handle can open the memory");
        }

        // When it is closed the line goes, in both.
        to.does("close");
        assert_eq!((of.shares(), to.shares()), (Value::Null, Value::Null));
        assert_eq!(of.doctor()[0]["severity"], "ok");
        for one in [of, to] {
            one.0.finish().ok().ledger().sound().complete();
        }
    }
}

/// The bytes of a handle.
fn bytes(handle: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&handle[at..at + 2], 16).expect("a byte");
    (0..handle.len()).step_by(2).map(byte).collect()
}

/// Memory that is open twice stays open until it is closed twice, as the driver counts, or until the process ends.
#[test]
fn memory_stays_open_until_its_last_close_or_the_end_of_its_process() {
    let dir = Scratch::new();
    let (mut of, mut to) = (Sharer::start(dir.path(), &[]), Sharer::start(dir.path(), &[]));
    let handle = of.does("make 8").exports();
    to.does(&format!("open {handle}")).does(&format!("open {handle}"));
    of.does("free");
    let open = |of: &Sharer| of.shares()["exported"].as_array().map_or(0, Vec::len);
    assert_eq!(open(&of), 1, "opened twice, and one mapping");
    to.does("close");
    assert_eq!(open(&of), 1, "closed once of twice");
    to.does("close");
    assert_eq!(open(&of), 0);
    to.0.ledger().sound();

    let handle = of.does("make 8").exports();
    to.does(&format!("open {handle}"));
    of.does("free");
    assert_eq!(open(&of), 1);
    to.0.signal(libc::SIGKILL);
    wait_for("its end", || to.0.reap());
    assert_eq!(of.shares(), Value::Null, "who had it open is dead");
}

/// With its context all that a process has exported ends, and what it has open.
#[test]
fn a_context_that_ends_shares_nothing() {
    let dir = Scratch::new();
    let (mut of, mut to) = (Sharer::start(dir.path(), &[]), Sharer::start(dir.path(), &[]));
    let first = of.does("make 8").exports();
    to.does(&format!("open {first}"));
    of.does("free");
    assert_ne!(of.shares(), Value::Null);
    to.does("end");
    assert_eq!((of.shares(), to.shares()), (Value::Null, Value::Null));
    to.does(&format!("open {}", of.does("make 8").exports()));
    of.does("end");
    assert_eq!(of.shares(), Value::Null);
    assert!(of.0.ledger().snapshot.shared.is_empty());
    let row = &to.shares()["imported"][0];
    assert_eq!((&row["pid"], &row["freed"]), (&Value::Null, &json!(false)), "whose it was nobody says any more");
}

/// A descriptor names nobody, and tells no size before it is mapped.
#[test]
fn what_a_descriptor_brought_is_of_nobody_known() {
    let dir = Scratch::new();
    let mut one = Sharer::start(dir.path(), &[]);
    for (does, bytes, said) in [
        ("import 32", 0, "1 block of unknown size imported at import shares.c:"),
        ("map 32", 32 * MIB, "32.0 MiB imported at import shares.c:"),
    ] {
        one.does(does);
        let row = &one.shares()["imported"][0];
        assert_eq!((&row["kind"], &row["bytes"], &row["pid"]), (&json!("vmm-import"), &json!(bytes), &Value::Null));
        let text = one.text(&["leaks"]);
        assert!(text.contains(said) && text.contains("from whom is not known"), "{text}");
    }
}

/// The table has an end: what was freed first makes way, and what is live stays.
#[test]
fn rows_of_what_was_freed_make_way() {
    let dir = Scratch::new();
    let small = [("GPUMEM_LEDGER_MAX", "1MiB")];
    let mut of = Sharer::start(dir.path(), &small);
    let kept = of.does("make 2").exports();
    for _ in 0..300 {
        of.does("make 2").does("export").does("free");
    }
    let rows = of.0.ledger().snapshot.shared.len();
    assert!((64..=128).contains(&rows), "{rows}");
    let mut to = Sharer::start(dir.path(), &[]);
    to.does(&format!("open {kept}"));
    assert_eq!(to.shares()["imported"][0]["pid"], of.pid());
    of.0.finish().ok().ledger().sound();
}
