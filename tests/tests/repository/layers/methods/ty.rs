//! Types, as far as they decide whose method a call means. References, boxes and guards stand for what they lead to.

use super::super::source::Module;
use super::names::{Def, Names};
use std::collections::HashMap;

#[derive(Clone, Debug, Default, PartialEq)]
pub enum Ty {
    #[default]
    Unknown,
    /// A type of this crate, or one of its traits as a type.
    Own(Def, Vec<Ty>),
    /// A type of the standard library or of another crate, by its last name. `Iter` is every iterator, `Vec` every
    /// sequence, `ptr` every raw pointer.
    Other(String, Vec<Ty>),
    Tuple(Vec<Ty>),
    Fn(Vec<Ty>, Box<Ty>),
    Param(String),
}

pub type Bound = HashMap<String, Ty>;

impl Ty {
    pub fn other(name: &str, of: Ty) -> Self {
        Ty::Other(name.to_owned(), vec![of])
    }

    pub fn prim(name: &str) -> Self {
        Ty::Other(name.to_owned(), Vec::new())
    }

    /// The type's argument of this number.
    pub fn arg(&self, at: usize) -> Self {
        match self {
            Ty::Other(_, of) | Ty::Own(_, of) => of.get(at).cloned().unwrap_or_default(),
            _ => Ty::Unknown,
        }
    }

    pub fn is_known(&self) -> bool {
        *self != Ty::Unknown
    }

    /// A type of which no more is known than that it is not of this crate.
    pub fn foreign() -> Self {
        Ty::prim("foreign")
    }

    /// True if a type is of other crates, with all that it holds.
    pub fn is_foreign(&self) -> bool {
        match self {
            Ty::Other(_, of) | Ty::Tuple(of) => of.iter().all(Ty::is_foreign),
            Ty::Fn(_, ret) => ret.is_foreign(),
            Ty::Unknown | Ty::Own(..) | Ty::Param(_) => false,
        }
    }

    /// A written type, or the one that is found if the written one leaves something open.
    pub fn or_whole(self, found: Self) -> Self {
        let is_open = match &self {
            Ty::Other(_, of) | Ty::Own(_, of) | Ty::Tuple(of) => of.contains(&Ty::Unknown),
            _ => !self.is_known(),
        };
        if is_open && found.is_known() { found } else { self }
    }

    pub fn or(self, other: impl FnOnce() -> Self) -> Self {
        if self.is_known() { self } else { other() }
    }

    /// The type with its parameters put in. A parameter that is not known is not known.
    pub fn with(&self, bound: &Bound) -> Self {
        let all = |of: &[Ty]| of.iter().map(|ty| ty.with(bound)).collect();
        match self {
            Ty::Unknown => Ty::Unknown,
            Ty::Own(def, of) => Ty::Own(def.clone(), all(of)),
            Ty::Other(name, of) => Ty::Other(name.clone(), all(of)),
            Ty::Tuple(of) => Ty::Tuple(all(of)),
            Ty::Fn(of, ret) => Ty::Fn(all(of), Box::new(ret.with(bound))),
            Ty::Param(name) => bound.get(name).cloned().unwrap_or_default(),
        }
    }

    /// Learns parameters from what is given for this type.
    pub fn learn(&self, given: &Ty, bound: &mut Bound) {
        match (self, given) {
            (Ty::Param(name), given) if given.is_known() => drop(bound.entry(name.clone()).or_insert(given.clone())),
            (Ty::Own(one, of), Ty::Own(other, given)) if one == other => learn_all(of, given, bound),
            (Ty::Other(one, of), Ty::Other(other, given)) if one == other => learn_all(of, given, bound),
            (Ty::Tuple(of), Ty::Tuple(given)) => learn_all(of, given, bound),
            (Ty::Fn(of, ret), Ty::Fn(given, result)) => {
                learn_all(of, given, bound);
                ret.learn(result, bound);
            }
            _ => {}
        }
    }
}

fn learn_all(of: &[Ty], given: &[Ty], bound: &mut Bound) {
    of.iter().zip(given).for_each(|(of, given)| of.learn(given, bound));
}

/// Place at which a type is written.
#[derive(Clone)]
pub struct At<'a> {
    pub names: &'a Names,
    pub aliases: &'a HashMap<Def, (Vec<String>, syn::Type)>,
    pub module: Module,
    pub of: Ty,
    /// The type parameters, with what they stand for, if a bound says so.
    pub params: Bound,
}

/// The names of the type parameters.
pub fn params(generics: &syn::Generics) -> Vec<String> {
    generics.type_params().map(|param| param.ident.to_string()).collect()
}

pub fn words(path: &syn::Path) -> Vec<String> {
    path.segments.iter().map(|segment| segment.ident.to_string()).collect()
}

