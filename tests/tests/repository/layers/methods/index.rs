//! The parts of a crate's types, and the parameters and answers of its functions and methods.

use super::super::source::{File, Module};
use super::names::{Def, Names, is_for_tests, statics};
use super::ty::{At, Bound, Ty, params, words};
use std::collections::HashMap;

#[derive(Default)]
pub struct Index {
    /// Type parameters of structs, enums and traits.
    params: HashMap<Def, Vec<String>>,
    fields: HashMap<Def, HashMap<String, Ty>>,
    variants: HashMap<Def, HashMap<String, HashMap<String, Ty>>>,
    values: HashMap<Def, Ty>,
    functions: HashMap<Def, Signature>,
    methods: HashMap<(Def, String), Method>,
    derefs: HashMap<Def, Ty>,
    /// The traits that a type has.
    traits: HashMap<Def, Vec<Def>>,
    pub aliases: HashMap<Def, (Vec<String>, syn::Type)>,
}

/// Parameters of a function, its receiver apart, and its answer.
#[derive(Clone)]
pub struct Signature {
    pub of: Ty,
    pub has_self: bool,
    pub takes: Vec<Ty>,
    pub ret: Ty,
}

#[derive(Clone)]
pub struct Method {
    pub signature: Signature,
    /// The file of the block that has it.
    pub file: Module,
    /// Not from a trait.
    pub inherent: bool,
}

impl Index {
    pub fn read(names: &Names, files: &[File]) -> Self {
        let mut index = Self::default();
        for file in files {
            index.read_aliases(&file.module, &file.parsed.items);
        }
        // The place looks at the aliases while the rest is filled.
        let aliases = std::mem::take(&mut index.aliases);
        for file in files {
            index.items(&file.module, &file.module, &file.parsed.items, names, &aliases);
        }
        index.aliases = aliases;
        index
    }

    fn read_aliases(&mut self, module: &Module, items: &[syn::Item]) {
        for item in items {
            match item {
                syn::Item::Type(item) => {
                    let def = (module.clone(), item.ident.to_string());
                    self.aliases.insert(def, (params(&item.generics), (*item.ty).clone()));
                }
                syn::Item::Mod(item) => {
                    let inner = [&module[..], &[item.ident.to_string()]].concat();
                    item.content.iter().for_each(|(_, items)| self.read_aliases(&inner, items));
                }
                _ => {}
            }
        }
    }

    fn items(
        &mut self,
        file: &Module,
        module: &Module,
        items: &[syn::Item],
        names: &Names,
        aliases: &HashMap<Def, (Vec<String>, syn::Type)>,
    ) {
        let at = At { names, aliases, module: module.clone(), of: Ty::Unknown, params: Bound::new() };
        let def = |ident: &syn::Ident| (module.clone(), ident.to_string());
        for item in items {
            match item {
                syn::Item::Const(item) => drop(self.values.insert(def(&item.ident), at.ty(&item.ty))),
                syn::Item::Static(item) => drop(self.values.insert(def(&item.ident), at.ty(&item.ty))),
                syn::Item::Fn(item) => drop(self.functions.insert(def(&item.sig.ident), signature(&at, &item.sig))),
                syn::Item::Struct(item) => {
                    self.params.insert(def(&item.ident), params(&item.generics));
                    self.fields.insert(def(&item.ident), fields(&at.within(&item.generics), &item.fields));
                }
                syn::Item::Enum(item) => {
                    let at = at.within(&item.generics);
                    let variants =
                        item.variants.iter().map(|variant| (variant.ident.to_string(), fields(&at, &variant.fields)));
                    self.params.insert(def(&item.ident), params(&item.generics));
                    self.variants.insert(def(&item.ident), variants.collect());
                }
                syn::Item::Macro(item) => {
                    let statics = statics(item);
                    self.values
                        .extend(statics.iter().map(|item| (def(&item.ident), Ty::other("LocalKey", at.ty(&item.ty)))));
                }
                syn::Item::Trait(item) => self.read_trait(file, &at, item),
                syn::Item::Impl(item) if !is_for_tests(&item.attrs) => self.read_impl(file, &at, item),
                syn::Item::Mod(item) => {
                    let inner = [&module[..], &[item.ident.to_string()]].concat();
                    if let Some((_, items)) = &item.content {
                        self.items(file, &inner, items, names, aliases);
                    }
                }
                _ => {}
            }
        }
    }

    fn read_trait(&mut self, file: &Module, at: &At, item: &syn::ItemTrait) {
        let def = (at.module.clone(), item.ident.to_string());
        let mut at = at.within(&item.generics);
        at.of = Ty::Own(def.clone(), Vec::new());
        for part in &item.items {
            if let syn::TraitItem::Fn(part) = part {
                let method = Method { signature: signature(&at, &part.sig), file: file.clone(), inherent: false };
                self.methods.insert((def.clone(), part.sig.ident.to_string()), method);
            }
        }
        let above = item.supertraits.iter().filter_map(|bound| match bound {
            syn::TypeParamBound::Trait(bound) => at.names.find(&at.module, &words(&bound.path)),
            _ => None,
        });
        let above: Vec<Def> = above.map(|(def, _)| def).collect();
        self.traits.entry(def).or_default().extend(above);
    }

