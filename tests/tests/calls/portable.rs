//! Machines on which the library may run.

use gpumem_tests::harness::artifacts::repository;
use gpumem_tests::harness::run::Scratch;
use gpumem_tests::harness::{Program, artifacts, client, command};
use gpumem_tests::skipped::{installed, skipped};
use gpumem_wire::processor::{FEATURES, SECTION, lacking_here};
use std::path::{Path, PathBuf};

/// Every Rust source under a folder.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a source folder").map(|entry| entry.expect("an entry").path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let below = folders.iter().flat_map(|folder| sources(folder));
    below.chain(files.into_iter().filter(|path| path.extension().is_some_and(|end| end == "rs"))).collect()
}

/// Versions of symbols differ between machines and architectures: none is written down.
#[test]
fn no_symbol_version_is_hard_coded() {
    let all = sources(&repository().join("shim"));
    assert!(all.len() > 40);
    for path in all {
        let text = std::fs::read_to_string(&path).expect("UTF-8");
        for forbidden in ["GLIBC_2", "GLIBC_PRIVATE", ".symver", "@@"] {
            assert!(!text.contains(forbidden), "{}: {forbidden}", path.display());
        }
    }
}

/// Nothing of a vendor is linked: no CUDA, no HIP, and no library beyond the C library's.
#[test]
fn no_vendor_library_is_linked() {
    let ran = command("readelf").args(["-d", "-W"]).arg(&artifacts().shim).native().ok();
    let needed: Vec<&str> =
        ran.out.lines().filter_map(|line| line.split_once("Shared library: [")?.1.split(']').next()).collect();
    assert!(!needed.is_empty());
    for library in needed {
        let known = ["libc.so", "libgcc_s.so", "ld-linux", "libm.so", "libdl.so", "libpthread.so"];
        assert!(known.iter().any(|known| library.starts_with(known)), "{library} is needed");
    }
}

/// The library exports the names of the tables, those of gpumem.h, and the functions that find functions. It exports no
/// others.
#[test]
fn no_name_is_exported_by_accident() {
    let ran = command("nm").args(["-D", "--defined-only", "-P"]).arg(&artifacts().shim).native().ok();
    let names: Vec<&str> = ran.out.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(names.len() > 150);
    for name in names {
        let ours = ["cu", "cuda", "hip", "gpumem_"].iter().any(|prefix| name.starts_with(prefix));
        assert!(ours || ["dlsym", "dlvsym", "dlclose", "pthread_key_delete"].contains(&name), "{name} is exported");
    }
}

/// glibc 2.28 has all functions that the library needs from the C library. The test looks up the oldest version of each
/// name in the glibc of this machine, since newer names would link here and be missing elsewhere. Weak names may be missing.
#[test]
fn no_function_is_newer_than_glibc_2_28() {
    // Before 2.33 these were in the part that is linked statically.
    const STATIC_PART: [&str; 8] = ["stat", "fstat", "lstat", "fstatat", "stat64", "fstat64", "lstat64", "fstatat64"];
    let symbols = |file: &Path| {
        let ran = command("objdump").arg("-T").arg(file).native().ok();
        let of_line = |line: &str| {
            let (head, rest) = line.split_once('\t')?;
            let words: Vec<&str> = rest.split_whitespace().collect();
            let version = words.iter().find_map(|word| word.trim_matches(['(', ')']).strip_prefix("GLIBC_"));
            let minor = version.and_then(|version| version.split('.').nth(1)?.parse::<u32>().ok());
            Some(((*words.last()?).to_owned(), head.contains("*UND*"), head.contains(" w "), minor))
        };
        ran.out.lines().filter_map(of_line).collect::<Vec<_>>()
    };
    let maps = std::fs::read_to_string("/proc/self/maps").expect("its own maps");
    let libc = maps.lines().find_map(|line| line.split_whitespace().last().filter(|path| path.contains("/libc.so")));
    let there = symbols(Path::new(libc.expect("a C library")));
    let wanted = symbols(&artifacts().shim);
    let mut checked = 0;
    for (name, ..) in wanted.iter().filter(|(_, wanted, weak, minor)| *wanted && !weak && minor.is_some()) {
        if STATIC_PART.contains(&name.as_str()) {
            continue;
        }
        let oldest =
            there.iter().filter(|(known, wanted, ..)| known == name && !wanted).filter_map(|(.., minor)| *minor);
        // The dynamic linker has some of its own.
        let Some(oldest) = oldest.min() else { continue };
        assert!(oldest <= 28, "{name} came with glibc 2.{oldest}");
        checked += 1;
    }
    assert!(checked > 50, "{checked} symbols");
}

/// The library of `make dist`, if it was made, runs on glibc 2.28.
#[test]
fn released_library_runs_on_old_glibc() {
    let dist = repository().join("dist");
    let archives = std::fs::read_dir(dist).into_iter().flatten().map(|entry| entry.expect("an entry").path());
    for archive in archives.filter(|path| path.extension().is_some_and(|end| end == "gz")) {
        let script = r#"d=$(mktemp -d) && tar -xzf "$0" -C "$d" && find "$d" -name '*.so' -o -name gpumem -type f -perm -1 | xargs -n1 readelf -V -W; rm -rf "$d""#;
        let ran = command("sh").args(["-c", script]).arg(&archive).native().ok();
        let minors = ran
            .out
            .split("GLIBC_2.")
            .skip(1)
            .filter_map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u32>().ok());
        let newest = minors.max().expect("versions of glibc's symbols");
        assert!(newest <= 28, "{}: needs glibc 2.{newest}", archive.display());
    }
}

