//! Gives the library the driver's SONAME, and keeps it loaded: streams may
//! still run when a program closes it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // Its own cuGetProcAddress must hand out its own functions, as the real driver does,
    // not those of what is preloaded.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