    fn read_impl(&mut self, file: &Module, at: &At, item: &syn::ItemImpl) {
        let mut at = at.within(&item.generics);
        at.of = at.ty(&item.self_ty);
        let Ty::Own(def, _) = at.of.clone() else { return };
        if let Some((path, _)) = &item.trait_
            && let Some((its, _)) = at.names.find(&at.module, &words(path))
        {
            self.traits.entry(def.clone()).or_default().push(its);
        }
        for part in &item.items {
            match part {
                syn::ImplItem::Fn(part) if !is_for_tests(&part.attrs) => {
                    let inherent = item.trait_.is_none();
                    let method = Method { signature: signature(&at, &part.sig), file: file.clone(), inherent };
                    let place = (def.clone(), part.sig.ident.to_string());
                    if inherent || !self.methods.contains_key(&place) {
                        self.methods.insert(place, method);
                    }
                }
                syn::ImplItem::Type(part) if part.ident == "Target" => {
                    self.derefs.insert(def.clone(), at.ty(&part.ty));
                }
                syn::ImplItem::Const(part) => {
                    let module = [&def.0[..], std::slice::from_ref(&def.1)].concat();
                    self.values.insert((module, part.ident.to_string()), at.ty(&part.ty));
                }
                _ => {}
            }
        }
    }

    /// The type parameters of a type, as it has them.
    fn bound(&self, def: &Def, of: &[Ty]) -> Bound {
        self.params.get(def).into_iter().flatten().cloned().zip(of.iter().cloned()).collect()
    }

    pub fn function(&self, def: &Def) -> Option<&Signature> {
        self.functions.get(def)
    }

    pub fn value(&self, def: &Def) -> Option<&Ty> {
        self.values.get(def)
    }

    /// A constant of a type.
    pub fn value_of(&self, def: &Def, name: &str) -> Option<&Ty> {
        self.values.get(&([&def.0[..], std::slice::from_ref(&def.1)].concat(), name.to_owned()))
    }

    pub fn is_type(&self, def: &Def) -> bool {
        self.params.contains_key(def)
    }

    pub fn field(&self, ty: &Ty, name: &str) -> Ty {
        match ty {
            Ty::Own(def, of) => match self.fields.get(def).and_then(|fields| fields.get(name)) {
                Some(field) => field.with(&self.bound(def, of)),
                None => self.derefs.get(def).map_or(Ty::Unknown, |to| self.field(to, name)),
            },
            Ty::Tuple(of) => name.parse().ok().and_then(|at: usize| of.get(at).cloned()).unwrap_or_default(),
            Ty::Other(name_of, of) if name_of == "LazyLock" => {
                of.first().map_or(Ty::Unknown, |of| self.field(of, name))
            }
            Ty::Other(_, of) if of.is_empty() => Ty::foreign(),
            _ => Ty::Unknown,
        }
    }

    /// A field of a variant; `None` where the type has no such variant.
    pub fn variant(&self, ty: &Ty, variant: &str) -> Option<HashMap<String, Ty>> {
        let Ty::Own(def, of) = ty else { return None };
        let (fields, bound) = (self.variants.get(def)?.get(variant)?, self.bound(def, of));
        Some(fields.iter().map(|(name, ty)| (name.clone(), ty.with(&bound))).collect())
    }

    pub fn deref(&self, def: &Def) -> Option<&Ty> {
        self.derefs.get(def)
    }

    /// The method of a type, its own one before one of its traits.
    pub fn method(&self, def: &Def, name: &str) -> Option<&Method> {
        let own = self.methods.get(&(def.clone(), name.to_owned()));
        own.or_else(|| self.traits.get(def)?.iter().filter(|its| *its != def).find_map(|its| self.method(its, name)))
    }

    /// The types of a crate that have an inherent method of this name, with the files.
    pub fn all_named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Module> {
        self.methods
            .iter()
            .filter(move |((_, its), method)| its == name && method.inherent)
            .map(|(_, method)| &method.file)
    }
}

pub fn signature(at: &At, written: &syn::Signature) -> Signature {
    let at = at.within(&written.generics);
    let takes = written.inputs.iter().filter_map(|input| match input {
        syn::FnArg::Typed(input) => Some(at.ty(&input.ty)),
        syn::FnArg::Receiver(_) => None,
    });
    let has_self = matches!(written.inputs.first(), Some(syn::FnArg::Receiver(_)));
    Signature { of: at.of.clone(), has_self, takes: takes.collect(), ret: at.ret(&written.output) }
}

fn fields(at: &At, fields: &syn::Fields) -> HashMap<String, Ty> {
    let name = |(at, field): (usize, &syn::Field)| field.ident.as_ref().map_or(at.to_string(), ToString::to_string);
    fields.iter().enumerate().map(|(number, field)| (name((number, field)), at.ty(&field.ty))).collect()
}
