//! Reads the Rust files of a crate, from its root file on, and lists what each module uses of the others.
//!
//! A use is every path that leads into another file: in `use`, in code, in the tokens of a macro, and in an attribute
//! such as `#[serde(with = "crate::…")]`. It is also the call of a `macro_rules!` macro by its bare name, and an
//! inherent `impl` block for a type of another file: the methods of such a block can be called wherever the type is
//! known, without any path that leads to the block.
//!
//! Not followed: names that a glob import brings, besides the module of the glob itself, and calls by exported symbol
//! names. Files that `include!` names belong to the file with the `include!`, and are not read.

use proc_macro2::{Delimiter, LineColumn, Spacing, Span, TokenStream, TokenTree};
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
    pub functions: Vec<Function>,
    /// Lines of each file.
    pub lines: BTreeMap<PathBuf, usize>,
}

/// One file that uses another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Use {
    pub from: Module,
    pub to: Module,
    pub file: PathBuf,
    pub line: usize,
    /// What is used, as it is written.
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
        let mut all =
            Self { modules: BTreeMap::new(), uses: Vec::new(), functions: Vec::new(), lines: BTreeMap::new() };
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
        all
    }

    /// The uses that make circles. What a module takes from its own parent is none: to be a part of something is no
    /// circle.
    fn crossings(&self) -> impl Iterator<Item = &Use> {
        self.uses.iter().filter(|used| used.from.split_last().is_none_or(|(_, parent)| parent != used.to))
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
struct File {
    module: Module,
    path: PathBuf,
    text: String,
    parsed: syn::File,
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

/// Collects what one file uses.
struct Reader<'a> {
    file: &'a File,
    known: &'a BTreeMap<Module, PathBuf>,
    macros: &'a HashMap<String, BTreeSet<Module>>,
    /// The modules within the file that stand around what is read.
    inside: Vec<String>,
    found: Vec<Use>,
}

impl Reader<'_> {
    /// The module that the code stands in.
    fn here(&self) -> Module {
        [&self.file.module[..], &self.inside].concat()
    }

    /// The whole path of what is written, from the crate's root; `None` where it does not begin in this crate.
    fn absolute(&self, words: &[String]) -> Option<Vec<String>> {
        let (first, rest) = words.split_first()?;
        let mut at = match first.as_str() {
            "crate" => Module::new(),
            "self" | "super" => self.here(),
            child if self.known.contains_key(&[&self.here()[..], &[child.to_owned()]].concat()) => {
                return Some([&self.here()[..], words].concat());
            }
            _ => return None,
        };
        if first == "super" {
            at.pop()?;
        }
        for word in rest {
            match word.as_str() {
                "super" => drop(at.pop()?),
                "self" => {}
                word => at.push(word.to_owned()),
            }
        }
        Some(at)
    }

    /// Notes a path if it leads into a file of this crate.
    fn note(&mut self, words: &[String], at: LineColumn) {
        let Some(whole) = self.absolute(words) else { return };
        let to = (0..=whole.len()).rev().map(|len| &whole[..len]).find(|path| self.known.contains_key(*path));
        let to = to.expect("the root is known").to_vec();
        self.found.push(Use {
            from: self.file.module.clone(),
            to,
            file: self.file.path.clone(),
            line: at.line,
            path: words.join("::"),
        });
    }

    /// What `use` names, path by path.
    fn tree(&mut self, before: &[String], tree: &syn::UseTree) {
        let with = |ident: &syn::Ident| [before, &[ident.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.tree(&with(&path.ident), &path.tree),
            syn::UseTree::Name(name) => self.note(&with(&name.ident), name.span().start()),
            syn::UseTree::Rename(name) => self.note(&with(&name.ident), name.span().start()),
            syn::UseTree::Glob(glob) => self.note(before, glob.span().start()),
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.tree(before, tree)),
        }
    }

    /// Paths among the tokens of a macro or an attribute.
    fn tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Group(group) => self.tokens(group.stream()),
                TokenTree::Literal(literal) => self.literal(&literal.to_string(), literal.span()),
                TokenTree::Ident(_) if at == 0 || !ends_path(&tokens[..at]) => {
                    at = self.path_at(&tokens, at);
                    continue;
                }
                _ => {}
            }
            at += 1;
        }
    }

    /// Notes the path that begins at a token, if one does; the place behind it.
    fn path_at(&mut self, tokens: &[TokenTree], begin: usize) -> usize {
        let (mut words, mut at) = (Vec::new(), begin);
        let start = tokens[begin].span().start();
        while let Some(TokenTree::Ident(word)) = tokens.get(at) {
            words.push(word.to_string());
            if !is_colons(tokens, at + 1) {
                let called = matches!(tokens.get(at + 1), Some(TokenTree::Punct(mark)) if mark.as_char() == '!');
                if called && words.len() == 1 {
                    self.called(&words[0], start);
                }
                at += 1;
                break;
            }
            at += 3;
        }
        match tokens.get(at) {
            // What stands in braces behind `a::` are the ends of several paths.
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace && ends_path(&tokens[..at]) => {
                let parser = |input: syn::parse::ParseStream| {
                    syn::punctuated::Punctuated::<syn::UseTree, syn::Token![,]>::parse_terminated(input)
                };
                match syn::parse::Parser::parse2(parser, group.stream()) {
                    Ok(trees) => trees.iter().for_each(|tree| self.tree(&words, tree)),
                    Err(_) => self.note(&words, start),
                }
                at + 1
            }
            _ => {
                if words.len() > 1 || ends_path(&tokens[..at]) {
                    self.note(&words, start);
                }
                at
            }
        }
    }

    /// A path in a string, as serde's attributes have it.
    fn literal(&mut self, text: &str, span: Span) {
        let text = text.trim_matches('"');
        if ["crate::", "super::", "self::"].iter().any(|start| text.starts_with(start)) {
            let words: Vec<String> = text.split("::").map(str::to_owned).collect();
            self.note(&words, span.start());
        }
    }

    /// A macro of this crate that is called by its name alone.
    fn called(&mut self, name: &str, at: LineColumn) {
        for module in self.macros.get(name).into_iter().flatten() {
            self.found.push(Use {
                from: self.file.module.clone(),
                to: module.clone(),
                file: self.file.path.clone(),
                line: at.line,
                path: format!("{name}!"),
            });
        }
    }
}

