//! Names that a background thread looks up while the view shows addresses.
//!
//! Reading a program's debug information may take seconds. A view that must not wait puts names off: it gets addresses,
//! and another thread looks up the [wanted](Symbols::wanted) ones in its own [`Symbols`] of the same process. Its
//! answers are plain data, and are [learned](Symbols::learn).

use super::question::Symbol;
use super::{Symbols, runtime};
use rustc_hash::FxHashSet;
use std::cell::RefCell;

/// Result of another thread's lookup of an address.
#[derive(Debug)]
pub(crate) struct Named {
    address: u64,
    /// True if its function belongs to a GPU runtime.
    runtime: bool,
    symbols: Vec<Symbol>,
}

/// Addresses whose names were asked for, each once, in the order of the questions.
#[derive(Default)]
pub(super) struct Wanted {
    known: RefCell<FxHashSet<u64>>,
    order: RefCell<Vec<u64>>,
}

impl Symbols {
    /// Puts off all names from here on.
    pub(crate) fn put_off(&mut self) {
        self.later = Some(Wanted::default());
    }

    /// True if names are put off.
    pub(crate) fn waits_for_names(&self) -> bool {
        self.later.is_some()
    }

    /// True if the name of an address is not known yet and will be. Adds the address to the wanted ones.
    pub(super) fn puts_off(&self, address: u64) -> bool {
        let Some(wanted) = self.later.as_ref().filter(|_| self.is_unnamed(address)) else { return false };
        if wanted.known.borrow_mut().insert(address) {
            wanted.order.borrow_mut().push(address);
        }
        true
    }

    fn is_unnamed(&self, address: u64) -> bool {
        let known = self.carried.contains_key(&address) || self.resolved.borrow().contains_key(&address);
        let of_file = self.modules.find(address).is_some_and(|module| module.path.starts_with('/'));
        self.enabled && !known && of_file
    }

    /// True if an address has no name yet.
    pub(crate) fn is_put_off(&self, address: u64) -> bool {
        self.later.is_some() && self.is_unnamed(address)
    }

    /// True if the name of an address was asked for and is not known yet.
    pub(crate) fn is_awaited(&self, address: u64) -> bool {
        let asked = self.later.as_ref().is_some_and(|wanted| wanted.known.borrow().contains(&address));
        asked && self.is_unnamed(address)
    }

    /// Returns the wanted addresses whose names are still unknown, in the order of the questions.
    pub(crate) fn wanted(&self) -> Vec<u64> {
        let all = self.later.iter().flat_map(|wanted| wanted.order.borrow().clone());
        all.filter(|address| self.is_unnamed(*address)).collect()
    }

    /// Returns everything known about an address, for another thread.
    pub(crate) fn name_for_another(&self, address: u64) -> Named {
        let runtime = self.name(address).is_some_and(|name| runtime::is_function(&name));
        Named { address, runtime, symbols: self.symbols(address).unwrap_or_default() }
    }

    /// Stores the answer of another thread.
    pub(crate) fn learn(&self, named: &Named) {
        let Named { address, runtime, symbols } = named;
        let by_file = self.module(*address).is_some_and(runtime::is_library);
        self.runtime.borrow_mut().insert(*address, by_file || *runtime);
        self.resolved.borrow_mut().insert(*address, self.named(*address, symbols).into());
    }
}
