//! How libgpumem.so is compiled and linked.

fn main() {
    frame_pointers();
    // Our own names bind to our own functions: what comes before us in the global scope under such a
    // name (another interposer, a program's variable) is not what we hand out as ours.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // Without a version: docs/decisions/packages.md has the reason.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libgpumem.so");
    println!("cargo:rerun-if-changed=build.rs");
}

/// The hooks find their caller through their own frame pointer. `.cargo/config.toml` forces it, but
/// RUSTFLAGS in the environment replaces what is set there, and a build from outside the source tree
/// does not read it: the stacks of such a library would be garbage, without a word.
fn frame_pointers() {
    println!("cargo:rerun-if-env-changed=CARGO_ENCODED_RUSTFLAGS");
    let flags = std::env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let forced = flags.split('\u{1f}').any(|flag| {
        let value = flag.trim_start_matches("-C").trim_start().strip_prefix("force-frame-pointers");
        value.is_some_and(|value| matches!(value, "" | "=yes" | "=y" | "=on" | "=true" | "=always"))
    });
    if !forced {
        eprintln!(
            "libgpumem.so needs -Cforce-frame-pointers=yes, and the flags of this build are {:?}: build inside the \
             source tree, and add the flag to RUSTFLAGS where that is set",
            flags.split('\u{1f}').collect::<Vec<_>>()
        );
        std::process::exit(1);
    }
}
