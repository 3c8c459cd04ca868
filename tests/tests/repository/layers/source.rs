//! Reads the Rust files of a crate, from its root file on, and lists what each module uses of the others.
//!
//! A use is every path that leads into another file: in `use`, in code, in the tokens of a macro, and in an attribute
//! such as `#[serde(with = "crate::…")]`. It is also the call of a `macro_rules!` macro by its bare name, and an
//! inherent `impl` block for a type of another file: the methods of such a block can be called wherever the type is
//! known, without any path that leads to the block.
//!
//! Not followed: names that a glob import brings, besides the module of the glob itself, and calls by exported symbol
//! names. Files that `include!` names belong to the file with the `include!`, and are not read.

use super::methods::{self, Untold};
use super::reader::Reader;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// A module by its path below the crate's root; the root itself is empty.
pub type Module = Vec<String>;

/// A crate: its modules, each in its file.
pub struct Crate {
    pub modules: BTreeMap<Module, PathBuf>,
    pub uses: Vec<Use>,
    /// Calls of methods that another file has.
    pub calls: Vec<Use>,
    /// Calls of methods that several files have, of which it is not known which one is meant.
    pub untold: Vec<Untold>,
    pub functions: Vec<Function>,
    /// Lines of each file.
    pub lines: BTreeMap<PathBuf, usize>,
    files: Vec<File>,
}

/// One file that uses another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Use {
    pub from: Module,
    pub to: Module,
    pub file: PathBuf,
    pub line: usize,
    /// The used path, as it is written.
    pub path: String,
}

/// A function with a body.
pub struct Function {
    pub file: PathBuf,
    pub line: usize,
    pub name: String,
    pub lines: usize,
}

impl Crate {
    /// Reads a crate. `root` is its `lib.rs` or `main.rs`; paths are shown from `top` on.
    pub fn read(top: &Path, root: &Path) -> Self {
        let mut files = Vec::new();
        open(top, root, &Module::new(), root.parent().expect("a file has a folder"), &mut files);
        let mut all = Self {
            modules: BTreeMap::new(),
            uses: Vec::new(),
            calls: Vec::new(),
            untold: Vec::new(),
            functions: Vec::new(),
            lines: BTreeMap::new(),
            files: Vec::new(),
        };
        let mut macros: HashMap<String, BTreeSet<Module>> = HashMap::new();
        for file in &files {
            all.modules.insert(file.module.clone(), file.path.clone());
            all.lines.insert(file.path.clone(), file.text.lines().count());
            let mut named = Macros::default();
            named.visit_file(&file.parsed);
            for name in named.0 {
                macros.entry(name).or_default().insert(file.module.clone());
            }
        }
        for file in &files {
            let mut reader =
                Reader { file, known: &all.modules, macros: &macros, inside: Vec::new(), found: Vec::new() };
            reader.visit_file(&file.parsed);
            let found = reader.found;
            all.uses.extend(found.into_iter().filter(|found| found.from != found.to));
            let mut lengths = Lengths { file: &file.path, found: Vec::new() };
            lengths.visit_file(&file.parsed);
            all.functions.extend(lengths.found);
        }
        all.files = files;
        all
    }

    /// Finds whose methods are called. From then on these calls are uses, too, where circles are looked for.
    /// `room`: the room of a module.
    pub fn find_calls<'a>(&mut self, room: impl Fn(&Module) -> &'a str) {
        (self.calls, self.untold) = methods::read(&self.files, room);
    }

    /// The uses that make circles. What a module takes from its own parent is none: to be a part of something is no
    /// circle.
    fn crossings(&self) -> impl Iterator<Item = &Use> {
        self.uses
            .iter()
            .chain(&self.calls)
            .filter(|used| used.from.split_last().is_none_or(|(_, parent)| parent != used.to))
    }

    /// The uses between the modules of a circle.
    pub fn within(&self, circle: &[Module]) -> impl Iterator<Item = &Use> {
        self.crossings().filter(|used| circle.contains(&used.from) && circle.contains(&used.to))
    }

    /// Modules that use each other in a circle, one entry a circle.
    pub fn circles(&self) -> Vec<Vec<Module>> {
        let mut next: BTreeMap<&Module, BTreeSet<&Module>> = BTreeMap::new();
        for used in self.crossings() {
            next.entry(&used.from).or_default().insert(&used.to);
        }
        let reach = |from| {
            let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
            while let Some(module) = open.pop() {
                for &to in next.get(module).into_iter().flatten() {
                    if seen.insert(to) {
                        open.push(to);
                    }
                }
            }
            seen
        };
        let reached: BTreeMap<&Module, BTreeSet<&Module>> =
            self.modules.keys().map(|from| (from, reach(from))).collect();
        let mut circles = BTreeSet::new();
        for (from, to) in &reached {
            if to.contains(from) {
                let circle: Vec<Module> =
                    to.iter().filter(|other| reached[*other].contains(from)).map(|&other| other.clone()).collect();
                circles.insert(circle);
            }
        }
        circles.into_iter().collect()
    }
}

