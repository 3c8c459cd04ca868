//! The words of the documents, and how they are laid out: a reader who meets a word finds it in one place, and a
//! line is short enough to be read.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// So many words of its own a reader of the documents is asked to learn.
const MOST_WORDS: usize = 25;
/// Characters of a line that is neither a row of a table nor code.
const MOST_CHARACTERS: usize = 600;

/// Every document, with its text.
fn documents() -> Vec<(PathBuf, String)> {
    fn below(folder: &Path, into: &mut Vec<(PathBuf, String)>) {
        for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                below(&entry, into);
            } else if entry.extension().is_some_and(|end| end == "md") {
                let text = fs::read_to_string(&entry).unwrap();
                into.push((entry, text));
            }
        }
    }
    let mut found = Vec::new();
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    below(&top.join("docs"), &mut found);
    for name in ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"] {
        found.push((top.join(name), fs::read_to_string(top.join(name)).unwrap()));
    }
    assert!(found.len() > 30, "{}", found.len());
    found
}

/// The words that a document defines: the first cells of its tables of words.
fn words(text: &str) -> Vec<String> {
    const HEADS: [&str; 2] = ["| word | meaning |", "| in the code | means |"];
    let (mut found, mut inside) = (Vec::new(), false);
    for line in text.lines() {
        inside = HEADS.contains(&line) || inside && line.starts_with('|');
        let cell = line.split('|').nth(1).filter(|_| inside && !HEADS.contains(&line));
        // A cell may have several, as `owner` and `ContextPool`; what marks them is no part of them.
        let several = cell.into_iter().flat_map(|cell| cell.split([';', ',']));
        let plain =
            several.map(|word| word.replace(['*', '`'], "").trim().trim_start_matches("a variable ").to_owned());
        found.extend(plain.filter(|word| !word.is_empty() && !word.starts_with('-')));
    }
    found
}

#[test]
fn the_glossary_is_short_and_no_word_stands_in_two_places() {
    let mut places = BTreeMap::<String, Vec<String>>::new();
    let mut of_glossary = 0;
    for (path, text) in documents() {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let words = words(&text);
        if name == "glossary.md" {
            of_glossary = words.len();
        }
        words.into_iter().for_each(|word| places.entry(word.to_lowercase()).or_default().push(name.clone()));
    }
    assert!((20..=MOST_WORDS).contains(&of_glossary), "docs/glossary.md has {of_glossary} words");
    assert!(["zone", "reference", "release stream", "streamkey"].iter().all(|word| places.contains_key(*word)));
    let twice: Vec<_> = places.iter().filter(|(_, places)| places.len() > 1).collect();
    assert!(twice.is_empty(), "{twice:?}");
}

#[test]
fn no_line_of_a_document_is_too_long_to_read() {
    let mut long = Vec::new();
    for (path, text) in documents() {
        let mut code = false;
        for (at, line) in text.lines().enumerate() {
            code ^= line.trim_start().starts_with("```");
            let characters = line.chars().count();
            if !code && !line.starts_with('|') && characters > MOST_CHARACTERS {
                long.push(format!("{}:{}: {characters}", path.display(), at + 1));
            }
        }
    }
    assert!(long.is_empty(), "{long:#?}");
}
