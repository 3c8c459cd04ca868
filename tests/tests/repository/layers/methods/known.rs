//! Answers of the standard library's methods, as far as code calls methods on the answer.

use super::ty::Ty;

/// Returns the types of a closure's arguments, if the closure is passed to this method.
pub fn given(of: &Ty, name: &str, before: &[Ty]) -> Vec<Ty> {
    let item = item(of);
    match (of, name) {
        (_, "fold" | "try_fold") => vec![before.first().cloned().unwrap_or_default(), item],
        (Ty::Other(map, of), "retain" | "or_insert_with_key") if map == "HashMap" => of.clone(),
        (Ty::Other(result, _), "map_err" | "or_else" | "unwrap_or_else" | "inspect_err" | "is_err_and")
            if result == "Result" =>
        {
            vec![of.arg(1)]
        }
        (Ty::Other(name_of, _), "with" | "update") if name_of == "LocalKey" => vec![of.arg(0)],
        _ => vec![item.clone(), item],
    }
}

/// Returns the type of the items that something holds, or goes through.
pub fn item(of: &Ty) -> Ty {
    match of {
        Ty::Other(name, of) if name == "HashMap" => Ty::Tuple(of.iter().take(2).cloned().collect()),
        Ty::Other(_, inner) if inner.is_empty() => Ty::foreign(),
        Ty::Other(..) => of.arg(0),
        _ => Ty::Unknown,
    }
}

fn result_of(given: &[Ty], at: usize) -> Ty {
    match given.get(at) {
        Some(Ty::Fn(_, ret)) => (**ret).clone(),
        _ => Ty::Unknown,
    }
}

fn given_at(given: &[Ty], at: usize) -> Ty {
    given.get(at).cloned().unwrap_or_default()
}

/// The answer of a method. `given`: its arguments.
pub fn answer(of: &Ty, name: &str, given: &[Ty]) -> Ty {
    // What is asked for decides what these answer.
    let by_wish = matches!(name, "into" | "try_into" | "parse" | "collect" | "sum");
    let is_foreign = !by_wish && of.is_foreign() && given.iter().all(Ty::is_foreign);
    let answer = answer_by_name(of, name, given);
    if is_foreign { answer.or(Ty::foreign) } else { answer }
}

fn answer_by_name(of: &Ty, name: &str, given: &[Ty]) -> Ty {
    let Ty::Other(kind, _) = of else { return Ty::Unknown };
    if matches!(name, "clone" | "as_ref" | "as_mut" | "borrow" | "borrow_mut" | "by_ref" | "to_owned") && kind != "ptr"
    {
        return of.clone();
    }
    match kind.as_str() {
        "Option" => option(of, name, given),
        "Result" => result(of, name, given),
        "Vec" | "Iter" | "HashMap" => sequence(of, name, given),
        "Mutex" | "RwLock" | "RefCell" => match name {
            "lock" | "try_lock" | "read" | "write" | "get_mut" | "into_inner" => {
                Ty::Other("Result".to_owned(), vec![of.arg(0), Ty::Unknown])
            }
            _ => Ty::Unknown,
        },
        "Weak" if name == "upgrade" => Ty::other("Option", of.arg(0)),
        "OnceLock" | "OnceCell" | "OnceBox" if name == "get" => Ty::other("Option", of.arg(0)),
        "OnceLock" | "OnceCell" if name == "get_or_init" => of.arg(0),
        "Cell" | "LocalKey" if matches!(name, "get" | "take" | "replace" | "into_inner") => of.arg(0),
        "UnsafeCell" if name == "get" => Ty::other("ptr", of.arg(0)),
        "ptr" if matches!(name, "as_ref" | "as_mut") => Ty::other("Option", of.arg(0)),
        "ptr" => of.clone(),
        "AtomicPtr" if matches!(name, "load" | "swap") => Ty::other("ptr", of.arg(0)),
        "bool" if name == "then" => Ty::other("Option", result_of(given, 0)),
        "bool" if name == "then_some" => Ty::other("Option", given_at(given, 0)),
        "AtomicBool" if matches!(name, "load" | "swap" | "fetch_or" | "fetch_and") => Ty::prim("bool"),
        "Entry" if name.starts_with("or_") => of.arg(0).or(|| result_of(given, 0)).or(|| given_at(given, 0)),
        _ => Ty::Unknown,
    }
}

