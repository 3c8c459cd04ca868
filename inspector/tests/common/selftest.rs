//! Programs that stand for those of the selftest where no driver is needed: what they answer is known.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// `libgpumem.so` that preloads nothing, a conformance suite of these commands of a shell for each run
/// behind nothing and behind `checkpoint.b`, on a driver of a new major version or of the one that SIM_DRIVER_VERSION names, no HIP,
/// and a differential tester that answers this. The path of the library.
pub fn pretend(dir: &Path, first: &str, behind_b: &str, differ: &str) -> PathBuf {
    let script = |name: &str, text: String| {
        let path = dir.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    script(
        "conformance",
        format!(
            "#!/bin/sh\ncase \"$*\" in\n*--hip*) echo 'conformance: libamdhip64.so is not installed' >&2; exit 2 ;;\n\
             *--driver*) echo '{{\"version\":'${{SIM_DRIVER_VERSION:-14000}}',\"gpus\":[{{\"name\":\"Simulated GPU\",\"capability\":[9,0]}}]}}' ;;\n\
             *--list*) echo 'a (measured)'; echo 'checkpoint.b (measured)'; echo 'c (measured)' ;;\n\
             *'--after checkpoint.b'*) {behind_b} ;;\n*) echo 'conformance: Pretended GPU, driver API 13000' >&2; {first} ;;\nesac\n"
        ),
    );
    script("differ", format!("#!/bin/sh\ncase \"$1\" in\nhunt) printf '%s\\n' '{differ}'; exit 1 ;;\nesac\n"));
    let lib = dir.join("libgpumem.so");
    fs::write(&lib, "").unwrap();
    lib
}

/// The line of a check.
pub fn said(name: &str, result: &str) -> String {
    format!(r#"echo '{{"check":"{name}","result":"{result}","source":"measured","detail":["why {name}"]}}'"#)
}

/// A differential tester that found one program.
pub const ONE_DIFFERS: &str = r#"{"programs":9,"operations":90,"differ":[{"file":"/tmp/differ-3.json","what":"answers differ\n  native    1 launch e0 = 0\n  preloaded 1 launch e0 = 700"}],"fleeting":[],"ill":["seed 4: why"]}"#;

/// Returns the answer of `gpumem selftest --rules --json` with the pretended programs.
pub fn rules(dir: &Path, lib: &str) -> String {
    let mut command = super::gpumem();
    command.args(["--json", "selftest", "--rules", "--place", "user", "--lib", lib]);
    // What failed is kept, in the caller's folder.
    command.env("LD_LIBRARY_PATH", dir).env("XDG_STATE_HOME", dir).env("TMPDIR", dir);
    super::answer(command).out
}
