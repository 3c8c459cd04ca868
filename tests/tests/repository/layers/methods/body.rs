//! Goes through the body of a function, knows the types of its values, and finds whose methods it calls.

use super::super::source::Module;
use super::index::{Index, Signature};
use super::known;
use super::names::is_for_tests;
use super::ty::{At, Bound, Ty, words};
use std::collections::{BTreeMap, HashMap};
use syn::spanned::Spanned;

/// Calls of one file.
#[derive(Default)]
pub struct Found {
    /// The file that has the method, the line of the call, and the method.
    pub calls: Vec<(Module, usize, String)>,
    /// Methods of types that could not be told, with the line of the first call.
    pub untold: BTreeMap<String, usize>,
}

pub struct Body<'a> {
    pub index: &'a Index,
    pub at: At<'a>,
    pub locals: Vec<HashMap<String, Ty>>,
    pub found: &'a mut Found,
}

impl<'a> Body<'a> {
    /// Goes through a function: what it takes, and its block.
    pub fn function(
        index: &'a Index,
        at: &At<'a>,
        signature: &syn::Signature,
        block: &syn::Block,
        found: &'a mut Found,
    ) {
        let at = at.within(&signature.generics);
        let mut body = Body { index, locals: vec![HashMap::new()], found, at };
        for input in &signature.inputs {
            match input {
                syn::FnArg::Receiver(_) => body.bind_name("self", body.at.of.clone()),
                syn::FnArg::Typed(input) => body.bind(&input.pat, &body.at.ty(&input.ty)),
            }
        }
        let wanted = body.at.ret(&signature.output);
        body.block(block, &wanted);
    }

    pub fn bind_name(&mut self, name: &str, ty: Ty) {
        self.locals.last_mut().expect("a function has locals").insert(name.to_owned(), ty);
    }

    pub fn scoped<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> R {
        self.locals.push(HashMap::new());
        let result = f(self);
        self.locals.pop();
        result
    }

    fn local(&self, name: &str) -> Option<Ty> {
        self.locals.iter().rev().find_map(|names| names.get(name)).cloned()
    }

    pub fn block(&mut self, block: &syn::Block, wanted: &Ty) -> Ty {
        self.scoped(|body| {
            let mut last = Ty::Tuple(Vec::new());
            for stmt in &block.stmts {
                last = body.stmt(stmt, wanted);
            }
            last
        })
    }

    fn stmt(&mut self, stmt: &syn::Stmt, wanted: &Ty) -> Ty {
        match stmt {
            syn::Stmt::Local(local) => {
                let written = match &local.pat {
                    syn::Pat::Type(pat) => self.at.ty(&pat.ty),
                    _ => Ty::Unknown,
                };
                let ty = local.init.as_ref().map_or(Ty::Unknown, |init| {
                    let ty = self.expr(&init.expr, &written);
                    init.diverge.iter().for_each(|(_, other)| drop(self.expr(other, &Ty::Unknown)));
                    ty
                });
                self.bind(&local.pat, &written.or_whole(ty));
                Ty::Unknown
            }
            syn::Stmt::Item(syn::Item::Fn(item)) if !is_for_tests(&item.attrs) => {
                let at = self.at.clone();
                Body::function(self.index, &at, &item.sig, &item.block, self.found);
                let of = super::index::signature(&self.at, &item.sig);
                self.bind_name(&item.sig.ident.to_string(), Ty::Fn(of.takes, Box::new(of.ret)));
                Ty::Unknown
            }
            syn::Stmt::Item(syn::Item::Static(syn::ItemStatic { ident, ty, .. }))
            | syn::Stmt::Item(syn::Item::Const(syn::ItemConst { ident, ty, .. })) => {
                self.bind_name(&ident.to_string(), self.at.ty(ty));
                Ty::Unknown
            }
            syn::Stmt::Item(_) => Ty::Unknown,
            syn::Stmt::Expr(expr, None) => self.expr(expr, wanted),
            syn::Stmt::Expr(expr, Some(_)) => {
                self.expr(expr, &Ty::Unknown);
                Ty::Unknown
            }
            syn::Stmt::Macro(stmt) => self.called(&stmt.mac),
        }
    }

