//! Reads one file of a crate and collects what it uses of the others.

use super::source::{File, Module, Use};
use proc_macro2::{Delimiter, LineColumn, Spacing, Span, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// Collects what one file uses.
pub(super) struct Reader<'a> {
    pub(super) file: &'a File,
    pub(super) known: &'a BTreeMap<Module, PathBuf>,
    pub(super) macros: &'a HashMap<String, BTreeSet<Module>>,
    /// The modules within the file that stand around what is read.
    pub(super) inside: Vec<String>,
    pub(super) found: Vec<Use>,
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

    /// Notes the paths that `use` names, one by one.
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

/// True if `::` stands at this place.
fn is_colons(tokens: &[TokenTree], at: usize) -> bool {
    let colon = |at: usize, spacing: Option<Spacing>| {
        matches!(tokens.get(at), Some(TokenTree::Punct(mark))
            if mark.as_char() == ':' && spacing.is_none_or(|spacing| mark.spacing() == spacing))
    };
    colon(at, Some(Spacing::Joint)) && colon(at + 1, None)
}

/// True if tokens end with `::`.
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

    /// A restricted visibility names modules that may see an item. It is no use of them.
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
