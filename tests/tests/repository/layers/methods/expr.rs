//! Expressions and patterns.

use super::body::Body;
use super::known;
use super::ty::{Ty, words};
use syn::parse::Parser;
use syn::punctuated::Punctuated;

impl Body<'_> {
    /// Goes through an expression and tells its type. `wanted`: the type that is asked for, if that is known.
    pub fn expr(&mut self, expr: &syn::Expr, wanted: &Ty) -> Ty {
        match expr {
            syn::Expr::Array(array) => {
                let of = array.elems.iter().fold(Ty::Unknown, |of, elem| {
                    let ty = self.expr(elem, &of.clone().or(|| wanted.arg(0)));
                    of.or(|| ty)
                });
                Ty::other("Vec", of)
            }
            syn::Expr::Block(block) => self.block(&block.block, wanted),
            syn::Expr::Call(call) => self.call(call),
            syn::Expr::Closure(closure) => self.closure(closure, wanted),
            syn::Expr::Const(block) => self.block(&block.block, wanted),
            syn::Expr::Field(field) => {
                let of = self.expr(&field.base, &Ty::Unknown);
                self.index.field(&of, &member(&field.member))
            }
            syn::Expr::Group(group) => self.expr(&group.expr, wanted),
            syn::Expr::If(cond) => self.branches(cond, wanted),
            syn::Expr::Let(cond) => {
                let ty = self.expr(&cond.expr, &Ty::Unknown);
                self.bind(&cond.pat, &ty);
                Ty::prim("bool")
            }
            syn::Expr::Lit(lit) => match &lit.lit {
                syn::Lit::Bool(_) => Ty::prim("bool"),
                syn::Lit::Str(_) => Ty::prim("str"),
                _ => Ty::prim("literal"),
            },
            syn::Expr::Macro(called) => self.called(&called.mac),
            syn::Expr::Match(choice) => self.choice(choice, wanted),
            syn::Expr::MethodCall(call) => self.method(call),
            syn::Expr::Paren(paren) => self.expr(&paren.expr, wanted),
            syn::Expr::Path(path) => self.value(path),
            syn::Expr::RawAddr(addr) => Ty::other("ptr", self.expr(&addr.expr, &Ty::Unknown)),
            syn::Expr::Reference(of) => self.expr(&of.expr, wanted),
            syn::Expr::Repeat(repeat) => {
                self.expr(&repeat.len, &Ty::Unknown);
                Ty::other("Vec", self.expr(&repeat.expr, &wanted.arg(0)))
            }
            syn::Expr::Struct(made) => self.made_of_fields(made),
            syn::Expr::Try(tried) => match self.expr(&tried.expr, &Ty::Unknown) {
                Ty::Other(kind, of) if kind == "Option" || kind == "Result" => {
                    of.into_iter().next().unwrap_or_default()
                }
                Ty::Other(_, of) if of.is_empty() => Ty::foreign(),
                _ => Ty::Unknown,
            },
            syn::Expr::Tuple(tuple) => {
                let wanted = |at: usize| match wanted {
                    Ty::Tuple(of) => of.get(at).cloned().unwrap_or_default(),
                    _ => Ty::Unknown,
                };
                Ty::Tuple(tuple.elems.iter().enumerate().map(|(at, elem)| self.expr(elem, &wanted(at))).collect())
            }
            syn::Expr::Unsafe(block) => self.block(&block.block, wanted),
            other => self.plain(other),
        }
    }

    /// Expressions whose types are simple.
    fn plain(&mut self, expr: &syn::Expr) -> Ty {
        let none = Ty::Unknown;
        match expr {
            syn::Expr::Assign(assign) => {
                let left = self.expr(&assign.left, &none);
                self.expr(&assign.right, &left);
                none
            }
            syn::Expr::Binary(binary) => {
                let left = self.expr(&binary.left, &none);
                self.expr(&binary.right, &none);
                use syn::BinOp::*;
                match binary.op {
                    And(_) | Or(_) | Eq(_) | Ne(_) | Lt(_) | Le(_) | Gt(_) | Ge(_) => Ty::prim("bool"),
                    _ => left,
                }
            }
            syn::Expr::Unary(unary) => {
                let ty = self.expr(&unary.expr, &none);
                match (&unary.op, &ty) {
                    (syn::UnOp::Deref(_), Ty::Other(kind, of)) if kind == "ptr" => {
                        of.first().cloned().unwrap_or_default()
                    }
                    _ => ty,
                }
            }
            syn::Expr::Cast(cast) => {
                self.expr(&cast.expr, &none);
                self.at.ty(&cast.ty)
            }
            syn::Expr::Index(index) => {
                let of = self.expr(&index.expr, &none);
                match (self.expr(&index.index, &none), &of) {
                    (Ty::Other(range, _), _) if range == "Iter" => of,
                    (_, Ty::Other(kind, _)) if kind == "HashMap" => of.arg(1),
                    _ => known::item(&of),
                }
            }
            syn::Expr::Range(range) => {
                let (start, end) = (range.start.as_deref(), range.end.as_deref());
                start.into_iter().chain(end).for_each(|end| drop(self.expr(end, &none)));
                Ty::other("Iter", Ty::prim("usize"))
            }
            syn::Expr::Return(syn::ExprReturn { expr, .. }) | syn::Expr::Break(syn::ExprBreak { expr, .. }) => {
                expr.iter().for_each(|expr| drop(self.expr(expr, &none)));
                none
            }
            syn::Expr::Async(block) => self.block(&block.block, &none),
            syn::Expr::Await(of) => self.expr(&of.base, &none),
            syn::Expr::Continue(_) | syn::Expr::Infer(_) => none,
            other => self.repeated(other),
        }
    }

    fn repeated(&mut self, expr: &syn::Expr) -> Ty {
        let none = Ty::Unknown;
        match expr {
            syn::Expr::ForLoop(each) => self.scoped(|body| {
                let over = body.expr(&each.expr, &none);
                body.bind(&each.pat, &known::item(&over));
                body.block(&each.body, &none)
            }),
            syn::Expr::Loop(all) => {
                self.block(&all.body, &none);
                none
            }
            syn::Expr::While(all) => self.scoped(|body| {
                body.expr(&all.cond, &none);
                body.block(&all.body, &none)
            }),
            other => panic!("an expression that the ruler does not know: {}", quote::quote!(#other)),
        }
    }

    fn branches(&mut self, cond: &syn::ExprIf, wanted: &Ty) -> Ty {
        self.scoped(|body| {
            body.expr(&cond.cond, &Ty::Unknown);
            let ty = body.block(&cond.then_branch, wanted);
            let other = cond.else_branch.as_ref().map_or(Ty::Unknown, |(_, other)| body.expr(other, wanted));
            if ty == Ty::Tuple(Vec::new()) { other } else { ty.or(|| other) }
        })
    }

    fn made_of_fields(&mut self, made: &syn::ExprStruct) -> Ty {
        let ty = self.at.path(&made.path);
        for field in &made.fields {
            let wanted = self.index.field(&ty, &member(&field.member));
            self.expr(&field.expr, &wanted);
        }
        made.rest.iter().for_each(|rest| drop(self.expr(rest, &Ty::Unknown)));
        self.variant_of(&made.path).map_or(ty, |(of, _)| of)
    }

    fn closure(&mut self, closure: &syn::ExprClosure, wanted: &Ty) -> Ty {
        let (given, wanted) = match wanted {
            Ty::Fn(given, ret) => (given.clone(), (**ret).clone()),
            _ => (Vec::new(), Ty::Unknown),
        };
        self.scoped(|body| {
            let mut takes = Vec::new();
            for (at, input) in closure.inputs.iter().enumerate() {
                let given = given.get(at).cloned().unwrap_or_default();
                let ty = match input {
                    syn::Pat::Type(pat) => body.at.ty(&pat.ty).or(|| given),
                    _ => given,
                };
                body.bind(input, &ty);
                takes.push(ty);
            }
            let written = match &closure.output {
                syn::ReturnType::Default => Ty::Unknown,
                ret => body.at.ret(ret),
            };
            let ret = body.expr(&closure.body, &wanted);
            Ty::Fn(takes, Box::new(written.or(|| ret).or(|| wanted)))
        })
    }

    fn choice(&mut self, choice: &syn::ExprMatch, wanted: &Ty) -> Ty {
        let of = self.expr(&choice.expr, &Ty::Unknown);
        choice.arms.iter().fold(Ty::Unknown, |ty, arm| {
            let its = self.scoped(|body| {
                body.bind(&arm.pat, &of);
                body.expr(&arm.body, wanted)
            });
            ty.or(|| its)
        })
    }

    /// The arguments of a macro, where they are expressions.
    pub fn called(&mut self, called: &syn::Macro) -> Ty {
        let name = called.path.segments.last().map(|last| last.ident.to_string()).unwrap_or_default();
        if name == "matches" {
            let parser = |input: syn::parse::ParseStream| {
                let (of, _, pat) = (input.parse()?, input.parse::<syn::Token![,]>()?, syn::Pat::parse_multi(input)?);
                let guard =
                    if input.parse::<Option<syn::Token![if]>>()?.is_some() { Some(input.parse()?) } else { None };
                input.parse::<Option<syn::Token![,]>>()?;
                Ok::<(syn::Expr, syn::Pat, Option<syn::Expr>), syn::Error>((of, pat, guard))
            };
            if let Ok((of, pat, guard)) = parser.parse2(called.tokens.clone()) {
                self.scoped(|body| {
                    let of = body.expr(&of, &Ty::Unknown);
                    body.bind(&pat, &of);
                    guard.iter().for_each(|guard| drop(body.expr(guard, &Ty::Unknown)));
                });
            }
            return Ty::prim("bool");
        }
        if name == "vec" {
            let array = proc_macro2::Group::new(proc_macro2::Delimiter::Bracket, called.tokens.clone());
            if let Ok(array) = syn::parse2(proc_macro2::TokenTree::Group(array).into()) {
                return self.expr(&array, &Ty::Unknown);
            }
        }
        let parser = Punctuated::<syn::Expr, syn::Token![,]>::parse_terminated;
        let Ok(args) = parser.parse2(called.tokens.clone()) else {
            self.tokens(called.tokens.clone());
            return Ty::Unknown;
        };
        let types: Vec<Ty> = args.iter().map(|arg| self.expr(arg, &Ty::Unknown)).collect();
        match name.as_str() {
            "format" => Ty::prim("String"),
            _ if types.iter().all(Ty::is_foreign) => Ty::foreign(),
            _ => Ty::Unknown,
        }
    }

    /// Calls among tokens that are no expressions: their receivers are not told.
    fn tokens(&mut self, tokens: proc_macro2::TokenStream) {
        use proc_macro2::{Delimiter, TokenTree};
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        for (at, token) in tokens.iter().enumerate() {
            match (at.checked_sub(1).map(|before| &tokens[before]), token, tokens.get(at + 1)) {
                (Some(TokenTree::Punct(dot)), TokenTree::Ident(name), Some(TokenTree::Group(args)))
                    if dot.as_char() == '.' && args.delimiter() == Delimiter::Parenthesis =>
                {
                    let line = name.span().start().line;
                    self.found.untold.entry(name.to_string()).or_insert(line);
                }
                (_, TokenTree::Group(group), _) => self.tokens(group.stream()),
                _ => {}
            }
        }
    }

    /// The enum and the variant that a path names.
    fn variant_of(&self, path: &syn::Path) -> Option<(Ty, String)> {
        let mut of = path.clone();
        let last = of.segments.pop()?.ident.to_string();
        of.segments.pop_punct();
        let found = match of.segments.is_empty() {
            true => {
                let (def, rest) = self.at.names.find(&self.at.module, &words(path))?;
                (Ty::Own(def, Vec::new()), rest.first()?.clone())
            }
            false => (self.at.path(&of), last),
        };
        self.index.variant(&found.0, &found.1).map(|_| found)
    }

    /// Gives the names of a pattern their types.
    pub fn bind(&mut self, pat: &syn::Pat, ty: &Ty) {
        match pat {
            syn::Pat::Ident(pat) => {
                pat.subpat.iter().for_each(|(_, inner)| self.bind(inner, ty));
                self.bind_name(&pat.ident.to_string(), ty.clone());
            }
            syn::Pat::Guard(pat) => {
                self.bind(&pat.pat, ty);
                self.expr(&pat.guard, &Ty::Unknown);
            }
            syn::Pat::Or(or) => or.cases.iter().for_each(|case| self.bind(case, ty)),
            syn::Pat::Paren(paren) => self.bind(&paren.pat, ty),
            syn::Pat::Reference(reference) => self.bind(&reference.pat, ty),
            syn::Pat::Slice(slice) => slice.elems.iter().for_each(|elem| self.bind(elem, &known::item(ty))),
            syn::Pat::Tuple(tuple) => {
                for (at, elem) in tuple.elems.iter().enumerate() {
                    self.bind(elem, &self.index.field(ty, &at.to_string()));
                }
            }
            syn::Pat::TupleStruct(of) => {
                for (at, elem) in of.elems.iter().enumerate() {
                    let inner = self.part(&of.path, ty, &at.to_string());
                    self.bind(elem, &inner);
                }
            }
            syn::Pat::Struct(of) => {
                for field in &of.fields {
                    let inner = self.part(&of.path, ty, &member(&field.member));
                    self.bind(&field.pat, &inner);
                }
            }
            syn::Pat::Type(pat) => {
                let ty = self.at.ty(&pat.ty).or_whole(ty.clone());
                self.bind(&pat.pat, &ty);
            }
            _ => {}
        }
    }

    /// Returns the type that a pattern of this path takes out of a value.
    fn part(&self, path: &syn::Path, ty: &Ty, field: &str) -> Ty {
        match words(path).last().map(String::as_str) {
            Some("Some" | "Ok" | "Continue") if path.segments.len() == 1 => return known::item(ty),
            Some("Err") if path.segments.len() == 1 => return ty.arg(1),
            _ => {}
        }
        match self.variant_of(path) {
            // The value knows what its type's parameters are.
            Some((of, variant)) => {
                let fields = self.index.variant(ty, &variant).or_else(|| self.index.variant(&of, &variant));
                fields.and_then(|fields| fields.get(field).cloned()).unwrap_or_default()
            }
            None => self.index.field(ty, field).or(|| self.index.field(&self.at.path(path), field)),
        }
    }
}

fn member(member: &syn::Member) -> String {
    match member {
        syn::Member::Named(name) => name.to_string(),
        syn::Member::Unnamed(at) => at.index.to_string(),
    }
}
