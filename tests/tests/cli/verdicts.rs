//! Verdicts that `gpumem selftest --rules` left for later processes. They are followed if they can be believed. If not,
//! one line says so, and the process takes the safe side.

use gpumem_tests::harness::ledger::gpumem;
use gpumem_tests::harness::run::Scratch;
use gpumem_tests::harness::{Program, artifacts, client, command};
use gpumem_tests::skipped::{ROOT, skipped};
use gpumem_wire::counters;
use gpumem_wire::verdict::{Subject, Verdict};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

/// The simulated GPU under a driver of a major version that nobody tested.
fn subject() -> Subject {
    let release = env!("CARGO_PKG_VERSION").to_owned();
    Subject { release, driver: 14000, gpu: "Simulated GPU".into(), capability: (9, 0) }
}

fn verdict(pool: bool, graph_cache: bool) -> Verdict {
    Verdict { subject: subject(), pool, graph_cache }
}

/// A user's directory for verdicts.
struct Place(Scratch);

impl Place {
    fn new() -> Self {
        let place = Self(Scratch::new());
        fs::create_dir(place.dir()).expect("a directory");
        fs::set_permissions(place.dir(), fs::Permissions::from_mode(0o755)).expect("a mode");
        place
    }

    fn dir(&self) -> PathBuf {
        self.0.path().join("gpumem")
    }

    fn file(&self, subject: &Subject) -> PathBuf {
        self.dir().join(subject.file_name())
    }

    /// Writes a text as the verdict on the simulated GPU.
    fn put(&self, text: impl AsRef<[u8]>) -> PathBuf {
        let file = self.file(&subject());
        let _ = fs::remove_file(&file);
        fs::write(&file, text).expect("a file");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("a mode");
        file
    }

    fn program(&self, driver: u32) -> Program {
        let program = client("newer").arg("k").env("SIM_DRIVER_VERSION", driver.to_string());
        program.env("XDG_STATE_HOME", self.0.path())
    }

    /// Runs a program on the driver that the verdict is on.
    #[track_caller]
    fn served(&self) -> Served {
        served(self.program(subject().driver))
    }
}

/// Parts of gpumem that served a program, and its messages.
#[derive(Debug)]
struct Served {
    cache: bool,
    pool: bool,
    mode: String,
    decided: String,
    /// Lines on stderr.
    said: Vec<String>,
    /// Findings of doctor, by the name of the check.
    findings: Vec<(String, String)>,
}

#[track_caller]
fn served(program: Program) -> Served {
    let (native, ran) = (program.native().ok(), program.preloaded().ok());
    assert_eq!((&ran.out, ran.violations()), (&native.out, vec![]));
    let ledger = ran.ledger();
    let head = ledger.gpumem("stats", &[])["process"].clone();
    let text = |name: &str| head[name].as_str().expect("a text").to_owned();
    let doctor = gpumem(&ran.dir, &["doctor", "--all", &ran.pid.to_string()]);
    let findings = doctor["findings"].as_array().expect("a list").iter();
    Served {
        findings: findings.map(|one| (one["id"].to_string(), one["finding"].to_string())).collect(),
        cache: ledger.counter(counters::HANDLES_MADE) > 0,
        pool: ledger.counter(counters::POOL_HITS) > 0,
        mode: text("mode"),
        decided: text("decided"),
        said: ran.ours().into_iter().map(str::to_owned).collect(),
    }
}

impl Served {
    /// Returns the findings of a check of doctor.
    fn findings(&self, id: &str) -> Vec<&str> {
        let of = self.findings.iter().filter(|(its, _)| its.trim_matches('"') == id);
        of.map(|(_, finding)| finding.as_str()).collect()
    }
}

/// A driver that nobody knows is let in as far as the verdict says; doctor names the file.
#[test]
fn a_verdict_lets_a_new_major_in() {
    let place = Place::new();
    let none = place.served();
    assert_eq!((none.cache, none.pool, none.mode.as_str(), none.said.len()), (false, false, "record-only", 0));
    for (pool, cache, what) in [
        (true, true, "everything is on"),
        (true, false, "the graph cache is off"),
        (false, true, "the pool is off"),
        (false, false, "gpumem only records"),
    ] {
        let file = place.put(verdict(pool, cache).to_string());
        let of = place.served();
        assert_eq!((of.pool, of.cache, of.said.len()), (pool, cache, 0), "{of:?}");
        assert_eq!(of.decided, format!("the verdict {}: {what}", file.display()));
        assert_eq!(of.mode, if pool || cache { "active" } else { "record-only" });
        assert!(of.findings("mode")[0].contains(&file.display().to_string()), "{of:?}");
    }
}

