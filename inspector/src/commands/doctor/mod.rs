//! `gpumem doctor`: checks, each with an id, a finding and a fix.

pub mod elf;

pub use elf::beyond_reach;
