//! One frame of a call stack, and how it is written.

use super::words::cut;
use crate::text::{clean, file_name};
use std::borrow::Cow;
use std::rc::Rc;

/// One function at an address. An address has several if functions were inlined.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Frame {
    /// Return address; 0 for a Python frame.
    pub address: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<Rc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<Rc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// Path of the file with the code, as the process saw it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub module: Option<Rc<str>>,
    /// Address within that file (an ELF virtual address).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub module_address: Option<u64>,
    /// True if the function was inlined into the next frame.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub inlined: bool,
    /// True for a Python frame: the file is a Python source.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub python: bool,
}

impl Frame {
    /// Returns the frame on one line: function, then file and line if known, else the module.
    pub(crate) fn text(&self) -> String {
        self.words(self.function.as_deref())
    }

    /// As [`Frame::text`], without parameters: the line number distinguishes overloads.
    pub(crate) fn label(&self) -> String {
        let function = self.function.as_deref().map(|function| cut(function, MOST_WORDS));
        self.words(function.map(without_parameters))
    }

    /// For viewers that show file and line separately: the function, else the module and the offset in it.
    pub(crate) fn name(&self) -> String {
        clean(&self.function.as_deref().map_or_else(|| self.text().into(), Cow::Borrowed)).into_owned()
    }

    fn words(&self, function: Option<&str>) -> String {
        // Longest name shown in text; a row of JSON has all of it.
        let function = function.map(|function| cut(function, MOST_WORDS));
        let module = self.module.as_deref().map(file_name);
        match (function, &self.file, &module) {
            (Some(function), Some(file), _) => {
                let line = self.line.map(|line| format!(":{line}")).unwrap_or_default();
                format!("{function} {}{line}", file_name(file))
            }
            (Some(function), None, Some(module)) => format!("{function} ({module})"),
            (Some(function), None, None) => function.to_owned(),
            (None, _, Some(module)) => format!("{module}+{:#x}", self.module_address.unwrap_or(0)),
            (None, _, None) => format!("{:#x}", self.address),
        }
    }
}

/// Most bytes of a function's name in text.
const MOST_WORDS: usize = 4096;

/// `ns::f<int>(void*)::{lambda(int)#1}::operator()(int) const` without its last list in parentheses.
fn without_parameters(name: &str) -> &str {
    let body = name.strip_suffix(" const").unwrap_or(name);
    if !body.ends_with(')') {
        return name;
    }
    let mut depth = 0_usize;
    for (at, c) in body.char_indices().rev() {
        match c {
            ')' => depth += 1,
            '(' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            let cut = &body[..at];
            // `(anonymous namespace)` and the like are no parameters; `operator()` keeps its name.
            let named = cut.ends_with(|c: char| c.is_alphanumeric() || "_>)]=<+-*/%!&|^~,\"".contains(c));
            return if named && !cut.ends_with("operator") { cut } else { name };
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_leave_parameters_out() {
        for (name, label) in [
            ("cudaMalloc", "cudaMalloc"),
            ("pool::alloc(unsigned long, unsigned long*)", "pool::alloc"),
            ("f(int (*)(char), int)", "f"),
            ("g<void (int)>(int) const", "g<void (int)>"),
            ("h(int)::{lambda(float)#1}::operator()(float) const", "h(int)::{lambda(float)#1}::operator()"),
            ("s::operator()", "s::operator()"),
            ("operator==(a, b)", "operator=="),
            ("<a::B as c::D>::e", "<a::B as c::D>::e"),
            ("(anonymous namespace)", "(anonymous namespace)"),
            ("odd)", "odd)"),
            (")(", ")("),
            ("", ""),
        ] {
            assert_eq!(without_parameters(name), label);
        }
    }
}