/// On a driver of a known major a verdict turns off what a broken rule concerns, and nothing else decides otherwise.
#[test]
fn a_verdict_turns_off_what_is_known() {
    let place = Place::new();
    let known = Subject { driver: 13000, ..subject() };
    for (pool, cache) in [(true, true), (true, false), (false, true)] {
        let verdict = Verdict { subject: known.clone(), pool, graph_cache: cache };
        fs::write(place.file(&known), verdict.to_string()).expect("a file");
        let of = served(place.program(13000));
        assert_eq!((of.pool, of.cache, of.mode.as_str(), of.said.len()), (pool, cache, "active", 0), "{of:?}");
        assert_eq!(of.decided.starts_with("knowledge: "), pool && cache, "{}", of.decided);
    }
    // Of this driver nothing is said.
    let of = served(place.program(13090));
    assert!(of.pool && of.cache && of.decided.starts_with("knowledge: "), "{of:?}");
}

/// The variable overrides both.
#[test]
fn the_variable_overrides_every_verdict() {
    let place = Place::new();
    place.put(verdict(true, true).to_string());
    let never = served(place.program(14000).env("GPUMEM_RECORD_ONLY", "1"));
    assert_eq!((never.pool, never.cache, never.decided.as_str()), (false, false, "GPUMEM_RECORD_ONLY=1"));
    place.put(verdict(false, false).to_string());
    let always = served(place.program(14000).env("GPUMEM_RECORD_ONLY", "0"));
    assert_eq!((always.pool, always.cache, always.decided.as_str()), (true, true, "GPUMEM_RECORD_ONLY=0"));
}

/// Without XDG_STATE_HOME it lies beneath the home directory.
#[test]
fn the_home_directory_has_a_place() {
    let home = Scratch::new();
    let dir = home.path().join(".local/state/gpumem");
    fs::create_dir_all(&dir).expect("a directory");
    fs::write(dir.join(subject().file_name()), verdict(true, true).to_string()).expect("a file");
    let program = client("newer").arg("k").env("SIM_DRIVER_VERSION", "14000");
    let of = served(program.without("XDG_STATE_HOME").env("HOME", home.path()));
    assert!(of.pool && of.cache && of.decided.contains(".local/state/gpumem"), "{of:?}");
}

/// If anything is wrong with a verdict, one line says so, in doctor too, and the process records only.
#[test]
fn a_verdict_that_cannot_be_believed_is_told_and_not_followed() {
    #[track_caller]
    fn refused(place: &Place, why: &str) {
        let of = place.served();
        assert_eq!((of.pool, of.cache, of.mode.as_str()), (false, false, "record-only"), "{why}: {of:?}");
        assert!(
            of.said.len() == 1 && of.said[0].contains("is not believed") && of.said[0].contains(why),
            "{why}: {of:?}"
        );
        let told = of.findings("verdict");
        assert!(told.len() == 1 && told[0].contains("is not believed"), "{of:?}");
    }
    let place = Place::new();
    let good = verdict(true, true).to_string();
    place.put(&good[..good.len() - 3]);
    refused(&place, "it is cut");
    place.put(good.replace("pool on", "pool on\nlimit off"));
    refused(&place, "stands where");
    place.put(good.replace("Simulated", "Simu\0lated"));
    refused(&place, "NUL");
    place.put([good.as_bytes(), &vec![b'\n'; 1 << 20]].concat());
    refused(&place, "longer than");
    for (other, said) in [
        (Subject { driver: 14010, ..subject() }, "driver 14010"),
        (Subject { gpu: "Another GPU".into(), ..subject() }, "Another GPU"),
        (Subject { capability: (10, 0), ..subject() }, "(10.0)"),
        (Subject { release: "0.0.9".into(), ..subject() }, "gpumem 0.0.9"),
    ] {
        place.put(Verdict { subject: other, pool: true, graph_cache: true }.to_string());
        refused(&place, said);
    }
    let file = place.put(&good);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).expect("a mode");
    refused(&place, "can be written by others");
    let real = place.0.path().join("real");
    fs::rename(&file, &real).expect("a file");
    fs::set_permissions(&real, fs::Permissions::from_mode(0o644)).expect("a mode");
    symlink(&real, &file).expect("a link");
    refused(&place, "it is a link");
    place.put(&good);
    fs::set_permissions(place.dir(), fs::Permissions::from_mode(0o777)).expect("a mode");
    refused(&place, "its directory can be written by others");
    fs::set_permissions(place.dir(), fs::Permissions::from_mode(0o755)).expect("a mode");
    // Only root can give a file away.
    if chown(place.put(&good), Some(12345), None).is_ok() {
        refused(&place, "it is user 12345's");
    }
    place.put(&good);
    assert!(place.served().cache, "the good one is followed all the same");
}

/// Somebody who is neither root nor the owner of anything here.
const STRANGER: u32 = 54321;

/// A directory that processes of a test have for /var/lib, in mount namespaces of their own.
struct System(Place);