/// Whether `::` stands at this place.
fn is_colons(tokens: &[TokenTree], at: usize) -> bool {
    let colon = |at: usize, spacing: Option<Spacing>| {
        matches!(tokens.get(at), Some(TokenTree::Punct(mark))
            if mark.as_char() == ':' && spacing.is_none_or(|spacing| mark.spacing() == spacing))
    };
    colon(at, Some(Spacing::Joint)) && colon(at + 1, None)
}

/// Whether tokens end with `::`.
fn ends_path(tokens: &[TokenTree]) -> bool {
    tokens.len() >= 2 && is_colons(tokens, tokens.len() - 2)
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if item.content.is_some() {
            self.inside.push(item.ident.to_string());
            visit::visit_item_mod(self, item);
            self.inside.pop();
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.tree(&[], &item.tree);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() && path.segments.len() > 1 {
            let words: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.note(&words, path.span().start());
        }
        visit::visit_path(self, path);
    }

    /// Who may see an item is no use of theirs.
    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {}

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        if let Some(name) = called.path.get_ident() {
            self.called(&name.to_string(), name.span().start());
        }
        self.tokens(called.tokens.clone());
        visit::visit_macro(self, called);
    }

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        match &attribute.meta {
            syn::Meta::List(list) => self.tokens(list.tokens.clone()),
            // Links of documentation are no use.
            _ if attribute.path().is_ident("doc") => return,
            _ => {}
        }
        visit::visit_attribute(self, attribute);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if item.trait_.is_none()
            && let syn::Type::Path(of) = &*item.self_ty
            && of.path.segments.len() == 1
        {
            self.extends(&of.path.segments[0].ident.to_string(), item.span().start());
        }
        visit::visit_item_impl(self, item);
    }
}

impl Reader<'_> {
    /// An inherent `impl` of a type that this file imports: to its type the block is a part of it, so the type's file
    /// uses this one.
    fn extends(&mut self, name: &str, at: LineColumn) {
        let ends = |used: &&Use| used.path.rsplit("::").next() == Some(name) && used.from == self.file.module;
        let Some(of) = self.found.iter().find(ends).map(|used| used.to.clone()) else { return };
        self.found.push(Use {
            from: of,
            to: self.file.module.clone(),
            file: self.file.path.clone(),
            line: at.line,
            path: format!("impl {name}"),
        });
    }
}
