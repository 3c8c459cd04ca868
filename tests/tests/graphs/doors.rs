//! Functions that take graph handles and have no hook: known and unknown ones, CUDA's and HIP's, by every
//! way to find them. What they are given arrives, and what they answer comes back.

use gpumem_tests::harness::hip;

use gpumem_tests::harness::{Program, artifacts, client};
use std::fmt::Write;

/// The output of a program, natively and preloaded.
#[track_caller]
fn lines(program: &Program) -> [Vec<String>; 2] {
    [program.native().ok(), program.preloaded().ok()].map(|ran| ran.out.lines().map(str::to_owned).collect())
}

/// A program that is linked to the driver calls the shim's exports, and gets the native answers.
#[test]
fn linked_programs_are_passed_on() {
    let passed = client("passed");
    let (native, preloaded) = (passed.native().ok(), passed.preloaded().ok());
    assert_eq!((native.err.as_str(), preloaded.err.as_str()), ("libcuda.so.1\n", "libgpumem.so\n"));
    assert_eq!((&preloaded.out, preloaded.violations()), (&native.out, native.violations()));
    preloaded.ledger().agrees_with(&preloaded.json()).complete().balanced();
    let disabled = passed.env("GPUMEM_DISABLE", "1").preloaded().ok();
    assert_eq!((disabled.out, disabled.dir.exists()), (native.out, false));
}

/// A newer driver's functions that no header has are ours to look at, whatever they are; nothing else is, and
/// all arguments arrive, those on the stack and in vector registers too.
#[test]
fn unknown_functions_are_passed_on() {
    let future = client("future").arg(artifacts().clients.join("libcuda.so"));
    let [native, preloaded] = lines(&future);
    assert_eq!(native.len(), preloaded.len());
    let answer = native[0].rsplit_once(' ').expect("an answer").1.to_owned();
    assert_ne!(answer, "0.000");
    for (before, after) in native.iter().zip(&preloaded) {
        let ours = before.contains("FutureThing") || before.contains("cuGraphLaunch") || before.starts_with("launch");
        match before.as_str() {
            "many 0" => assert!(after.starts_with("many "), "{after}"),
            _ if ours => assert_eq!(*after, before.replace("libcuda.so", "libgpumem.so")),
            _ => assert_eq!(after, before),
        }
        assert!(!before.contains("Thing") || before.ends_with(&answer), "{before}");
    }
    // The pool is 256; the functions above took some of it.
    let many: u32 = preloaded.last().and_then(|line| line.strip_prefix("many ")?.parse().ok()).expect("a number");
    assert!((240..256).contains(&many), "{many} of 300 were ours");
    assert_eq!(future.env("GPUMEM_DISABLE", "1").preloaded().ok().out.lines().collect::<Vec<_>>(), native);
}

/// A table of functions that stands in for the driver finds ours, unless we call the table ourselves.
#[test]
fn tables_of_functions_find_what_does_not_lead_back() {
    let clients = artifacts().clients.display();
    let table = client("table").env("LD_LIBRARY_PATH", format!("{}:{clients}", artifacts().stage.display()));
    let [native, late] = lines(&table);
    assert_eq!(native[1..], ["0 calls 3", "libcuda.so.1 libcuda.so.1 libtable.so"]);
    assert_eq!(late, [&native[0], &native[1], "libgpumem.so libgpumem.so libtable.so"]);
    // In the global scope behind us: ours lead to the table, the table to the driver.
    let ours = artifacts().shim.display();
    let behind = table.clone().env("LD_PRELOAD", format!("{ours}:{clients}/libtable.so")).preloaded().ok();
    assert_eq!(
        behind.out.lines().collect::<Vec<_>>(),
        [&native[0], &native[1], "libcuda.so.1 libcuda.so.1 libgpumem.so"]
    );
    // A library before the shim: all lookups find its table, and the table has the shim's functions.
    let before = table.env("LD_PRELOAD", format!("{clients}/libtable.so:{ours}")).preloaded().ok();
    assert_eq!(before.out.lines().collect::<Vec<_>>(), late);
}

macro_rules! names {
    ($($name:ident ($($arg:ident),*);)*) => {
        const HIP: &[&str] = &[$(stringify!($name)),*];
    };
}
gpumem_abi::hip_graph_thunks!(names);

/// Each of HIP's that the library has is ours by dlsym, dlvsym and hipGetProcAddress, and is none's where
/// it has none; names that only look like them are left alone.
#[test]
fn hip_functions_are_found() {
    const OTHERS: &[&str] = &["hipGraphicsMapResources", "hipGraphNoSuchFunction", "hipGraph", "hipDrvGraphNone"];
    let mut names = String::new();
    for name in HIP.iter().chain(OTHERS) {
        writeln!(names, "{name}").expect("a String");
    }
    let lookup = hip::program("lookup").input(names);
    let [native, preloaded] = lines(&lookup);
    let mut ours = 0;
    for (before, after) in native.iter().zip(&preloaded) {
        let (name, _) = before.split_once(": ").expect("a name");
        let expected =
            if HIP.contains(&name) { before.replace("libamdhip64.so.6", "libgpumem.so") } else { before.clone() };
        ours += expected.matches("libgpumem.so").count();
        assert_eq!(*after, expected);
    }
    assert!(ours > 50, "only {ours} answers were ours");
    assert_eq!(lookup.env("GPUMEM_DISABLE", "1").preloaded().ok().out.lines().collect::<Vec<_>>(), native);
}
