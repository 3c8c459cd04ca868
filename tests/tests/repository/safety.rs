//! Unsafe code says why it is safe: each `// SAFETY:` names what must hold and who sees to it, and each unsafe block,
//! impl and function has such words.
//!
//! Clippy's `undocumented_unsafe_blocks` wants a comment too, but takes any, and sees only what is compiled for this
//! machine. This reads all of it, the bodies of macros included. What it cannot tell is whether a comment is true.

use gpumem_tests::harness::artifacts::repository;
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};

/// Comments of fewer words cannot name both what must hold and who sees to it.
const FEWEST_WORDS: usize = 5;

/// Words that sound like a reason and give none. A comment that has nothing else is no comment.
const EMPTY: &[&str] = &[
    "a block that only the pool has",
    "a graph that only the cache knows",
    "a plain query",
    "a plain system call",
    "as above",
    "as the caller promises",
    "as the caller of this one vouches",
    "each call writes its out-parameter",
    "it ends with this call",
    "it is safe",
    "nobody else has it",
    "owners are never freed",
    "plain numbers",
    "plain queries",
    "plain system calls",
    "rule of the call",
    "takes nothing",
    "the caller's promise",
    "the program's own call",
    "the program's own call and its out-parameters",
    "the program's own call, passed on",
    "the program's own call, passed on as it came",
    "the program's own call, with its arguments",
    "the program's promise",
    "the rules of this module",
    "this is safe",
    "writes the handle",
    "writes the number",
];

/// One thing that is wrong, with the line that it is on.
type Fault = (usize, String);

/// A file as text and as tokens.
struct Source {
    lines: Vec<String>,
    tokens: TokenStream,
    parsed: syn::File,
}

impl Source {
    fn new(text: &str) -> Result<Self, String> {
        let tokens = text.parse().map_err(|error| format!("{error}"))?;
        let parsed = syn::parse_file(text).map_err(|error| error.to_string())?;
        Ok(Self { lines: text.lines().map(|line| line.trim().to_owned()).collect(), tokens, parsed })
    }

    /// Everything that is wrong, in the order of the lines.
    fn faults(&self) -> Vec<Fault> {
        let mut faults: Vec<Fault> = self.comments().filter_map(|(at, text)| Some((at, judge(&text)?))).collect();
        let mut blocks = Vec::new();
        unsafe_places(self.tokens.clone(), &mut blocks);
        let bare = blocks.into_iter().filter(|&line| !self.is_explained(line));
        faults.extend(bare.map(|line| (line, "unsafe without a SAFETY comment above it".to_owned())));
        let mut functions = Functions { faults: Vec::new(), of_a_trait: false };
        functions.visit_file(&self.parsed);
        faults.extend(functions.faults);
        faults.sort();
        faults
    }

    /// The SAFETY comments: their first line, and their text as one line.
    fn comments(&self) -> impl Iterator<Item = (usize, String)> {
        self.lines.iter().enumerate().filter_map(|(at, line)| {
            let first = line.strip_prefix(MARK)?;
            let rest = self.lines[at + 1..].iter().map_while(|line| comment(line).filter(|_| !line.starts_with(MARK)));
            let text = std::iter::once(first).chain(rest).map(str::trim).collect::<Vec<_>>().join(" ");
            Some((at + 1, text.trim().to_owned()))
        })
    }

    /// True if the statement that a line belongs to has a SAFETY comment above it.
    fn is_explained(&self, line: usize) -> bool {
        for above in self.lines[..line - 1].iter().rev() {
            if above.starts_with(MARK) {
                return true;
            }
            // A comment, an attribute, or the beginning of the same statement.
            let goes_on = comment(above).is_some() || above.starts_with("#[") || !above.ends_with([';', '{', '}', ',']);
            if !goes_on || above.is_empty() {
                return false;
            }
        }
        false
    }
}

const MARK: &str = "// SAFETY:";

/// The text of a line that is a comment, but not of the documentation.
fn comment(line: &str) -> Option<&str> {
    line.strip_prefix("//").filter(|rest| !rest.starts_with(['/', '!']))
}

/// Returns the fault of the text of a SAFETY comment.
fn judge(text: &str) -> Option<String> {
    let plain = text.replace('`', "").to_lowercase();
    let words = plain.split_whitespace().count();
    let mut parts = plain.split([';', '.']).map(str::trim).filter(|part| !part.is_empty()).peekable();
    if parts.peek().is_some() && parts.all(|part| EMPTY.contains(&part)) {
        return Some(format!("a SAFETY comment that names no invariant: {text}"));
    }
    (words < FEWEST_WORDS)
        .then(|| format!("a SAFETY comment of {words} words cannot say what holds and who keeps it: {text}"))
}

/// The lines of unsafe blocks and impls, those in macros included.
fn unsafe_places(tokens: TokenStream, lines: &mut Vec<usize>) {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Ident(word) if word == "unsafe" => {
                let explains = match tokens.peek() {
                    Some(TokenTree::Group(group)) => group.delimiter() == Delimiter::Brace,
                    Some(TokenTree::Ident(next)) => next == "impl",
                    _ => false,
                };
                if explains {
                    lines.push(word.span().start().line);
                }
            }
            TokenTree::Group(group) => unsafe_places(group.stream(), lines),
            _ => {}
        }
    }
}