fn option(of: &Ty, name: &str, given: &[Ty]) -> Ty {
    let item = of.arg(0);
    match name {
        "unwrap" | "expect" | "unwrap_or_default" | "get_or_insert_with" | "insert" | "get_or_insert"
        | "unwrap_unchecked" => item,
        "unwrap_or" => item.or(|| given_at(given, 0)),
        "unwrap_or_else" => item.or(|| result_of(given, 0)),
        "as_deref" | "as_deref_mut" | "take" | "filter" | "cloned" | "copied" | "or" | "or_else" | "xor"
        | "replace" | "inspect" | "take_if" => of.clone(),
        "map" => Ty::other("Option", result_of(given, 0)),
        "and_then" => result_of(given, 0),
        "and" => given_at(given, 0),
        "map_or" => given_at(given, 0).or(|| result_of(given, 1)),
        "map_or_else" => result_of(given, 0).or(|| result_of(given, 1)),
        "is_some" | "is_none" | "is_some_and" | "is_none_or" => Ty::prim("bool"),
        "ok_or" | "ok_or_else" => Ty::Other("Result".to_owned(), vec![item, Ty::Unknown]),
        "zip" => Ty::other("Option", Ty::Tuple(vec![item, given_at(given, 0).arg(0)])),
        "iter" | "iter_mut" | "into_iter" => Ty::other("Iter", item),
        "flatten" => item,
        "chain" => Ty::other("Iter", item),
        _ => Ty::Unknown,
    }
}

fn result(of: &Ty, name: &str, given: &[Ty]) -> Ty {
    let item = of.arg(0);
    match name {
        "unwrap" | "expect" | "unwrap_or_default" => item,
        "unwrap_or" => item.or(|| given_at(given, 0)),
        "unwrap_or_else" => item.or(|| result_of(given, 0)),
        "map" => Ty::Other("Result".to_owned(), vec![result_of(given, 0), of.arg(1)]),
        "map_err" => Ty::Other("Result".to_owned(), vec![item, result_of(given, 0)]),
        "and_then" => result_of(given, 0),
        "ok" => Ty::other("Option", item),
        "err" => Ty::other("Option", of.arg(1)),
        "or_else" => of.clone(),
        "map_or" => given_at(given, 0).or(|| result_of(given, 1)),
        "is_ok" | "is_err" | "is_ok_and" | "is_err_and" => Ty::prim("bool"),
        "iter" | "into_iter" => Ty::other("Iter", item),
        _ => Ty::Unknown,
    }
}

fn sequence(of: &Ty, name: &str, given: &[Ty]) -> Ty {
    let (item, is_map) = (item(of), matches!(of, Ty::Other(kind, _) if kind == "HashMap"));
    let iter = |item| Ty::other("Iter", item);
    match name {
        "get" | "get_mut" | "remove" | "insert" if is_map => Ty::other("Option", of.arg(1)),
        "get" | "get_mut" if matches!(given, [Ty::Other(range, _)] if range == "Iter") => {
            Ty::other("Option", of.clone())
        }
        "entry" if is_map => Ty::other("Entry", of.arg(1)),
        "range" | "range_mut" | "extract_if" => iter(item),
        "values" | "values_mut" | "into_values" => iter(of.arg(1)),
        "keys" | "into_keys" => iter(of.arg(0)),
        "remove" | "swap_remove" if matches!(of, Ty::Other(kind, _) if kind == "Vec") => item,
        "iter" | "iter_mut" | "into_iter" | "drain" | "filter" | "skip" | "take" | "rev" | "copied" | "cloned"
        | "inspect" | "peekable" | "step_by" | "skip_while" | "take_while" | "fuse" | "chain" => iter(item),
        "map" => iter(result_of(given, 0)),
        "filter_map" | "flat_map" | "map_while" => iter(self::item(&result_of(given, 0))),
        "flatten" => iter(self::item(&item)),
        "enumerate" => iter(Ty::Tuple(vec![Ty::prim("usize"), item])),
        "zip" => iter(Ty::Tuple(vec![item, self::item(&given_at(given, 0))])),
        "next" | "next_back" | "find" | "max_by_key" | "min_by_key" | "max_by" | "min_by" | "last" | "nth" | "min"
        | "max" | "reduce" | "first" | "get" | "get_mut" | "pop" | "pop_front" | "pop_back" | "front" | "back"
        | "back_mut" | "front_mut" | "peek" | "first_mut" | "last_mut" | "pop_first" => Ty::other("Option", item),
        "find_map" => result_of(given, 0),
        "collect" | "to_vec" | "into_boxed_slice" | "as_slice" | "as_mut_slice" | "leak" | "into_vec" | "split_off" => {
            Ty::other("Vec", item)
        }
        "chunks" | "windows" | "chunks_exact" => iter(Ty::other("Vec", item)),
        "split_first" | "split_last" => Ty::other("Option", Ty::Tuple(vec![item.clone(), Ty::other("Vec", item)])),
        "partition" => Ty::Tuple(vec![Ty::other("Vec", item.clone()), Ty::other("Vec", item)]),
        "fold" => given_at(given, 0),
        "as_ptr" | "as_mut_ptr" => Ty::other("ptr", item),
        _ => Ty::Unknown,
    }
}

