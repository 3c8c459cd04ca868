//! Gives the library the runtime's SONAME, and its exports the version node of
//! the same name, as the real one has.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-check-cfg=cfg(runtime11)");
    println!("cargo:rustc-check-cfg=cfg(runtime12)");
    println!("cargo:rustc-cfg=runtime11");
    println!("cargo:rustc-cfg=runtime12");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcudart.so.11.0");
    println!("cargo:rustc-cdylib-link-arg=-fuse-ld=bfd");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--default-symver");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // What it calls of its own exports must be its own, as in the real runtime,
    // not those of what is preloaded.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
