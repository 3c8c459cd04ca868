//! Gives the library the driver's SONAME, and keeps it loaded: streams may
//! still run when a program closes it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // The library's cuGetProcAddress must give out the library's own functions, as the real driver does,
    // and not those of a preloaded library.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