/// The answer of a function that a path of this name leads to, which is not of this crate.
pub fn function(words: &[String], given: &[Ty]) -> Ty {
    let last = words.last().map(String::as_str).unwrap_or_default();
    let of = words.len().checked_sub(2).map(|at| words[at].as_str()).unwrap_or_default();
    let first = given_at(given, 0);
    match (of, last) {
        ("", "Some") => Ty::other("Option", first),
        ("", "Ok") => Ty::Other("Result".to_owned(), vec![first, Ty::Unknown]),
        ("", "Err") => Ty::Other("Result".to_owned(), vec![Ty::Unknown, first]),
        ("Arc" | "Rc", "downgrade") => Ty::other("Weak", first),
        ("Arc" | "Rc" | "Box", "as_ptr" | "into_raw") => Ty::other("ptr", first),
        ("Weak", "upgrade") => Ty::other("Option", first.arg(0)),
        ("Weak", "as_ptr") => Ty::other("ptr", first.arg(0)),
        ("Box" | "Arc" | "Rc", "new" | "leak" | "clone" | "pin" | "from_raw" | "from") => first,
        ("Mutex" | "RwLock" | "RefCell" | "Cell" | "AtomicPtr", "new") => Ty::other(of, first),
        ("mem", "take" | "replace") | ("Cell", "replace") | ("ManuallyDrop" | "AssertUnwindSafe", _) => first,
        ("Option", "take") => first,
        ("ptr", "from_ref" | "from_mut") => Ty::other("ptr", first),
        ("slice", "from_raw_parts" | "from_raw_parts_mut") => Ty::other("Vec", first.arg(0)),
        ("iter", "once") => Ty::other("Iter", first),
        ("iter", "from_fn" | "successors") => Ty::other("Iter", self::item(&result_of(given, given.len() - 1))),
        ("", "catch_unwind") | ("panic", "catch_unwind") => {
            Ty::Other("Result".to_owned(), vec![result_of(given, 0).or(|| first), Ty::Unknown])
        }
        ("", "AssertUnwindSafe") => first,
        _ => Ty::Unknown,
    }
}

/// True if a call is that of an atomic: it names an order.
pub fn is_atomic(args: &[&syn::Expr]) -> bool {
    let last = args.last().and_then(|arg| match arg {
        syn::Expr::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()),
        _ => None,
    });
    last.is_some_and(|order| ["Relaxed", "Acquire", "Release", "AcqRel", "SeqCst"].contains(&&*order))
}

/// Names that the standard library has for methods of its own types, too. Where the receiver does not tell, a call of
/// such a name means nothing.
pub const COMMON: &[&str] = &[
    "all",
    "and",
    "any",
    "as_mut",
    "as_ptr",
    "as_ref",
    "begin",
    "clear",
    "clone",
    "contains",
    "count",
    "drain",
    "end",
    "entry",
    "extend",
    "fill",
    "filter",
    "find",
    "first",
    "flush",
    "fold",
    "get",
    "get_mut",
    "insert",
    "into_inner",
    "is_empty",
    "is_some",
    "iter",
    "join",
    "keys",
    "last",
    "len",
    "load",
    "lock",
    "map",
    "max",
    "min",
    "new",
    "next",
    "or",
    "pop",
    "position",
    "push",
    "read",
    "remove",
    "replace",
    "reserve",
    "resize",
    "retain",
    "rev",
    "send",
    "set",
    "skip",
    "sort",
    "split",
    "start",
    "store",
    "sum",
    "swap",
    "take",
    "then",
    "trim",
    "update",
    "values",
    "wait",
    "with",
    "write",
    "zip",
];