impl At<'_> {
    /// The same place, within something that has these type parameters.
    pub fn within(&self, generics: &syn::Generics) -> Self {
        let mut at = self.clone();
        at.params.extend(params(generics).into_iter().map(|name| (name.clone(), Ty::Param(name))));
        for param in generics.type_params() {
            let bound = at.bounds(&param.bounds);
            if bound.is_known() {
                at.params.insert(param.ident.to_string(), bound);
            }
        }
        for predicate in generics.where_clause.iter().flat_map(|clause| &clause.predicates) {
            if let syn::WherePredicate::Type(predicate) = predicate
                && let syn::Type::Path(path) = &predicate.bounded_ty
                && let Some(name) = path.path.get_ident()
            {
                let bound = at.bounds(&predicate.bounds);
                if bound.is_known() {
                    at.params.insert(name.to_string(), bound);
                }
            }
        }
        at
    }

    pub fn ret(&self, ret: &syn::ReturnType) -> Ty {
        match ret {
            syn::ReturnType::Default => Ty::Tuple(Vec::new()),
            syn::ReturnType::Type(_, ty) => self.ty(ty),
        }
    }

    pub fn ty(&self, ty: &syn::Type) -> Ty {
        match ty {
            syn::Type::Array(array) => Ty::other("Vec", self.ty(&array.elem)),
            syn::Type::Slice(slice) => Ty::other("Vec", self.ty(&slice.elem)),
            syn::Type::Ptr(ptr) => Ty::other("ptr", self.ty(&ptr.elem)),
            syn::Type::Reference(reference) => self.ty(&reference.elem),
            syn::Type::Group(group) => self.ty(&group.elem),
            syn::Type::Paren(paren) => self.ty(&paren.elem),
            syn::Type::Tuple(tuple) => Ty::Tuple(tuple.elems.iter().map(|ty| self.ty(ty)).collect()),
            syn::Type::ImplTrait(bounds) => self.bounds(&bounds.bounds),
            syn::Type::TraitObject(bounds) => self.bounds(&bounds.bounds),
            syn::Type::FnPtr(of) => self.function(of.inputs.iter(), &of.output),
            syn::Type::Path(path) if path.qself.is_none() => self.path(&path.path),
            _ => Ty::Unknown,
        }
    }

    fn function<'a>(&self, inputs: impl Iterator<Item = &'a syn::NamedArg>, output: &syn::ReturnType) -> Ty {
        Ty::Fn(inputs.map(|input| self.ty(&input.ty)).collect(), Box::new(self.ret(output)))
    }

    fn bounds<'a>(&self, bounds: impl IntoIterator<Item = &'a syn::TypeParamBound>) -> Ty {
        let bounds = bounds.into_iter().filter_map(|bound| match bound {
            syn::TypeParamBound::Trait(bound) => Some(&bound.path),
            _ => None,
        });
        bounds.map(|path| self.bound(path)).find(Ty::is_known).unwrap_or_default()
    }

    /// Returns the type of a value of which only a trait is said.
    fn bound(&self, path: &syn::Path) -> Ty {
        let Some(last) = path.segments.last() else { return Ty::Unknown };
        let assoc = |arguments: &syn::AngleBracketedGenericArguments| {
            arguments.args.iter().find_map(|argument| match argument {
                syn::GenericArgument::AssocType(assoc) => Some(self.ty(&assoc.ty)),
                _ => None,
            })
        };
        match (last.ident.to_string().as_str(), &last.arguments) {
            ("Fn" | "FnMut" | "FnOnce", syn::PathArguments::Parenthesized(of)) => {
                self.function(of.inputs.iter(), &of.output)
            }
            (name, syn::PathArguments::AngleBracketed(of)) if name.contains("Iterator") => {
                Ty::other("Iter", assoc(of).unwrap_or_default())
            }
            ("Deref" | "DerefMut", syn::PathArguments::AngleBracketed(of)) => assoc(of).unwrap_or_default(),
            _ => match self.names.find(&self.module, &words(path)) {
                Some((def, rest)) if rest.is_empty() => Ty::Own(def, Vec::new()),
                _ => Ty::Unknown,
            },
        }
    }

    pub fn path(&self, path: &syn::Path) -> Ty {
        let Some(last) = path.segments.last() else { return Ty::Unknown };
        let of: Vec<Ty> = match &last.arguments {
            syn::PathArguments::AngleBracketed(of) => of.args.iter().filter_map(|argument| match argument {
                syn::GenericArgument::Type(ty) => Some(self.ty(ty)),
                _ => None,
            }),
            _ => return self.named(&words(path), Vec::new()),
        }
        .collect();
        self.named(&words(path), of)
    }

    fn named(&self, words: &[String], of: Vec<Ty>) -> Ty {
        match words {
            [name] if name == "Self" => return self.of.clone(),
            [first, ..] if first == "Self" => return Ty::Unknown,
            [name] if self.params.contains_key(name) => return self.params[name].clone(),
            _ => {}
        }
        if let Some((def, rest)) = self.names.find(&self.module, words) {
            if !rest.is_empty() {
                return Ty::Unknown;
            }
            let Some((params, ty)) = self.aliases.get(&def) else { return Ty::Own(def, of) };
            let bound = params.iter().cloned().zip(of).collect();
            let at = At { module: def.0.clone(), of: Ty::Unknown, params: bound, ..self.clone() };
            return at.ty(ty);
        }
        let name = words.last().expect("a path has words").as_str();
        match name {
            "Box" | "Arc" | "Rc" | "MutexGuard" | "Ref" | "RefMut" | "ManuallyDrop" | "Pin" | "Cow" | "Reverse"
            | "RwLockReadGuard" | "RwLockWriteGuard" | "MaybeUninit" | "NonZero" => {
                of.into_iter().next().unwrap_or_default()
            }
            "Iter" | "IterMut" | "IntoIter" | "Drain" => {
                Ty::other("Iter", of.into_iter().next_back().unwrap_or_default())
            }
            "VecDeque" | "BinaryHeap" | "SmallVec" | "HashSet" | "BTreeSet" | "FxHashSet" => {
                Ty::Other("Vec".to_owned(), of)
            }
            "BTreeMap" | "FxHashMap" | "DashMap" | "FxDashMap" => Ty::Other("HashMap".to_owned(), of),
            _ => Ty::Other(name.to_owned(), of),
        }
    }
}
