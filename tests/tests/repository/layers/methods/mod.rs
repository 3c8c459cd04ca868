//! Whose methods a file calls.
//!
//! A method is found by the type of its receiver: that of `self`, of a field, of an argument, and of what functions
//! answer. What of a type comes from a trait is no use of the file that implements it.

mod body;
mod expr;
mod index;
mod known;
mod names;
mod ty;

use super::source::{File, Module, Use};
use body::{Body, Found};
use index::Index;
use names::{Names, is_for_tests};
use std::collections::{BTreeSet, HashMap};
use ty::{At, Bound, Ty};

/// A call of a method that several files may have.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Untold {
    pub from: Module,
    pub name: String,
    pub line: usize,
    /// The files that have a method of this name.
    pub to: Vec<Module>,
}

/// Returns the calls of methods, each as a use of the file that has the method; and those whose file is not known.
/// `room`: the room of a file.
///
/// If the receiver does not tell, a method is found by its name, which has to be the only one in the room.
pub fn read<'a>(files: &[File], room: impl Fn(&Module) -> &'a str) -> (Vec<Use>, Vec<Untold>) {
    let names = Names::read(files);
    let index = Index::read(&names, files);
    let (mut calls, mut untold) = (Vec::new(), Vec::new());
    for file in files.iter().filter(|file| !names.is_for_tests(&file.module)) {
        let mut found = Found::default();
        let place = |line| Use {
            from: file.module.clone(),
            to: Module::new(),
            file: file.path.clone(),
            line,
            path: String::new(),
        };
        let at = At {
            names: &names,
            aliases: &index.aliases,
            module: file.module.clone(),
            of: Ty::Unknown,
            params: Bound::new(),
        };
        items(&index, &at, &file.parsed.items, &mut found);
        let uses = found.calls.into_iter().map(|(to, line, path)| Use { to, path, ..place(line) });
        calls.extend(uses.filter(|used| used.from != used.to));
        for (name, line) in found.untold {
            let here = index.all_named(&name).filter(|to| room(to) == room(&file.module));
            let to: Vec<Module> = here.cloned().collect::<BTreeSet<_>>().into_iter().collect();
            match to.as_slice() {
                [] => {}
                [to] if *to == file.module => {}
                [to] if !known::COMMON.contains(&&*name) => {
                    calls.push(Use { to: to.clone(), path: name, ..place(line) })
                }
                _ => untold.push(Untold { from: file.module.clone(), name, line, to }),
            }
        }
    }
    (calls, untold)
}

/// Goes through the functions among these items.
fn items(index: &Index, at: &At, items_of: &[syn::Item], found: &mut Found) {
    for item in items_of {
        match item {
            syn::Item::Fn(item) if !is_for_tests(&item.attrs) => {
                Body::function(index, at, &item.sig, &item.block, found);
            }
            syn::Item::Impl(item) if !is_for_tests(&item.attrs) => {
                let mut at = at.within(&item.generics);
                at.of = at.ty(&item.self_ty);
                for part in &item.items {
                    if let syn::ImplItem::Fn(part) = part
                        && !is_for_tests(&part.attrs)
                    {
                        Body::function(index, &at, &part.sig, &part.block, found);
                    }
                }
            }
            syn::Item::Trait(item) => {
                let mut at = at.within(&item.generics);
                at.of = Ty::Own((at.module.clone(), item.ident.to_string()), Vec::new());
                for part in &item.items {
                    if let syn::TraitItem::Fn(syn::TraitItemFn { sig, default: Some(block), .. }) = part {
                        Body::function(index, &at, sig, block, found);
                    }
                }
            }
            syn::Item::Const(syn::ItemConst { expr, .. }) | syn::Item::Static(syn::ItemStatic { expr, .. }) => {
                let locals = vec![HashMap::new()];
                Body { index, at: at.clone(), locals, found }.expr(expr, &Ty::Unknown);
            }
            syn::Item::Mod(item) if !is_for_tests(&item.attrs) => {
                let mut at = at.clone();
                at.module.push(item.ident.to_string());
                item.content.iter().for_each(|(_, inner)| items(index, &at, inner, found));
            }
            _ => {}
        }
    }
}