impl System {
    /// None, and a line on stderr, where no such namespace can be made.
    fn new() -> Option<Self> {
        let place = Self(Place(Scratch::new()));
        fs::set_permissions(place.state(), fs::Permissions::from_mode(0o755)).expect("a mode");
        let found = ["unshare", "setpriv"].iter().all(|it| command(*it).arg("--version").native().code == 0);
        if !found || place.within(command("true"), "exec").native().code != 0 {
            skipped("not root, or no mount namespaces here: nothing stands in for /var/lib", ROOT);
            return None;
        }
        Some(place)
    }

    fn state(&self) -> &Path {
        self.0.0.path()
    }

    /// A program that has the directory for /var/lib, behind `first` in its shell.
    fn within(&self, program: Program, first: &str) -> Program {
        let mount = format!("mount --bind {} /var/lib && {first} \"$@\"", self.state().display());
        program.shell(&format!("exec unshare -m sh -c '{mount}' sh \"$@\""))
    }

    /// Runs a program as root and as a stranger there, on the driver that the verdict is on. Both have a user's verdict
    /// that would turn everything off.
    #[track_caller]
    fn served(&self) -> [Served; 2] {
        let user = Place::new();
        user.put(verdict(false, false).to_string());
        let ledgers = Scratch::new();
        chown(ledgers.path(), Some(STRANGER), Some(STRANGER)).expect("root gives it away");
        let stranger = format!("exec setpriv --reuid={STRANGER} --regid={STRANGER} --clear-groups");
        chown(user.dir(), Some(STRANGER), None).expect("root gives it away");
        chown(user.file(&subject()), Some(STRANGER), None).expect("root gives it away");
        let program = || user.program(subject().driver);
        let root = served(self.within(program(), "exec"));
        [root, served(self.within(program(), &stranger).dir(ledgers.path()))]
    }
}

/// Root may write a verdict for the system with any umask. The processes of every user read it, and before their
/// user's.
#[test]
fn the_systems_verdict_is_every_processs() {
    let Some(system) = System::new() else { return };
    let args = ["--json", "selftest", "--rules", "--place", "system", "--seconds", "1"];
    // A few of the rules will do: what is tried is where the verdict goes.
    let kit = Scratch::new();
    let (lib, few) = (kit.path().join("libgpumem.so"), kit.path().join("conformance"));
    fs::copy(&artifacts().shim, &lib).expect("a copy");
    let text = format!("#!/bin/sh\nexec {} --filter pointers. \"$@\"\n", env!("CARGO_BIN_EXE_conformance"));
    fs::write(&few, text).expect("a program");
    fs::set_permissions(&few, fs::Permissions::from_mode(0o755)).expect("a mode");
    symlink(env!("CARGO_BIN_EXE_differ"), kit.path().join("differ")).expect("a link");
    let selftest = command(&artifacts().gpumem).args(args).env("SIM_DRIVER_VERSION", "14000").env("GPUMEM_LIB", lib);
    let ran = system.within(selftest, "umask 077 && exec").native().ok();
    let report: serde_json::Value = serde_json::from_str(&ran.out).expect("JSON");
    let written = report["written"]["path"].as_str().expect("a path").to_owned();
    assert_eq!(written, format!("/var/lib/gpumem/{}", subject().file_name()));
    for of in system.served() {
        assert!(of.pool && of.cache && of.said.is_empty(), "{of:?}");
        assert_eq!((of.mode.as_str(), of.decided), ("active", format!("the verdict {written}: everything is on")));
    }
}

/// In the system's place nothing is believed that others than root could have put there, whoever reads it.
#[test]
fn a_systems_verdict_of_others_is_not_believed() {
    let Some(system) = System::new() else { return };
    fs::create_dir(system.0.dir()).expect("a directory");
    let good = verdict(true, true).to_string();
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
    let user = Place::new();
    let root = || served(system.within(user.program(subject().driver), "exec"));
    let refused = |why: &str| {
        let of = root();
        assert_eq!((of.pool, of.cache, of.mode.as_str()), (false, false, "record-only"), "{why}: {of:?}");
        assert!(of.said.len() == 1 && of.said[0].contains(why), "{why}: {of:?}");
        assert!(of.said[0].contains("/var/lib/gpumem"), "{of:?}");
    };
    mode(&system.0.dir(), 0o755);
    mode(&system.0.put(&good), 0o666);
    refused("it can be written by others");
    chown(system.0.put(&good), Some(12345), None).expect("root gives it away");
    refused("it is user 12345's");
    let real = system.state().join("real");
    fs::rename(system.0.put(&good), &real).expect("a file");
    symlink("/var/lib/real", system.0.file(&subject())).expect("a link");
    refused("it is a link");
    system.0.put(&good);
    mode(&system.0.dir(), 0o777);
    refused("its directory can be written by others");
    mode(&system.0.dir(), 0o755);
    assert!(root().cache, "the good one is followed all the same");
}
