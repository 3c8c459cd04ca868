//! The `gpumem` command: see the library for everything.

fn main() -> std::process::ExitCode {
    gpumem_inspector::main()
}