/// Looks for unsafe functions whose documentation does not say what their callers have to see to.
///
/// A hook's first argument is a `Call`: its contract stands once, at the top of `shim/src/hooks/mod.rs`. A function
/// of a trait's impl has the contract that the trait gives it. An exported name has the one of the library whose name
/// it is, or of `gpumem.h`.
struct Functions {
    faults: Vec<Fault>,
    of_a_trait: bool,
}

impl Functions {
    fn look(&mut self, attributes: &[syn::Attribute], signature: &syn::Signature) {
        let said = |attribute: &syn::Attribute| match &attribute.meta {
            syn::Meta::NameValue(doc) if doc.path.is_ident("doc") => match &doc.value {
                syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => text.value().trim() == "# Safety",
                _ => false,
            },
            // `#[unsafe(no_mangle)]`
            syn::Meta::List(list) => list.path.is_ident("unsafe") && list.tokens.to_string() == "no_mangle",
            _ => false,
        };
        let is_hook = signature.inputs.first().is_some_and(|first| match first {
            syn::FnArg::Typed(first) => matches!(&*first.ty, syn::Type::Path(ty) if ty.path.is_ident("Call")),
            syn::FnArg::Receiver(_) => false,
        });
        if matches!(signature.safety, syn::Safety::Unsafe(_))
            && !self.of_a_trait
            && !is_hook
            && !attributes.iter().any(said)
        {
            let line = signature.ident.span().start().line;
            self.faults.push((line, format!("unsafe fn {} without a `# Safety` section", signature.ident)));
        }
    }
}

impl<'a> Visit<'a> for Functions {
    fn visit_item_fn(&mut self, item: &'a syn::ItemFn) {
        let before = std::mem::replace(&mut self.of_a_trait, false);
        self.look(&item.attrs, &item.sig);
        visit::visit_item_fn(self, item);
        self.of_a_trait = before;
    }

    fn visit_item_impl(&mut self, item: &'a syn::ItemImpl) {
        let before = std::mem::replace(&mut self.of_a_trait, item.trait_.is_some());
        visit::visit_item_impl(self, item);
        self.of_a_trait = before;
    }

    fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
        self.look(&item.attrs, &item.sig);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'a syn::TraitItemFn) {
        self.look(&item.attrs, &item.sig);
        visit::visit_trait_item_fn(self, item);
    }
}

/// Every Rust file below a folder, but what was built.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder of sources").map(|entry| entry.expect("an entry")) {
        let path = entry.path();
        let name = entry.file_name();
        if path.is_dir() && name != "target" && !name.as_encoded_bytes().starts_with(b".") {
            sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn unsafe_code_says_what_must_hold_and_who_sees_to_it() {
    let top = repository();
    let mut files = Vec::new();
    ["inspector", "kernels", "shim", "tests"].iter().for_each(|folder| sources(&top.join(folder), &mut files));
    files.sort();
    let (mut comments, mut said) = (0, Vec::new());
    for path in &files {
        let text = std::fs::read_to_string(path).expect("UTF-8");
        let name = path.strip_prefix(top).unwrap_or(path).display();
        let source = Source::new(&text).unwrap_or_else(|why| panic!("{name}: {why}"));
        comments += source.comments().count();
        said.extend(source.faults().into_iter().map(|(line, what)| format!("{name}:{line}: {what}")));
    }
    assert!(said.is_empty(), "{} of {comments} comments and places:\n{}", said.len(), said.join("\n"));
    assert!(comments > 500, "{comments} SAFETY comments in {} files: they are not all read", files.len());
}

/// Planted faults are found, by their lines.
#[test]
fn a_comment_that_says_nothing_is_found() {
    let planted = r#"
        fn f(at: *const u8) -> u8 {
            // WHY: as above; the program's own call.
            let one = unsafe { *at };
            // WHY: never freed.
            let two = unsafe { *at };
            let three = unsafe { *at };
            // WHY: our caller's `at` leads to
            // one byte that is mapped.
            let four =
                unsafe { *at };
            one + two + three + four
        }
        struct S(*const u8);
        unsafe impl Send for S {}
        macro_rules! m {
            () => { unsafe { std::hint::unreachable_unchecked() } };
        }
        /// Documented, but not for callers.
        unsafe fn g() {}
        /// # Safety
        /// One thread calls it.
        unsafe fn h() {}
        unsafe fn hook(_: Call) {}
        impl GlobalAlloc for S {
            unsafe fn alloc(&self) {
                unsafe fn inner() {}
            }
        }
    "#
    .replace("// WHY:", MARK);
    let faults = Source::new(&planted).expect("it parses").faults();
    let lines: Vec<usize> = faults.iter().map(|(line, _)| *line).collect();
    assert_eq!(lines, [3, 5, 7, 15, 17, 20, 27], "{faults:#?}");
    assert!(faults[0].1.contains("names no invariant") && faults[1].1.contains("of 2 words"), "{faults:#?}");
    assert!(faults[2].1.contains("without a SAFETY comment") && faults[5].1.contains("unsafe fn g"), "{faults:#?}");
}