    /// A path as a value.
    pub fn value(&mut self, path: &syn::ExprPath) -> Ty {
        let mut all = words(&path.path);
        if path.qself.is_some() {
            return Ty::Unknown;
        }
        if let [name] = all.as_slice()
            && let Some(ty) = self.local(name)
        {
            return ty;
        }
        let line = path.span().start().line;
        // A type by its arguments, or by `Self`.
        if all.len() > 1 {
            let last = all.pop().expect("there are two words");
            let mut of = path.path.clone();
            of.segments.pop();
            of.segments.pop_punct();
            let ty = self.at.path(&of);
            if let Ty::Own(def, _) = &ty {
                if let Some(ty) = self.of_type(&ty.clone(), &last, line) {
                    return ty;
                }
                if self.index.is_type(def) {
                    // What is derived.
                    let derived = matches!(last.as_str(), "default" | "clone");
                    return if derived { Ty::Fn(Vec::new(), Box::new(ty)) } else { Ty::Unknown };
                }
            }
            all.push(last);
        }
        if let [name] = all.as_slice()
            && name == "Self"
        {
            return self.constructor(&self.at.of.clone());
        }
        self.item(&all, line)
    }

    /// The item that a path leads to, as a value.
    fn item(&mut self, all: &[String], line: usize) -> Ty {
        let Some((def, rest)) = self.at.names.find(&self.at.module, all) else {
            // All names of this crate are found, but those that macros make. What is asked for decides what some answer.
            let by_wish = matches!(all[all.len() - 1].as_str(), "default" | "from" | "try_from");
            return if !by_wish && all.len() > 1 || self.at.names.is_foreign(&self.at.module, &all[0]) {
                Ty::foreign()
            } else {
                Ty::Unknown
            };
        };
        match rest.as_slice() {
            [] => {
                if let Some(of) = self.index.function(&def) {
                    return Ty::Fn(of.takes.clone(), Box::new(of.ret.clone()));
                }
                match self.index.value(&def) {
                    Some(ty) => ty.clone(),
                    None if self.index.is_type(&def) => self.constructor(&Ty::Own(def, Vec::new())),
                    None => Ty::Unknown,
                }
            }
            [name] => self.of_type(&Ty::Own(def, Vec::new()), name, line).unwrap_or_default(),
            _ => Ty::Unknown,
        }
    }

    /// A type as a function that makes it of its fields, or as its only value.
    fn constructor(&self, ty: &Ty) -> Ty {
        match self.index.field(ty, "0") {
            Ty::Unknown => ty.clone(),
            field => Ty::Fn(vec![field, self.index.field(ty, "1")], Box::new(ty.clone())),
        }
    }

    /// `Type::name`: a variant, a function or a constant.
    fn of_type(&mut self, ty: &Ty, name: &str, line: usize) -> Option<Ty> {
        let Ty::Own(def, _) = ty else { return None };
        if let Some(fields) = self.index.variant(ty, name) {
            let field = |at: usize| fields.get(&at.to_string()).cloned().unwrap_or_default();
            let made = Ty::Fn(vec![field(0), field(1)], Box::new(ty.clone()));
            return Some(if fields.contains_key("0") { made } else { ty.clone() });
        }
        if let Some(ty) = self.index.value_of(def, name) {
            return Some(ty.clone());
        }
        let method = self.index.method(def, name)?.clone();
        if method.inherent {
            self.found.calls.push((method.file, line, format!("{}::{name}", def.1)));
        }
        let Signature { of, has_self, takes, ret } = method.signature;
        let mut bound = Bound::new();
        of.learn(ty, &mut bound);
        // Trait methods that answer `Self` answer the type that they were asked of.
        let ret = if ret == of && !method.inherent { ty.clone() } else { ret };
        let takes = if has_self { [vec![of], takes].concat() } else { takes };
        Some(Ty::Fn(takes, Box::new(ret)))
    }

    /// The method of a receiver, and what it answers with these arguments. All arguments are gone through.
    pub fn method(&mut self, call: &syn::ExprMethodCall) -> Ty {
        let mut of = self.expr(&call.receiver, &Ty::Unknown);
        let (name, line) = (call.method.to_string(), call.method.span().start().line);
        let args: Vec<&syn::Expr> = call.args.iter().collect();
        loop {
            match of.clone() {
                Ty::Own(def, _) => {
                    if let Some(method) = self.index.method(&def, &name).cloned() {
                        if method.inherent {
                            self.found.calls.push((method.file, line, format!("{}::{name}", def.1)));
                        }
                        return self.answer(&method.signature, &of, &args);
                    }
                    match self.index.deref(&def) {
                        Some(to) => of = to.clone(),
                        None => {
                            self.all(&args);
                            return if name == "clone" { of } else { Ty::Unknown };
                        }
                    }
                }
                Ty::Other(kind, inner) if ["LazyLock", "CachePadded", "Lazy"].contains(&&*kind) => {
                    of = inner.into_iter().next().unwrap_or_default();
                }
                Ty::Unknown if known::is_atomic(&args) => {
                    self.all(&args);
                    return Ty::Unknown;
                }
                Ty::Unknown => {
                    self.found.untold.entry(name.clone()).or_insert(line);
                    self.all(&args);
                    return Ty::Unknown;
                }
                Ty::Other(..) | Ty::Tuple(_) | Ty::Fn(..) | Ty::Param(_) => {
                    let mut given = Vec::new();
                    for arg in args {
                        let wanted = Ty::Fn(known::given(&of, &name, &given), Box::default());
                        given.push(self.method_as_value(arg, &of).unwrap_or_else(|| self.expr(arg, &wanted)));
                    }
                    let wanted = call.turbofish.as_ref().and_then(|of| of.args.first()).map(|of| self.generic(of));
                    return match (&*name, wanted) {
                        ("collect", Some(Ty::Other(kind, arg))) if kind == "Vec" && !arg[0].is_known() => {
                            known::answer(&of, &name, &given)
                        }
                        ("collect", Some(ty)) => ty,
                        ("parse", Some(ty)) => Ty::Other("Result".to_owned(), vec![ty, Ty::Unknown]),
                        ("cast", Some(ty)) => Ty::other("ptr", ty),
                        _ => known::answer(&of, &name, &given),
                    };
                }
            }
        }
    }

