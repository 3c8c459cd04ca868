//! Calls of our own exported names, as the loader binds them.
//!
//! libamdhip64 is not linked symbolically: where one of its functions calls
//! another by name, a preloaded library of that name gets the call. These
//! jumps go through the global offset table, which no compiler and no linker
//! may shorten for a name that is exported and can be replaced.

use crate::abi::{H, Out};

macro_rules! through_the_loader {
    ($($name:ident = $symbol:literal ($($a:ident: $t:ty),*);)*) => { $(
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        pub extern "C" fn $name($($a: $t),*) -> u32 {
            std::arch::naked_asm!(concat!("jmp qword ptr [rip + ", $symbol, "@GOTPCREL]"))
        }

        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        pub extern "C" fn $name($($a: $t),*) -> u32 {
            std::arch::naked_asm!(
                concat!("adrp x16, :got:", $symbol),
                concat!("ldr x16, [x16, :got_lo12:", $symbol, "]"),
                "br x16",
            )
        }
    )* };
}

through_the_loader! {
    malloc = "hipMalloc"(out: Out<u64>, bytes: usize);
    malloc_pitch = "hipMallocPitch"(out: Out<u64>, pitch: Out<usize>, width: usize, height: usize);
    host_malloc = "hipHostMalloc"(out: Out<u64>, bytes: usize, flags: u32);
    host_free = "hipHostFree"(ptr: u64);
    array_destroy = "hipArrayDestroy"(array: H);
    instantiate_with_flags = "hipGraphInstantiateWithFlags"(out: Out<H>, graph: H, flags: u64);
}
