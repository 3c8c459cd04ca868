//! `make run` and `make install`, as a new user types them.

use gpumem_tests::harness::artifacts::{artifacts, repository};
use gpumem_tests::harness::run::{Ran, Scratch};
use gpumem_tests::harness::{Program, command};
use std::path::Path;

/// `make WORDS` with what is built, in the profile of this test.
fn make(words: &[&str]) -> Program {
    let built = artifacts().gpumem.parent().expect("a folder").to_owned();
    let (target, profile) = (built.parent().expect("target"), built.file_name().expect("a profile"));
    let set = |name: &str, to: &Path| format!("{name}={}", to.display());
    let variables = [set("PROFILE", Path::new(profile)), set("TARGET", target), "NO_BUILD=1".into()];
    let make = command("make").arg("-C").arg(repository()).args(variables).args(words.to_vec());
    // If make started this test, its own flags must not reach the make here.
    make.without("MAKEFLAGS").without("MFLAGS").without("MAKELEVEL").without("LD_LIBRARY_PATH")
}

/// The number of the line of the server with this text.
fn line_of(text: &str) -> usize {
    let source = std::fs::read_to_string(repository().join("demo/leak.c")).expect("the server's source");
    1 + source.lines().position(|line| line.contains(text)).unwrap_or_else(|| panic!("leak.c has no {text}"))
}

/// Checks that the demo prints these parts in this order.
fn in_order(ran: &Ran, parts: &[&str]) {
    let mut at = 0;
    for part in parts {
        let found = ran.out[at..].find(part);
        at += found.unwrap_or_else(|| panic!("no {part:?} behind byte {at} of:\n{}{}", ran.out, ran.err));
    }
}

/// From a server that leaks to the line of its source, and nothing goes on running. With a sample each 20 ms: a second.
#[test]
fn the_demo_finds_the_line_that_leaks() {
    let scratch = Scratch::new();
    let ran = make(&["run", "ARGS=--simulator --interval 20ms"]).env("GPUMEM_DIR", scratch.path()).native().ok();
    // It keeps a block and an exec of each request. Which of the two grows faster when the verdict comes depends on how
    // fast the machine is.
    let faults = ["Pointer remember(void)", "OK(cuGraphInstantiateWithFlags"].map(line_of);
    let line =
        *faults.iter().find(|line| ran.out.contains(&format!("The fault is in line {line} "))).unwrap_or(&faults[0]);
    in_order(
        &ran,
        &[
            "On a simulated driver (--simulator).",
            "\n$ gpumem run --growth-interval 20ms -- leak blocks graphs",
            "\nsampling: 32 of the 32 samples",
            "\n$ gpumem leaks ",
            "\ngrows steadily, +",
            &format!(" ← remember leak.c:{}", faults[0]),
            &format!("\nThe fault is in line {line} of demo/leak.c"),
            &format!("\n> {line:>4}  "),
            "\n$ gpumem graphs ",
            "\ngraph cache on: ",
            "\n$ gpumem report ",
            "gpumem top",
            "gpumem help memory-grows",
        ],
    );
    assert!(!ran.out.contains('\u{1b}'), "no colors where no terminal is: {}", ran.out);
    let pid = ran.out.split("\n$ gpumem leaks ").nth(1).and_then(|rest| rest.lines().next()).expect("a process");
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    assert_ne!(name.trim(), "leak", "the server goes on running");
    let page = artifacts().gpumem.with_file_name("demo").join("report.html");
    assert!(std::fs::read_to_string(&page).expect("the page").contains("remember leak.c"), "{}", page.display());
}

/// The demo names each missing part, and what builds it.
#[test]
fn a_demo_without_its_parts_says_what_builds_them() {
    let scratch = Scratch::new();
    let alone = scratch.path().join("gpumem-demo");
    std::fs::copy(artifacts().gpumem.with_file_name("gpumem-demo"), &alone).expect("a copy");
    let ran = command(&alone).native();
    let said = format!("{} is not built: make run builds it", alone.with_file_name("libgpumem.so").display());
    assert!(ran.code == 1 && ran.err.contains(&said) && ran.out.is_empty(), "{} {}{}", ran.code, ran.out, ran.err);
    let ran = command(&alone).arg("--fast").native();
    assert!(ran.code == 1 && ran.err.contains("--fast: allowed are --simulator and --interval TIME"), "{}", ran.err);
}

/// Neither the demo nor an installation waits for what it does not use; the demo says for how long it does.
#[test]
fn only_what_is_used_is_built() {
    let of = |goal: &str, profile: &str| {
        let dry = make(&["-n", goal, "NO_BUILD=", &format!("PROFILE={profile}")]);
        let out = dry.native().ok().out;
        let built = out.split_whitespace().skip_while(|word| *word != "-p").collect::<Vec<_>>();
        let names = built.windows(2).filter(|pair| pair[0] == "-p").map(|pair| pair[1].to_owned());
        (names.collect::<Vec<_>>(), out)
    };
    let (built, said) = of("run", "debug");
    assert_eq!(built, ["gpumem-shim", "gpumem-inspector", "gpumem-demo", "gpumem-sim-cuda"], "{said}");
    assert!(said.contains("building gpumem, libgpumem.so and a simulated driver"), "{said}");
    assert!(said.contains("--no-default-features"), "nobody waits for TLS here: {said}");
    let (built, said) = of("build", "release");
    assert_eq!(built, ["gpumem-shim", "gpumem-inspector"], "{said}");
    for (goal, profile) in [("build", "release"), ("build-tests", "debug"), ("run", "release")] {
        let (_, said) = of(goal, profile);
        assert!(!said.contains("--no-default-features"), "what is tested or installed has TLS: {said}");
    }
}

/// Installed as packages have it: small, and with all that a report of a bug needs.
#[test]
fn what_is_installed_has_no_names_for_debuggers_and_knows_its_lines() {
    let scratch = Scratch::new();
    let root = scratch.path().join("usr");
    make(&["install", &format!("PREFIX={}", root.display())]).native().ok();
    for file in ["bin/gpumem", "lib/libgpumem.so"] {
        let sections = command("readelf").args(["-SW"]).arg(root.join(file)).native().ok().out;
        for gone in [".debug_info", ".symtab"] {
            assert!(!sections.contains(gone), "{file} has {gone}: {sections}");
        }
        assert!(sections.contains(".dynsym"), "{sections}");
    }
    // What a contained panic names: its file, with the line beside it.
    let library = std::fs::read(root.join("lib/libgpumem.so")).expect("the library");
    let place = b"src/pool/thread.rs";
    assert!(library.windows(place.len()).any(|bytes| bytes == place), "a panic would not name its file");
    let ran = command(root.join("bin/gpumem")).arg("--version").native().ok();
    assert!(ran.out.starts_with("gpumem "), "{}", ran.out);
}
