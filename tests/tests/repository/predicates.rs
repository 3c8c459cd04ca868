//! A function whose name asks a question (`is_idle`, `has_room`) answers it and changes nothing. A reader of
//! `if x.is_idle()` need not look it up to know that no state changes there.
//!
//! The functions that it calls are not followed. Its own lines are checked: it returns an answer, takes nothing to
//! change it, and writes no atomic.

use gpumem_tests::harness::artifacts::repository;
use quote::ToTokens;
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};

const QUESTIONS: &[&str] = &["is_", "has_", "are_", "was_", "can_"];

/// Methods of atomics, locks' contents and cells that write.
const WRITES: &[&str] = &[
    "store",
    "swap",
    "compare_exchange",
    "compare_exchange_weak",
    "fetch_add",
    "fetch_sub",
    "fetch_or",
    "fetch_and",
    "fetch_max",
    "fetch_min",
    "fetch_update",
    "set",
];

/// Types of arguments that a question may change: a reader of memory moves the window that it looks through, and the
/// body of an exec is reached through its lease alone.
const READERS: &[&str] = &["M", "Lease"];

struct Questions {
    faults: Vec<(usize, String)>,
}

impl Questions {
    fn look(&mut self, signature: &syn::Signature, body: &syn::Block) {
        let name = signature.ident.to_string();
        if !QUESTIONS.iter().any(|question| name.starts_with(question)) {
            return;
        }
        let mut fault = |what: &str| {
            let line = signature.ident.span().start().line;
            self.faults.push((line, format!("`{name}` asks a question, but {what}")));
        };
        if matches!(signature.output, syn::ReturnType::Default) {
            fault("gives no answer: name it for what it does");
        }
        let own = signature.receiver().map(|own| &own.kind);
        let changes_self = matches!(own, Some(syn::ReceiverKind::Reference(_, _, Some(_))));
        if changes_self {
            fault("takes itself to change it");
        }
        for given in &signature.inputs {
            if let syn::FnArg::Typed(syn::PatType { ty, .. }) = given
                && let syn::Type::Reference(syn::TypeReference { mutability: Some(_), elem, .. }) = &**ty
                && !READERS.contains(&elem.to_token_stream().to_string().as_str())
            {
                fault("is given something to change");
            }
        }
        let mut writes = Writes(Vec::new());
        writes.visit_block(body);
        for write in writes.0 {
            fault(&format!("writes: `{write}`"));
        }
    }
}

impl<'ast> Visit<'ast> for Questions {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.look(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.look(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }
}

struct Writes(Vec<String>);

impl<'ast> Visit<'ast> for Writes {
    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        if WRITES.iter().any(|write| call.method == write) {
            self.0.push(call.to_token_stream().to_string());
        }
        visit::visit_expr_method_call(self, call);
    }

    /// A function within is looked at by itself.
    fn visit_item_fn(&mut self, _: &'ast syn::ItemFn) {}
}

fn faults(text: &str) -> Vec<(usize, String)> {
    let mut questions = Questions { faults: Vec::new() };
    questions.visit_file(&syn::parse_file(text).expect("a source file"));
    questions.faults
}

fn sources(below: &Path, all: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(below).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, all);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            all.push(path);
        }
    }
}

#[test]
fn a_question_changes_nothing() {
    let mut files = Vec::new();
    for room in ["shim/src", "shim/wire/src", "shim/abi/src", "kernels/src", "inspector/src", "tests/src"] {
        sources(&repository().join(room), &mut files);
    }
    assert!(files.len() > 300, "{} files", files.len());
    let mut told = Vec::new();
    for file in &files {
        let text = std::fs::read_to_string(file).expect("a source file");
        let name = file.strip_prefix(repository()).unwrap_or(file).display();
        told.extend(faults(&text).into_iter().map(|(line, what)| format!("{name}:{line}: {what}")));
    }
    assert!(told.is_empty(), "{}", told.join("\n"));
}

#[test]
fn a_question_that_changes_something_is_found() {
    let planted = "
        fn is_first(seen: &AtomicBool) -> bool { !seen.swap(true, Relaxed) }
        struct A;
        impl A {
            fn is_gone(&self) { self.gone() }
            fn has_room(&mut self) -> bool { self.room() > 0 }
            fn is_known(&self, all: &mut Vec<u8>) -> bool { all.is_empty() }
            fn is_idle(&self) -> bool { self.idle.load(Relaxed) }
            fn forget(&mut self) { self.gone.store(true, Relaxed) }
        }";
    let lines: Vec<usize> = faults(planted).into_iter().map(|(line, _)| line).collect();
    assert_eq!(lines, [2, 5, 6, 7]);
}
