//! Answers about files, shared by the processes that have mapped them: a hundred PyTorch processes have one libtorch.

use super::question::{Content, Symbol, SymbolDetail};
use rustc_hash::FxHashMap;
use std::cell::{Cell, RefCell};

/// Bytes that are kept. Beyond this all answers are forgotten.
const MOST_BYTES: usize = 32 << 20;

type Asked = (Content, SymbolDetail, u64);

/// Known answers about files, by the files' content.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    symbols: RefCell<FxHashMap<Asked, Vec<Symbol>>>,
    bytes: Cell<usize>,
}

impl Answers {
    /// Returns the functions at an address of a file, if they were asked for before.
    pub(super) fn get(&self, content: Content, what: SymbolDetail, address: u64) -> Option<Vec<Symbol>> {
        self.symbols.borrow().get(&(content, what, address)).cloned()
    }

    pub(super) fn keep(&self, content: Content, what: SymbolDetail, address: u64, symbols: &[Symbol]) {
        let texts = symbols.iter().map(|symbol| symbol.function.len() + symbol.file.as_ref().map_or(0, String::len));
        let bytes = texts.sum::<usize>() + size_of_val(symbols) + size_of::<(Asked, Vec<Symbol>)>();
        if self.bytes.get() + bytes > MOST_BYTES {
            self.symbols.borrow_mut().clear();
            self.bytes.set(0);
        }
        if bytes <= MOST_BYTES {
            self.bytes.set(self.bytes.get() + bytes);
            self.symbols.borrow_mut().insert((content, what, address), symbols.to_vec());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_of_one_content_and_take_bounded_memory() {
        let (one, other) = (Content([1; 7]), Content([2; 7]));
        let named = |bytes: usize| vec![Symbol { function: "f".repeat(bytes), ..Symbol::default() }];
        let answers = Answers::default();
        answers.keep(one, SymbolDetail::Full, 8, &named(10));
        let has = |content, what, address| answers.get(content, what, address).is_some();
        assert!(has(one, SymbolDetail::Full, 8));
        assert!(
            !has(other, SymbolDetail::Full, 8) && !has(one, SymbolDetail::Name, 8) && !has(one, SymbolDetail::Full, 9)
        );
        (0..40).for_each(|address| answers.keep(other, SymbolDetail::Full, address, &named(1 << 20)));
        assert!(!has(one, SymbolDetail::Full, 8) && has(other, SymbolDetail::Full, 39));
        answers.keep(one, SymbolDetail::Full, 8, &named(MOST_BYTES));
        assert!(!has(one, SymbolDetail::Full, 8) && answers.bytes.get() <= MOST_BYTES);
    }
}