    /// `Weak::upgrade` and its like, given to a method that calls it with what `of` holds.
    fn method_as_value(&self, arg: &syn::Expr, of: &Ty) -> Option<Ty> {
        let syn::Expr::Path(path) = arg else { return None };
        let words = words(&path.path);
        if words.len() < 2 || path.qself.is_some() || self.at.names.find(&self.at.module, &words).is_some() {
            return None;
        }
        let item = known::item(of);
        let made = known::function(&words, std::slice::from_ref(&item));
        let ret = made.or(|| known::answer(&item, &words[words.len() - 1], &[]));
        Some(Ty::Fn(vec![item], Box::new(ret)))
    }

    fn generic(&self, of: &syn::GenericArgument) -> Ty {
        match of {
            syn::GenericArgument::Type(ty) => self.at.ty(ty),
            _ => Ty::Unknown,
        }
    }

    fn all(&mut self, args: &[&syn::Expr]) {
        args.iter().for_each(|arg| drop(self.expr(arg, &Ty::Unknown)));
    }

    /// Returns the type that a call with this signature answers. `given`: the receiver's type.
    fn answer(&mut self, signature: &Signature, given: &Ty, args: &[&syn::Expr]) -> Ty {
        let mut bound = Bound::new();
        signature.of.learn(given, &mut bound);
        self.arguments(&signature.takes, args, &mut bound);
        // A trait's `Self` is the type that the method was asked of.
        if signature.ret == signature.of { given.clone() } else { signature.ret.with(&bound) }
    }

    fn arguments(&mut self, takes: &[Ty], args: &[&syn::Expr], bound: &mut Bound) {
        // Closures come last: what they are given may be learned from the other arguments.
        let (late, early): (Vec<_>, Vec<_>) =
            args.iter().enumerate().partition(|(_, arg)| matches!(arg, syn::Expr::Closure(_)));
        for (at, arg) in early.into_iter().chain(late) {
            let takes = takes.get(at).cloned().unwrap_or_default();
            let given = self.expr(arg, &takes.with(bound));
            takes.learn(&given, bound);
        }
    }

    /// The call of a function, or of a value that is one.
    pub fn call(&mut self, call: &syn::ExprCall) -> Ty {
        let args: Vec<&syn::Expr> = call.args.iter().collect();
        match self.expr(&call.func, &Ty::Unknown) {
            Ty::Fn(takes, ret) => {
                let mut bound = Bound::new();
                self.arguments(&takes, &args, &mut bound);
                ret.with(&bound)
            }
            of => {
                let syn::Expr::Path(path) = &*call.func else {
                    self.all(&args);
                    return Ty::Unknown;
                };
                let given: Vec<Ty> = args.iter().map(|arg| self.expr(arg, &Ty::Unknown)).collect();
                let made = known::function(&words(&path.path), &given).or(|| self.made(path));
                let is_foreign = of.is_foreign() && given.iter().all(Ty::is_foreign);
                made.or(|| if is_foreign { of } else { Ty::Unknown })
            }
        }
    }

    /// `Type::new(…)` of a type that is not of this crate.
    fn made(&self, path: &syn::ExprPath) -> Ty {
        let mut of = path.path.clone();
        let last = of.segments.pop().map(|last| last.ident.to_string());
        of.segments.pop_punct();
        match (last.as_deref(), of.segments.is_empty()) {
            (Some("new" | "default" | "with_capacity" | "from"), false) => match self.at.path(&of) {
                Ty::Other(name, _) if name == "Default" || name == "From" => Ty::Unknown,
                ty @ Ty::Other(..) => ty,
                _ => Ty::Unknown,
            },
            _ => Ty::Unknown,
        }
    }
}
