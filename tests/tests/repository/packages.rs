//! Packages: their contents, and that the wheel, installed, runs programs of Python under gpumem.
//!
//! `make packages-test` does the parts that take root or registries: each package of a release in a clean system.

use gpumem_tests::group::{Watch, member, tell};
use gpumem_tests::harness::artifacts::repository;
use gpumem_tests::harness::run::Scratch;
use gpumem_tests::harness::{Program, Ran, artifacts, command};
use gpumem_tests::skipped::{installed, skipped};
use gpumem_wire::settings::GroupLimit;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn text(file: &str) -> String {
    fs::read_to_string(repository().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// An environment of Python with the wheel of what is being tested.
struct Installed {
    folder: Scratch,
}

impl Installed {
    /// None, and a line on stderr, where there is no Python that makes environments and installs wheels.
    fn new() -> Option<Self> {
        let folder = Scratch::new();
        let at = |name: &str| folder.path().join(name);
        let environment = command("python3").args(["-m", "venv", "--without-pip"]).arg(at("venv"));
        // By its path: some versions of pip take no name.
        let pip = || command("python3").args(["-m", "pip", "--python"]).arg(at("venv/bin/python"));
        let has_pip = pip().arg("--version");
        installed("python3")?;
        if environment.native().code != 0 || has_pip.native().code != 0 {
            skipped(
                "python3's venv, and its pip since 22.3, are not installed",
                "packages python3-venv and python3-pip",
            );
            return None;
        }
        let binaries = at("binaries");
        fs::create_dir(&binaries).expect("a new folder");
        for built in [&artifacts().shim, &artifacts().gpumem] {
            let stripped = binaries.join(built.file_name().expect("a name"));
            command("strip").args(["--strip-debug", "-o"]).arg(stripped).arg(built).native().ok();
        }
        fs::write(binaries.join("THIRD-PARTY-LICENSES"), "none\n").expect("a file");
        let wheel = |out: &str| {
            let built = command("python3")
                .arg(repository().join("deploy/packages/wheel.py"))
                .args(["--fast", "--version", VERSION, "--binaries"])
                .arg(&binaries)
                .arg("--out")
                .arg(at(out));
            PathBuf::from(built.native().ok().out.trim())
        };
        let (one, two) = (wheel("one"), wheel("two"));
        assert_eq!(one.file_name().and_then(|it| it.to_str()), Some(&*format!("libgpumem-{VERSION}-{TAG}.whl")));
        assert!(fs::read(&one).expect("a wheel") == fs::read(two).expect("a wheel"), "the same input, other bytes");
        let options = ["install", "--quiet", "--no-index", "--no-deps", "--disable-pip-version-check"];
        pip().args(options).arg(one).native().ok();
        Some(Self { folder })
    }

    fn bin(&self, name: &str) -> Program {
        command(self.folder.path().join("venv/bin").join(name)).dir(self.ledgers()).env("GPUMEM_DIR", self.ledgers())
    }

    fn ledgers(&self) -> PathBuf {
        self.folder.path().join("ledgers")
    }

    /// Returns the answer of the command `gpumem` of the wheel.
    fn gpumem(&self, args: &[&str]) -> Value {
        whole(&self.bin("gpumem").arg("--json").args(args).native().ok())
    }
}

/// An answer of `gpumem --json`, which has many lines.
fn whole(ran: &Ran) -> Value {
    serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {}", ran.out))
}

const TAG: &str = "py3-none-manylinux_2_28_x86_64";

fn named(program: Program, snapshot: &Path) -> Program {
    program.arg(repository().join("tests/python/named.py")).arg(snapshot)
}

#[test]
fn a_program_of_python_runs_under_the_wheel() {
    let Some(installed) = Installed::new() else { return };
    let saved = installed.folder.path().join("saved.gpumem");
    let under = installed.bin("python").args(["-m", "gpumem", "run", "--pool=0"]);
    let running = named(under, &saved).arg("--wait").waits().start(false);
    running.says("loaded");
    let number = running.pid();
    let pid = number.to_string();

    // From outside, by the command of the same wheel.
    let tags = installed.gpumem(&["allocs", &pid, "--by", "tag"]);
    let live = |tag: &str| {
        let row = tags["rows"].as_array().into_iter().flatten().find(|row| row["key"] == tag);
        row.map(|row| row["bytes"].clone())
    };
    assert_eq!(live("weights"), Some(json!(3 << 20)), "{tags}");
    assert_eq!(live("kv-cache"), Some(json!(1 << 20)), "{tags}");
    assert_eq!((live("model"), live("broken")), (None, None), "{tags}");
    let reported = installed.gpumem(&["allocs", &pid, "--by", "kind", "--all-kinds"]).to_string();
    assert!(reported.contains("\"reported\""), "{reported}");
    let events = installed.gpumem(&["events", &pid]).to_string();
    assert!(events.contains("--half way") && events.contains("done"), "{events}");

    let told: Value = serde_json::from_str(running.stdout().trim()).expect("a line of JSON");
    assert_eq!((&told["loaded"], &told["version"], &told["early"]), (&json!(true), &json!(VERSION), &json!(false)));
    assert_eq!(told["marks"], json!([true, true]));
    assert_eq!(told["stats"]["process"]["pid"], json!(number), "{told}");
    assert_eq!(told["snapshot"]["file"], json!(saved), "{told}");
    assert!(told["refused"].as_str().is_some_and(|why| why.contains("below")), "{told}");
    let warnings = told["warnings"].as_array().expect("a list");
    assert!(warnings.len() == 1 && warnings[0].as_str().is_some_and(|it| it.starts_with("gpumem.mark: ")), "{told}");
    assert_eq!(told["places"], json!(["named.py"]), "a warning names the line that called");
    let again = installed.gpumem(&["allocs", &saved.display().to_string(), "--by", "tag"]);
    assert_eq!(again["rows"].as_array().map(Vec::len), tags["rows"].as_array().map(Vec::len), "{again}");
    running.finish().ok();

    // The same program without gpumem: nothing happens, and what was asked for in vain is told once.
    let ran = named(installed.bin("python"), &saved.with_extension("none")).native().ok();
    let told = ran.json();
    let nothing = json!([false, false, [false, false], null, null, null]);
    let got = ["loaded", "early", "marks", "snapshot", "stats", "refused"].map(|name| told[name].clone());
    assert_eq!(json!(got), nothing, "{told}");
    let warnings: Vec<&str> = told["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    assert!(warnings.len() == 2 && warnings[0].starts_with("gpumem.snapshot: "), "{warnings:?}");
    assert!(!saved.with_extension("none").exists());
    assert!(ran.ledgers().iter().all(|ledger| ledger.id.pid == number), "it left a ledger");

    command_lines(&installed);
    kernel(&installed);
}

/// Checks the command lines that `python -m gpumem run` makes of its words.
fn command_lines(installed: &Installed) {
    let python = installed.folder.path().join("venv/bin/python").display().to_string();
    let argv = |words: &[&str]| {
        let ran = installed.bin("python").args(["-m", "gpumem", "run", "--json", "--print-env"]).args(words);
        whole(&ran.native().ok())["argv"].clone()
    };
    assert_eq!(argv(&["train.py", "--lr", "1"]), json!([python, "train.py", "--lr", "1"]));
    assert_eq!(argv(&["--limit=8GiB", "-m", "a.b", "-x"]), json!([python, "-m", "a.b", "-x"]));
    assert_eq!(argv(&["--pool=0", "-c", "pass"]), json!([python, "-c", "pass"]));
    assert_eq!(argv(&["--", "./server", "-m", "model"]), json!(["./server", "-m", "model"]));
    // A value that stands by itself is no script; which options take one, the program says.
    let script = json!([python, "train.py", "--limit", "9"]);
    for options in [
        &["--limit", "8GiB"][..],
        &["--tensors", "--tag", "kv cache"],
        &["--pool", "0", "--color", "never", "--stranded", "report"],
        &["--pool", "1", "-v", "--dir", "/tmp"],
    ] {
        assert_eq!(argv(&[options, &["train.py", "--limit", "9"]].concat()), script, "{options:?}");
    }
    assert_eq!(argv(&["--limit", "8GiB", "-m", "a.b", "8GiB"]), json!([python, "-m", "a.b", "8GiB"]));
    let ran = installed.bin("python").args(["-m", "gpumem", "run", "-c", "raise SystemExit(7)"]).native();
    assert_eq!(ran.code, 7, "{}", ran.err);
    let version = installed.bin("python").args(["-m", "gpumem", "--version"]).native().ok();
    assert_eq!(version.out.trim(), format!("gpumem {VERSION}"));
}

/// The kernel that is written for Jupyter, started as Jupyter does: here its module is one that tells what it got.
fn kernel(installed: &Installed) {
    let data = installed.folder.path().join("jupyter");
    let install = ["-m", "gpumem", "kernelspec", "install"];
    let ran = installed.bin("python").args(install).env("JUPYTER_DATA_DIR", data.display().to_string());
    assert!(ran.native().ok().out.contains("(gpumem)"));
    let file = data.join("kernels/gpumem/kernel.json");
    let spec: Value = serde_json::from_str(&fs::read_to_string(file).expect("a kernel")).expect("JSON");
    let argv: Vec<&str> = spec["argv"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let (program, words) = argv.split_first().expect("a command");
    let words = words.iter().map(|word| word.replace("{connection_file}", "connection.json"));
    let modules = installed.folder.path().join("modules");
    fs::create_dir(&modules).expect("a new folder");
    let stand_in = "import gpumem, sys\nprint(gpumem.is_loaded(), *sys.argv[1:])\n";
    fs::write(modules.join("ipykernel_launcher.py"), stand_in).expect("a file");
    let ran = command(program).args(words).env("PYTHONPATH", modules.display().to_string());
    assert_eq!(ran.env("GPUMEM_DIR", installed.ledgers()).native().ok().out, "True -f connection.json\n");

    let refused = installed.bin("python").args(install).args(["--name", "../x"]).native();
    assert!(refused.code == 2 && refused.err.contains("letters, digits"), "{}", refused.err);
}

/// Everything that names the version of a release names the same one.
#[test]
fn there_is_one_version() {
    let changes = text("CHANGELOG.md");
    let newest = changes.lines().find_map(|line| line.strip_prefix("## ")).expect("a release");
    assert_eq!(newest.split(' ').next(), Some(VERSION), "CHANGELOG.md");
    let said = command(&artifacts().gpumem).arg("--version").native().ok();
    assert_eq!(said.out.trim(), format!("gpumem {VERSION}"));
    assert!(text("Cargo.toml").contains(&format!("{{ path = \"shim/wire\", version = \"{VERSION}\" }}")), "Cargo.toml");
    assert!(text("deploy/container/Containerfile").contains(&format!("\nARG VERSION={VERSION}\n")), "Containerfile");
    for member in ["shim", "shim/abi", "shim/wire", "kernels", "inspector", "tests"] {
        assert!(text(&format!("{member}/Cargo.toml")).contains("\nversion.workspace = true\n"), "{member}");
    }
    for file in [
        "container/Containerfile",
        "kubernetes/sidecar.yaml",
        "kubernetes/daemonset.yaml",
        "kubernetes/limit-group.yaml",
        "kubernetes/profiles.yaml",
    ] {
        let text = text(&format!("deploy/{file}"));
        let images: Vec<&str> = text
            .split("REGISTRY/gpumem:")
            .skip(1)
            .map(|rest| rest.split_whitespace().next().unwrap_or_default())
            .collect();
        assert!(!images.is_empty() && images.iter().all(|tag| *tag == VERSION), "{file}: {images:?}");
    }
}

/// The stated minimum version of Rust is enough for every crate in Cargo.lock. Clippy's `incompatible_msrv` holds our own
/// code to it. One crate asked for a later version, and another for one later still.
#[test]
fn the_stated_minimum_of_rust_is_enough_for_all_dependencies() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let asked =
        ["metadata", "--format-version=1", "--locked", "--offline", "--filter-platform=x86_64-unknown-linux-gnu"];
    let Ok(said) = std::process::Command::new(cargo).args(asked).current_dir(repository()).output() else {
        return skipped("cargo is not installed", "rustup");
    };
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let all: Value = serde_json::from_slice(&said.stdout).expect("JSON");
    let version = |package: &Value| -> Option<Vec<u32>> {
        let mut parts: Vec<u32> =
            package["rust_version"].as_str()?.split('.').map(|part| part.parse().unwrap()).collect();
        parts.resize(3, 0);
        Some(parts)
    };
    let packages = all["packages"].as_array().expect("a list");
    assert!(packages.len() > 100, "{}", packages.len());
    let ours = packages.iter().find(|package| package["name"] == "gpumem-shim").and_then(version).expect("a version");
    let later = |package: &&Value| version(package).is_some_and(|version| version > ours);
    let later: Vec<_> = packages.iter().filter(later).map(|it| (&it["name"], &it["rust_version"])).collect();
    assert!(later.is_empty(), "Cargo.toml says {ours:?}: {later:?}");
}

/// The description from which the `.deb` and the `.rpm` are made names nothing that the recipe does not give.
#[test]
fn packages_are_given_what_they_ask_for() {
    let (asks, recipe) = (text("deploy/packages/nfpm.yaml"), text("deploy/packages/packages.mk"));
    let names: Vec<&str> = asks.split("${").skip(1).filter_map(|rest| rest.split('}').next()).collect();
    assert!(names.contains(&"VERSION") && names.contains(&"STAGE"), "{names:?}");
    let line = recipe.lines().find(|line| line.starts_with("nfpm = ")).expect("how nfpm is called");
    for name in names {
        assert!(line.contains(&format!("{name}=")), "nfpm.yaml asks for {name}");
    }
    // The services are those of deploy/, with the paths of their commands changed.
    let units = recipe.lines().find_map(|line| line.strip_prefix("units := ")).expect("which units are packed");
    assert_eq!(units, "$(wildcard deploy/systemd/*.service)");
    assert!(recipe.contains("sed 's,/usr/local/,/usr/,' $$f >$(1)/usr/lib/systemd/system/"), "packages.mk");
    let dry = command("make").args(["-n", "-C"]).arg(repository()).arg("NO_BUILD=1").arg("release").native().ok();
    for made in ["dist wheel deb rpm static sbom", "SHA256SUMS"] {
        assert!(dry.out.contains(made), "make release does not make {made}:\n{}", dry.out);
    }
    // Of both architectures, into one folder: no file has the name of another's.
    for arch in ["x86_64", "aarch64"] {
        for end in ["-linux.tar.gz", "-static.tar.gz", ".cdx.json"] {
            let made = format!("-{VERSION}-{arch}{end}");
            assert!(dry.out.contains(&made), "make release does not make {made}:\n{}", dry.out);
        }
        assert!(dry.out.contains(&format!("packages/{arch}/static-libc")), "dist/BUILT-BY does not say the C library");
    }
}

/// The command line of a unit, without its program.
fn command_of(unit: &str) -> Vec<String> {
    let text = text(&format!("deploy/systemd/{unit}"));
    let line = text.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("a command");
    let words = line.strip_prefix("/usr/local/bin/gpumem ").expect("the path that packages.mk changes");
    words.split(' ').map(str::to_owned).collect()
}

/// systemd takes the units, and gpumem their command lines. The selftest is made to end before it tries anything: without
/// a device there is no verdict, and with one that is there nothing is done.
#[test]
fn systemd_and_gpumem_take_the_units() {
    let gpumem = &artifacts().gpumem;
    let verifies = installed("systemd-analyze").is_some();
    let scratch = Scratch::new();
    let mut units: Vec<String> = Vec::new();
    for file in fs::read_dir(repository().join("deploy/systemd")).expect("a folder") {
        let name = file.expect("a file").file_name().into_string().expect("a name");
        if !name.ends_with(".service") {
            continue;
        }
        let unit = text(&format!("deploy/systemd/{name}"));
        for needed in
            ["NoNewPrivileges=yes", "ProtectSystem=strict", "CapabilityBoundingSet=", "WantedBy=multi-user.target"]
        {
            assert!(unit.lines().any(|line| line.starts_with(needed)), "{name} has no {needed}");
        }
        // What a unit is started with lies here where it was built.
        let here = scratch.path().join(&name);
        fs::write(&here, unit.replace("/usr/local/bin/gpumem", &gpumem.display().to_string())).expect("a unit");
        if verifies {
            let ran = command("systemd-analyze").args(["verify", "--man=no"]).arg(&here).native();
            assert!(ran.code == 0 && !ran.err.contains(&name), "{name}: {}", ran.err);
        }
        units.push(name);
    }
    units.sort_unstable();
    assert_eq!(units, ["gpumem-selftest.service", "gpumem-serve.service"]);

    let selftest = command_of("gpumem-selftest.service");
    let ran = command(gpumem).args(&selftest).env("SIM_DEVICES", "0").native();
    assert!(ran.code == 2 && ran.out.contains("cuInit gives 100"), "{} {}{}", ran.code, ran.out, ran.err);
    let shown = command(gpumem).args(command_of("gpumem-serve.service")).arg("--help").native().ok();
    assert!(shown.out.contains("--web-config"), "{}", shown.out);
}

/// The examples of a group: where each has its file is there and the members' own, and processes that are started with
/// what it sets share the limit.
#[test]
fn members_of_the_examples_meet() {
    let unit = text("deploy/systemd/limit-group.conf");
    let of_unit = |name: &str| unit.lines().find_map(|line| line.strip_prefix(&format!("{name}=")));
    let runtime = Path::new("/run").join(of_unit("RuntimeDirectory").expect("a directory"));
    assert_eq!((of_unit("RuntimeDirectoryMode"), of_unit("RuntimeDirectoryPreserve")), (Some("0700"), Some("yes")));
    let group = unit.lines().find_map(|line| line.strip_prefix("Environment=GPUMEM_LIMIT_GROUP=")).expect("a group");
    let service = (group, runtime);
    if installed("systemd-analyze").is_some() {
        // The drop-in is read with the unit that it is for.
        let scratch = Scratch::new();
        let at = scratch.path().join("server.service");
        fs::write(&at, "[Service]\nExecStart=/bin/true\n").expect("a unit");
        fs::create_dir(scratch.path().join("server.service.d")).expect("a folder");
        fs::write(scratch.path().join("server.service.d/limit.conf"), &unit).expect("a drop-in");
        let ran = command("systemd-analyze").args(["verify", "--man=no"]).arg(&at).native();
        assert!(ran.code == 0 && !ran.err.contains("limit.conf"), "{}", ran.err);
    }

    let pod = text("deploy/kubernetes/limit-group.yaml");
    let group = pod.split("{name: GPUMEM_LIMIT_GROUP, value: ").nth(1).and_then(|rest| rest.split('}').next());
    let group = group.expect("a group");
    let mount = pod.split("{name: group, mountPath: ").nth(1).and_then(|rest| rest.split('}').next());
    // Both containers have the same variables and volumes, and no user of their own.
    let (_, containers) = pod.split_once("\n  containers:\n").expect("containers");
    assert_eq!(containers.matches("- name: ").count(), 2, "{containers}");
    for shared in ["env: ", "volumeMounts: "] {
        let given: Vec<&str> = containers.lines().filter_map(|line| line.trim().strip_prefix(shared)).collect();
        assert!(given.len() == 2 && given[0].replace('&', "*") == given[1], "{shared}{given:?}");
    }
    assert!(pod.matches("runAsUser").count() == 1 && !containers.contains("runAsUser"), "{pod}");
    for (group, folder) in [service, (group, mount.expect("a volume").into())] {
        let spec = GroupLimit::parse(group).unwrap_or_else(|| panic!("{group}"));
        let (file, _) = spec.path(None, 0);
        assert_eq!((file.parent(), spec.limit), (Some(&*folder), 24 << 30), "{group}");
        // The same, in a folder that is there: what the one has taken the other cannot get.
        let here = tempfile::tempdir().expect("a folder");
        let group = format!("{}:256MiB", here.path().join(file.file_name().expect("a name")).display());
        let watch = Watch::new(here.path(), 2);
        let [mut one, mut two] = [0, 1].map(|number| member(here.path(), &group, &watch, number).waits().start(true));
        assert_eq!((tell(&mut one, "alloc 200"), tell(&mut two, "alloc 200")), ("0".into(), "2".into()), "{group}");
        assert_eq!(tell(&mut two, "alloc 32"), "0", "{group}");
    }
}

/// Its name has no version in it: the reason is in docs/decisions/packages.md.
#[test]
fn the_library_is_called_by_its_name() {
    let ran = command("readelf").args(["-d", "-W"]).arg(&artifacts().shim).native().ok();
    assert!(ran.out.contains("Library soname: [libgpumem.so]"), "{}", ran.out);
}
