//! How libgpumem.so is linked.

fn main() {
    // Our own names bind to our own functions: what comes before us in the global scope under such a
    // name (another interposer, a program's variable) is not what we hand out as ours.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    println!("cargo:rerun-if-changed=build.rs");
}
