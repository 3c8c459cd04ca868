//! The pool and the graph cache are made of parts: no method of one part can reach into another's fields, and only the
//! files that put them together have methods of the whole.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};

/// A type that is put together of parts.
struct Whole {
    room: &'static str,
    name: &'static str,
    /// The files, or folders with a `/`, whose methods may have the whole as `self`.
    composition: &'static [&'static str],
    /// Other files may have functions that take the whole.
    is_taken: bool,
    /// Parts that only hold what never changes.
    plain: &'static [&'static str],
}

const POOL: Whole = Whole {
    room: "shim/src/pool",
    name: "Pool",
    composition: &["mod.rs", "fast_path.rs"],
    is_taken: false,
    plain: &[],
};
const CACHE: Whole =
    Whole { room: "shim/src/graphs", name: "ExecStore", composition: &["store/"], is_taken: true, plain: &["Library"] };

struct Facts {
    whole: &'static Whole,
    file: PathBuf,
    /// The fields of each struct, and the file that has it.
    structs: BTreeMap<String, (PathBuf, syn::Fields)>,
    /// Files that name the whole.
    names_it: BTreeSet<PathBuf>,
    faults: Vec<String>,
}

impl Facts {
    fn fault(&mut self, at: proc_macro2::Span, what: &str) {
        self.faults.push(format!("{}:{}: {what}", self.file.display(), at.start().line));
    }

    fn is_composition(&self) -> bool {
        self.whole.composition.iter().any(|name| match name.ends_with('/') {
            true => self.file.starts_with(name),
            false => self.file == Path::new(name),
        })
    }

    /// The structs that the whole owns, and those that they own.
    fn parts(&self) -> BTreeSet<String> {
        let (mut parts, mut left) = (BTreeSet::new(), vec![self.whole.name.to_owned()]);
        while let Some(owner) = left.pop() {
            let fields = self.structs.get(&owner).into_iter().flat_map(|(_, fields)| fields);
            let owned: Vec<String> = fields.filter_map(|field| owned(&field.ty)).collect();
            left.extend(owned.into_iter().filter(|part| self.structs.contains_key(part) && parts.insert(part.clone())));
        }
        parts
    }

    fn faults(mut self) -> Vec<String> {
        for part in self.parts().into_iter().filter(|part| !self.whole.plain.contains(&&**part)) {
            let (file, fields) = &self.structs[&part];
            let open = fields.iter().filter(|field| !matches!(field.vis, syn::Visibility::Inherited));
            let name = |field: &syn::Field| field.ident.as_ref().map_or("0".to_owned(), ToString::to_string);
            self.faults.extend(open.map(|field| format!("{}: {part}::{} is not private", file.display(), name(field))));
            if self.names_it.contains(file) {
                let whole = self.whole.name;
                self.faults.push(format!("{}: the part {part} names {whole}, which lies above it", file.display()));
            }
        }
        self.faults
    }
}

/// The name of the type that a field owns, itself or in an `Option`.
fn owned(ty: &syn::Type) -> Option<String> {
    let syn::Type::Path(path) = ty else { return None };
    let last = path.path.segments.last()?;
    match &last.arguments {
        syn::PathArguments::AngleBracketed(held) if last.ident == "Option" => match held.args.first()? {
            syn::GenericArgument::Type(held) => owned(held),
            _ => None,
        },
        _ => Some(last.ident.to_string()),
    }
}

/// True for this type, and for a reference to it.
fn is_of(ty: &syn::Type, whole: &Whole) -> bool {
    match ty {
        syn::Type::Reference(reference) => is_of(&reference.elem, whole),
        ty => owned(ty).is_some_and(|name| name == whole.name),
    }
}

impl Visit<'_> for Facts {
    fn visit_item_struct(&mut self, item: &syn::ItemStruct) {
        self.structs.insert(item.ident.to_string(), (self.file.clone(), item.fields.clone()));
        visit::visit_item_struct(self, item);
    }

    fn visit_item_impl(&mut self, item: &syn::ItemImpl) {
        if item.trait_.is_none() && is_of(&item.self_ty, self.whole) && !self.is_composition() {
            self.fault(item.impl_token.span, &format!("`impl {}`", self.whole.name));
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_signature(&mut self, signature: &syn::Signature) {
        let whole = self.whole;
        let takes_it = |given: &syn::FnArg| matches!(given, syn::FnArg::Typed(given) if is_of(&given.ty, whole));
        if !whole.is_taken && signature.inputs.iter().any(takes_it) && !self.is_composition() {
            self.fault(signature.ident.span(), &format!("`{}` takes the whole {}", signature.ident, whole.name));
        }
        visit::visit_signature(self, signature);
    }

    fn visit_ident(&mut self, ident: &syn::Ident) {
        if ident == self.whole.name {
            self.names_it.insert(self.file.clone());
        }
    }
}

fn faults(whole: &'static Whole, files: impl IntoIterator<Item = (PathBuf, String)>) -> Vec<String> {
    let (file, structs, names_it, faults) = Default::default();
    let mut facts = Facts { whole, file, structs, names_it, faults };
    for (file, text) in files {
        let parsed = syn::parse_file(&text).unwrap_or_else(|why| panic!("{}: {why}", file.display()));
        facts.file = file;
        facts.visit_file(&parsed);
    }
    facts.faults()
}

fn stands(whole: &'static Whole) {
    let room = super::top().join(whole.room);
    let files = crate::programs::files(&room, &["rs"]).into_iter().map(|file| {
        let text = std::fs::read_to_string(&file).unwrap();
        (file.strip_prefix(&room).unwrap().to_owned(), text)
    });
    let faults = faults(whole, files);
    assert!(faults.is_empty(), "{}", super::lines(faults));
}

#[test]
fn the_pool_is_made_of_parts_with_private_fields() {
    stands(&POOL);
}

#[test]
fn the_graph_cache_is_made_of_parts_with_private_fields() {
    stands(&CACHE);
}

#[test]
fn what_is_planted_is_found() {
    let whole = "pub struct Pool { pub upper: Upper, pub name: u64 }\nimpl Pool {}\n";
    let upper = "pub struct Upper { lower: Option<Lower>, of: Vec<Plain> }\nimpl Upper { fn go(&self) {} }\n";
    let lower = "pub struct Lower(u64);\npub struct Plain { pub bytes: u64 }\n";
    let said = |changed: &str, text: &str| {
        let all =
            [("mod.rs", whole), ("upper.rs", upper), ("lower/mod.rs", lower), ("free.rs", "fn free(_: &Upper) {}")];
        faults(&POOL, all.map(|(name, kept)| (name.into(), if name == changed { text } else { kept }.to_owned())))
    };
    assert_eq!(said("", ""), Vec::<String>::new());
    for (file, text, fault) in [
        ("free.rs", "use super::Pool;\nimpl Pool { fn free(&self) {} }", "free.rs:2: `impl Pool`"),
        ("free.rs", "fn free(pool: &'static super::Pool) {}", "free.rs:1: `free` takes the whole Pool"),
        ("lower/mod.rs", "pub struct Lower(pub(crate) u64);\n", "lower/mod.rs: Lower::0 is not private"),
        ("upper.rs", "pub struct Upper { pub(super) lower: Lower }\n", "upper.rs: Upper::lower is not private"),
        (
            "lower/mod.rs",
            "pub struct Lower(u64);\nfn all() -> Option<&'static crate::pool::Pool> { None }\n",
            "lower/mod.rs: the part Lower names Pool, which lies above it",
        ),
    ] {
        assert_eq!(said(file, text), [fault], "{text}");
    }
}
