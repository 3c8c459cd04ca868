//! Calls that go past the shim, or are meant to: RTLD_DEEPBIND, interposers before us, the preload
//! disabled; and limits that a program takes on itself once the driver is there.

use gpumem_tests::harness::{Ledger, Program, artifacts, client, program};
use gpumem_wire::counters;
use gpumem_wire::kinds::{AllocKind, Interception};
use std::fmt::Write;

/// Base name, first version and symbol of each row of the table.
type Row = (&'static str, &'static str, u32);

macro_rules! hooks {
    ($($name:ident [$base:literal $since:literal $flavour:ident = $sys:tt] => $module:ident::$hook:ident($($arg:ident: $ty:ty),*);)*) => {
        const HOOKS: &[Row] = &[$((stringify!($name), $base, $since),)*];
    };
}
gpumem_abi::driver_functions!(hooks);
macro_rules! thunks {
    ($($name:ident [$base:literal $since:literal $flavour:ident = $sys:tt] ($($arg:ident),*);)*) => {
        const THUNKS: &[Row] = &[$((stringify!($name), $base, $since),)*];
    };
}
gpumem_abi::graph_thunks!(thunks);

fn rows() -> impl Iterator<Item = &'static Row> {
    HOOKS.iter().chain(THUNKS)
}

/// Calls that went past the shim before it saw the first one: partial, and why.
#[test]
fn partial_interception_is_told() {
    let ran = client("partial").arg(artifacts().programs.join("plugin_a.so")).preloaded().ok();
    let ledger = ran.ledger();
    ledger.agrees_with(&ran.json());
    let (interception, why) = ledger.interception();
    assert_eq!(interception, Some(Interception::Partial));
    assert!(why.contains("went past"), "{why}");
    let head = ledger.gpumem("stats", &[])["process"].clone();
    assert_eq!(
        (head["interception"].as_str(), head["interception_reason"].as_str()),
        (Some("partial"), Some(why.as_str()))
    );
}

/// A program all of whose calls go past (RTLD_DEEPBIND) runs as natively; nothing is claimed.
#[test]
fn deepbind_goes_past_and_leaves_nothing() {
    let deep = program("deepbind");
    let (native, preloaded) = (deep.native().ok(), deep.preloaded().ok());
    assert_eq!((preloaded.out, preloaded.err), (native.out, native.err));
    let interceptions: Vec<_> = Vec::from_iter(preloaded_interceptions(&preloaded.dir));
    assert!(interceptions.iter().all(|&what| what != Some(Interception::Complete)), "{interceptions:?}");
}

fn preloaded_interceptions(dir: &std::path::Path) -> impl Iterator<Item = Option<Interception>> + use<> {
    Ledger::all(dir).into_iter().map(|ledger| ledger.interception().0)
}

/// A library before us that goes to the C library's dlsym, past ours: programs run as natively, and
/// nobody is told that all was seen, or that there was no GPU call.
#[test]
fn a_wrapper_that_goes_past_is_told() {
    let order = format!("{}:{}", artifacts().clients.join("libwrap.so").display(), artifacts().shim.display());
    for program in ["graphs", "driver_dlopen", "plugin", "firstuse"].map(program) {
        let native = program.native().ok();
        let both = program.env("LD_PRELOAD", &order).preloaded().ok();
        assert_eq!((&both.json()["allocs"], both.ours()), (&native.json()["allocs"], vec![]));
        for ledger in both.ledgers() {
            let exact = both.json()["allocs"] == ledger.counter(counters::allocs(AllocKind::Device));
            assert!(exact || ledger.interception().0 == Some(Interception::Partial), "{:?}", ledger.interception());
        }
    }
    // The runtime's functions of this one did come through our exports.
    let ran = program("graphs").env("LD_PRELOAD", &order).preloaded().ok();
    assert_eq!(ran.ledger().interception().0, Some(Interception::Partial));
}

/// Disabled, every lookup gives the driver's own function, and nothing exists.
#[test]
fn disabled_leaves_every_pointer_untouched() {
    let mut questions = String::new();
    for (name, base, since) in rows() {
        for (version, flags) in
            [since - 1, *since, 12000, 13000].iter().flat_map(|version| (0..3).map(move |flags| (version, flags)))
        {
            writeln!(questions, "g {base} {version} {flags}\no {base} {version} {flags}").expect("a String");
        }
        writeln!(questions, "h {name}\nd {name}\nn {name}").expect("a String");
    }
    let lookup = client("lookup").input(questions);
    let native = lookup.native().ok();
    let disabled = lookup.env("GPUMEM_DISABLE", "1").preloaded().ok();
    assert!(disabled.out == native.out, "some lookup differs");
    assert!(!disabled.dir.exists());
}

/// A program that takes a limit on itself before its first call that the shim sees. (The simulated
/// device is one large file, so the limit cannot be there from the start.)
fn limited(what: &str, bytes: u64) -> Program {
    client("partial").arg(artifacts().programs.join("plugin_a.so")).arg(what).arg(bytes.to_string())
}

/// Files may not grow that large (ulimit -f): a line instead of SIGXFSZ.
#[test]
fn file_size_limit() {
    let limited = limited("fsize", 100 << 20);
    let (native, ran) = (limited.native().ok(), limited.preloaded().ok());
    assert_eq!(ran.out, native.out);
    let ours = ran.ours();
    assert!(ours.len() == 1 && ours[0].contains("ulimit -f") && ours[0].contains("GPUMEM_LEDGER_MAX"), "{ours:?}");
    assert_eq!(ran.ledgers().len(), 0);
    let ran = limited.env("GPUMEM_LEDGER_MAX", "1MiB").preloaded().ok();
    assert_eq!(ran.ours(), [""; 0]);
    ran.ledger().agrees_with(&ran.json());
}

/// No address space for the ledger (ulimit -v): a line, and no address space is kept.
#[test]
fn address_space_limit() {
    for mib in [1, 16, 100, 200, 250] {
        let ran = limited("as", mib << 20).preloaded().ok();
        let ours = ran.ours();
        assert!(ours.len() == 1 && ours[0].contains("nothing is recorded"), "{mib} MiB: {ours:?}");
        assert_eq!((ran.json()["failures"].as_u64(), ran.ledgers().len()), (Some(0), 0), "{mib} MiB");
    }
    let ran = limited("as", 48 << 20).env("GPUMEM_LEDGER_MAX", "1MiB").preloaded().ok();
    assert_eq!(ran.ours(), [""; 0]);
    ran.ledger().agrees_with(&ran.json());
}