/// A file of the crate, and the module that it is.
pub(super) struct File {
    pub(super) module: Module,
    pub(super) path: PathBuf,
    text: String,
    pub(super) parsed: syn::File,
}

/// Reads a file and those of the modules that it declares. `children` is the folder of their files.
fn open(top: &Path, path: &Path, module: &Module, children: &Path, files: &mut Vec<File>) {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut declared = Vec::new();
    declarations(&parsed.items, module, path.parent().expect("a file has a folder"), children, &mut declared);
    let shown = path.strip_prefix(top).unwrap_or(path).to_owned();
    files.push(File { module: module.clone(), path: shown, text, parsed });
    for (module, path) in declared {
        let folder = path.parent().expect("a file has a folder");
        let children = match path.file_stem().and_then(|stem| stem.to_str()) {
            Some("mod") => folder.to_owned(),
            Some(stem) => folder.join(stem),
            None => unreachable!("a Rust file has a name"),
        };
        open(top, &path, &module, &children, files);
    }
}

/// The `mod name;` of a file, with the files that they lead to.
fn declarations(
    items: &[syn::Item],
    module: &Module,
    here: &Path,
    children: &Path,
    found: &mut Vec<(Module, PathBuf)>,
) {
    for item in items {
        let syn::Item::Mod(item) = item else { continue };
        let name = item.ident.to_string();
        let inner: Module = module.iter().cloned().chain([name.clone()]).collect();
        match &item.content {
            Some((_, items)) => declarations(items, &inner, here, &children.join(&name), found),
            None => found.push((inner, file_of(item, here, children, &name))),
        }
    }
}

fn file_of(item: &syn::ItemMod, here: &Path, children: &Path, name: &str) -> PathBuf {
    for attribute in item.attrs.iter().filter(|attribute| attribute.path().is_ident("path")) {
        if let syn::Meta::NameValue(syn::MetaNameValue { value: syn::Expr::Lit(value), .. }) = &attribute.meta
            && let syn::Lit::Str(path) = &value.lit
        {
            return here.join(path.value());
        }
    }
    let flat = children.join(format!("{name}.rs"));
    if flat.exists() { flat } else { children.join(name).join("mod.rs") }
}

/// The names of the `macro_rules!` of a file.
#[derive(Default)]
struct Macros(Vec<String>);

impl Visit<'_> for Macros {
    fn visit_item_macro(&mut self, item: &syn::ItemMacro) {
        self.0.extend(item.ident.as_ref().map(ToString::to_string));
    }
}

/// Measures functions, from the signature to the closing brace.
struct Lengths<'a> {
    file: &'a Path,
    found: Vec<Function>,
}

impl Lengths<'_> {
    fn add(&mut self, signature: &syn::Signature, body: &syn::Block) {
        let (line, end) = (signature.span().start().line, body.span().end().line);
        let name = signature.ident.to_string();
        self.found.push(Function { file: self.file.to_owned(), line, name, lines: end + 1 - line });
    }
}

impl<'ast> Visit<'ast> for Lengths<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.add(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.add(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(body) = &item.default {
            self.add(&item.sig, body);
        }
        visit::visit_trait_item_fn(self, item);
    }
}
