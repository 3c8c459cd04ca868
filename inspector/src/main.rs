//! The `gpumem` command. All of its code is in the library.

fn main() -> std::process::ExitCode {
    gpumem_inspector::main()
}
