//! Meanings of names: the items of each module and its imports.

use super::super::source::{File, Module};
use std::collections::{BTreeSet, HashMap, HashSet};
use syn::parse::Parser;
use syn::visit::{self, Visit};

/// An item: the module that has it, and its name.
pub type Def = (Module, String);

/// Paths that were looked for, and where.
type Seen = HashSet<(Module, Vec<String>)>;

/// One module, which is a file or stands within one.
#[derive(Default)]
struct Scope {
    items: HashSet<String>,
    /// Imports by their name here, as they are written.
    imports: HashMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
}

#[derive(Default)]
pub struct Names {
    scopes: HashMap<Module, Scope>,
    /// Modules that only tests have.
    tests: BTreeSet<Module>,
}

/// True if something is built for tests only.
pub fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    let is = |attribute: &syn::Attribute| match &attribute.meta {
        syn::Meta::List(list) => attribute.path().is_ident("cfg") && list.tokens.to_string() == "test",
        _ => attribute.path().is_ident("test"),
    };
    attributes.iter().any(is)
}

/// The variables of a `thread_local!`.
pub fn statics(item: &syn::ItemMacro) -> Vec<syn::ItemStatic> {
    let parser = |input: syn::parse::ParseStream| {
        let mut found = Vec::new();
        while !input.is_empty() {
            found.push(input.parse::<syn::ItemStatic>()?);
        }
        Ok(found)
    };
    match item.mac.path.segments.last() {
        Some(last) if last.ident == "thread_local" => parser.parse2(item.mac.tokens.clone()).unwrap_or_default(),
        _ => Vec::new(),
    }
}

impl Names {
    /// Reads the items of all files. A file comes after the one that declares it.
    pub fn read(files: &[File]) -> Self {
        let mut names = Self::default();
        for file in files {
            names.scope(&file.module, &file.parsed.items);
        }
        names
    }

    pub fn is_for_tests(&self, module: &Module) -> bool {
        (1..=module.len()).any(|len| self.tests.contains(&module[..len]))
    }

    fn scope(&mut self, module: &Module, items: &[syn::Item]) {
        let mut scope = Scope::default();
        for item in items {
            match item {
                syn::Item::Const(item) => drop(scope.items.insert(item.ident.to_string())),
                syn::Item::Enum(item) => drop(scope.items.insert(item.ident.to_string())),
                syn::Item::Fn(item) => drop(scope.items.insert(item.sig.ident.to_string())),
                syn::Item::Static(item) => drop(scope.items.insert(item.ident.to_string())),
                syn::Item::Struct(item) => drop(scope.items.insert(item.ident.to_string())),
                syn::Item::Trait(item) => drop(scope.items.insert(item.ident.to_string())),
                syn::Item::Type(item) => drop(scope.items.insert(item.ident.to_string())),
                syn::Item::Union(item) => drop(scope.items.insert(item.ident.to_string())),
                syn::Item::Macro(item) => {
                    let statics = statics(item);
                    scope.items.extend(statics.iter().map(|item| item.ident.to_string()));
                }
                syn::Item::Mod(item) => {
                    let inner = [&module[..], &[item.ident.to_string()]].concat();
                    if is_for_tests(&item.attrs) {
                        self.tests.insert(inner.clone());
                    }
                    if let Some((_, items)) = &item.content {
                        self.scope(&inner, items);
                    }
                    continue;
                }
                _ => {}
            }
            // Also what the body of a function imports.
            Imports(&mut scope).visit_item(item);
        }
        self.scopes.insert(module.clone(), scope);
    }

    /// The item of this crate that a path leads to, and what the path has behind it. `None` for a module, and for what
    /// is not of this crate.
    pub fn find(&self, here: &Module, words: &[String]) -> Option<(Def, Vec<String>)> {
        self.walk(here, words, true, &mut HashSet::new())
    }

    /// True if a name is imported from another crate.
    pub fn is_foreign(&self, here: &Module, name: &str) -> bool {
        let imported = self.scopes.get(here).is_some_and(|scope| scope.imports.contains_key(name));
        imported && self.find(here, &[name.to_owned()]).is_none()
    }

    fn walk(&self, here: &Module, words: &[String], globs: bool, seen: &mut Seen) -> Option<(Def, Vec<String>)> {
        let (first, rest) = words.split_first()?;
        // Modules that import all of each other lead in a circle.
        if !seen.insert((here.clone(), words.to_vec())) {
            return None;
        }
        match first.as_str() {
            "crate" => return self.walk(&Module::new(), rest, true, seen),
            "self" => return self.walk(here, rest, true, seen),
            "super" => return self.walk(&here.split_last()?.1.to_vec(), rest, true, seen),
            _ => {}
        }
        let inner = [&here[..], std::slice::from_ref(first)].concat();
        if !rest.is_empty() && self.scopes.contains_key(&inner) {
            return self.walk(&inner, rest, true, seen);
        }
        let scope = self.scopes.get(here)?;
        if scope.items.contains(first) {
            return Some(((here.clone(), first.clone()), rest.to_vec()));
        }
        if let Some(path) =
            scope.imports.get(first).filter(|path| path[0] != *first || self.scopes.contains_key(&inner))
        {
            return self.walk(here, &[&path[..], rest].concat(), false, seen);
        }
        // An import is found without the globs: what one of them brings is not what another begins with.
        let globs = scope.globs.iter().filter(|_| globs);
        globs.map(|path| [&path[..], words].concat()).find_map(|path| self.walk(here, &path, false, seen))
    }
}

/// Collects what `use` brings into a module.
struct Imports<'a>(&'a mut Scope);

impl Imports<'_> {
    fn tree(&mut self, before: &[String], tree: &syn::UseTree) {
        let with = |ident: &syn::Ident| [before, &[ident.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.tree(&with(&path.ident), &path.tree),
            syn::UseTree::Name(name) if name.ident == "self" => {
                self.0.imports.extend(before.last().map(|last| (last.clone(), before.to_vec())));
            }
            syn::UseTree::Name(name) => drop(self.0.imports.insert(name.ident.to_string(), with(&name.ident))),
            syn::UseTree::Rename(name) => drop(self.0.imports.insert(name.rename.to_string(), with(&name.ident))),
            syn::UseTree::Glob(_) => self.0.globs.push(before.to_vec()),
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.tree(before, tree)),
        }
    }
}

impl<'ast> Visit<'ast> for Imports<'_> {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.tree(&[], &item.tree);
    }

    fn visit_item_mod(&mut self, _: &'ast syn::ItemMod) {}

    fn visit_item(&mut self, item: &'ast syn::Item) {
        visit::visit_item(self, item);
    }
}