/// The library builds for aarch64, if that target is installed.
#[test]
fn checks_for_aarch64() {
    const TARGET: &str = "aarch64-unknown-linux-gnu";
    let rustc = command("rustc").args(["--print", "target-libdir", "--target", TARGET]).native();
    if rustc.code != 0 || !Path::new(rustc.out.trim()).exists() {
        skipped(format_args!("rustup's target {TARGET} is not installed"), "rustup target add");
        return;
    }
    let target = artifacts().stage.parent().expect("the suite's folder").join("aarch64");
    let mut cargo = std::process::Command::new(env!("CARGO"));
    cargo.args(["check", "--offline", "-q", "-p", "gpumem-shim", "--target", TARGET]).arg("--target-dir").arg(target);
    let output = cargo.current_dir(repository()).output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A feature as [`SECTION`] has it.
fn bit(feature: &str) -> u64 {
    1 << FEATURES.iter().position(|known| known.name == feature).expect("a feature that is known")
}

/// A copy of the library that says that it was built to use this feature.
fn library_that_needs(folder: &Path, feature: &str) -> PathBuf {
    let mut bytes = std::fs::read(&artifacts().shim).expect("the library");
    let sections = command("readelf").args(["-S", "-W"]).arg(&artifacts().shim).native().ok().out;
    let words = sections.lines().find_map(|line| line.split_once(SECTION)).expect("what its build assumes").1;
    let offset = words.split_whitespace().nth(2).and_then(|word| usize::from_str_radix(word, 16).ok());
    let offset = offset.expect("where that is");
    assert_eq!(bytes[offset..offset + 8], [0; 8], "the tests' own build runs on every processor");
    bytes[offset..offset + 8].copy_from_slice(&bit(feature).to_le_bytes());
    let library = folder.join("libgpumem.so");
    std::fs::write(&library, bytes).expect("a copy");
    library
}

/// The program runs as natively, and one line says what is missing. Nothing is recorded, and nothing is left of the
/// preload for its children.
#[track_caller]
fn steps_aside(program: &Program, preloaded: &Program, library: &Path, missing: &str) {
    let native = program.native().ok();
    let ran = preloaded.clone().env("LD_PRELOAD", library).preloaded().ok();
    assert_eq!(ran.out, native.out);
    let [line] = ran.ours()[..] else { panic!("{}", ran.err) };
    assert!(line.contains(&format!("this processor has no {missing}")), "{line}");
    assert!(line.contains("the program runs without gpumem"), "{line}");
    assert!(ran.ledgers().is_empty());
}

#[test]
fn a_library_for_another_processor_steps_aside() {
    let Some(missing) = lacking_here(u64::MAX) else {
        skipped("the processor has every feature that a compiler can be told to use", "an older processor");
        return;
    };
    let scratch = Scratch::new();
    let library = library_that_needs(scratch.path(), missing);
    let many = client("many").arg("50");
    steps_aside(&many, &many, &library, missing);
    let looks = command("sh").args(["-c", "env | grep -c ^LD_PRELOAD= || exit 0"]);
    steps_aside(&looks, &looks, &library, missing);
    let quiet = many.clone().env("LD_PRELOAD", &library).env("GPUMEM_LOG", "quiet").preloaded().ok();
    assert_eq!(quiet.ours(), [""; 0]);
    // Another library that is preloaded stays so.
    let other = artifacts().clients.join("libwrap.so");
    let both = std::ffi::OsString::from(format!("{}:{}", library.display(), other.display()));
    let looks = command("sh").args(["-c", "echo $LD_PRELOAD"]).env("LD_PRELOAD", both).preloaded().ok();
    assert_eq!(looks.out.trim(), other.to_str().expect("UTF-8"));
    // What the processor has, it has for this library, too.
    if let Some(has) = FEATURES.iter().find(|feature| lacking_here(bit(feature.name)).is_none()) {
        let library = library_that_needs(scratch.path(), has.name);
        let ran = many.env("LD_PRELOAD", library).preloaded().ok();
        assert_eq!((ran.ours(), ran.ledgers().len()), (vec![], 1));
    }
}

/// A processor with nothing that not every x86-64 has, by qemu's user mode.
#[test]
fn runs_on_every_x86_64() {
    if !cfg!(target_arch = "x86_64") {
        skipped("this is no x86-64", "an x86-64");
        return;
    }
    let Some(qemu) = installed("qemu-x86_64-static") else { return };
    let many = client("many").arg("50");
    let on = |cpu: &str| {
        let program = artifacts().clients.join("many");
        command(&qemu).args(["-cpu", cpu]).arg(program).arg("50")
    };
    let (native, emulated) = (many.native().ok(), on("qemu64").preloaded().ok());
    assert_eq!(emulated.out, native.out);
    assert_eq!(emulated.ours(), [""; 0]);
    let [ledger] = &emulated.ledgers()[..] else { panic!("a ledger: {}", emulated.err) };
    ledger.agrees_with(&emulated.json()).complete();
    let scratch = Scratch::new();
    let library = library_that_needs(scratch.path(), "avx2");
    steps_aside(&many, &on("qemu64"), &library, "avx2");
}
