//! Call sites as text for lines on stderr: files, and offsets in them. Functions and lines would need the loader's lock
//! and reading of files; the inspector finds those.

use crate::shim::Shim;
use crate::stacks::modules::{self, Modules};
use crate::stranded;
use gpumem_wire::layout::StackRef;
use std::fmt::Write;

/// Number of frames that name a call site, from the program's innermost one outwards.
const FRAMES: usize = 3;

/// The modules loaded now.
pub(crate) struct Places<'a> {
    shim: &'a Shim,
    modules: Modules,
}

impl<'a> Places<'a> {
    pub(crate) fn now(shim: &'a Shim) -> Self {
        Self { shim, modules: modules::refresh() }
    }

    /// Returns a call site as files and offsets, the program's innermost first.
    pub(crate) fn of(&self, stack: StackRef) -> String {
        let frames = stranded::frames_of(self.shim, stack);
        let is_program = |pc: u64| self.modules.find(pc).is_some_and(|m| !stranded::is_runtime(m.path()));
        let first = frames.iter().position(|&pc| is_program(pc));
        let mut text = String::new();
        for &pc in frames.iter().skip(first.unwrap_or(0)).take(FRAMES) {
            let between = if text.is_empty() { "" } else { " < " };
            let _ = match self.modules.find(pc) {
                Some(module) => {
                    let name = module.path().rsplit(|&byte| byte == b'/').next().unwrap_or_default();
                    let name = if name.is_empty() { "[vdso]".into() } else { String::from_utf8_lossy(name) };
                    write!(text, "{between}{name}+{:#x}", pc.wrapping_sub(module.bias))
                }
                None => write!(text, "{between}{pc:#x}"),
            };
        }
        if text.is_empty() { "a call site without a stack".into() } else { text }
    }
}
