//! tests/programs/README.md lists each C program: what the first sentence of its source says, and which tests use it.
//!
//! `BLESS=1 cargo nextest run -p gpumem-tests --test repository programs::` rewrites the list.

use gpumem_tests::harness::artifacts::repository;
use std::collections::HashSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

const BEGIN: &str = "<!-- programs: generated -->\n";
const END: &str = "<!-- programs: end -->";

/// The folders below tests/programs, and what is in each.
const FOLDERS: [(&str, &str); 3] = [
    ("", "On the simulator and on a GPU. Each checks its results, counts what it did and prints one line of JSON."),
    ("clients", "Of one test or a few, on the simulator."),
    ("hip", "Of the tests of HIP alone, on the simulated libamdhip64 or without a device."),
];

/// All files below a folder with one of these ends, in order.
pub(crate) fn files(folder: &Path, ends: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path, ends));
        } else if path.extension().is_some_and(|end| ends.iter().any(|wanted| end == *wanted)) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The first sentence of the comment that a source begins with.
fn first_sentence(source: &Path) -> String {
    let text = fs::read_to_string(source).expect("a source");
    let comment = text.strip_prefix("/* ").and_then(|rest| rest.split("*/").next());
    let comment = comment.unwrap_or_else(|| panic!("{} begins without a comment", source.display()));
    let words: Vec<&str> = comment.split_whitespace().filter(|word| *word != "*").collect();
    let all = words.join(" ");
    let end = all.find(". ").unwrap_or(all.len());
    all[..end].trim_end_matches(['.', ':']).replace('|', "\\|")
}

/// A source that may start programs.
struct Source {
    /// A test as `binary::module`, any other by its path from `tests` on.
    name: String,
    text: String,
    /// Its words, without which a search for all programs takes a minute.
    words: HashSet<String>,
}

impl Source {
    /// True if this source starts, builds or loads that program of that folder.
    fn names(&self, program: &str, folder: &str) -> bool {
        if !self.words.contains(program) {
            return false;
        }
        // Programs of HIP's tests have names that others have, too.
        let is_for_hip = folder == "hip" || program.starts_with("hip_");
        let is_hip = self.text.contains("harness::hip") || self.name.starts_with("src/harness/hip");
        if (is_for_hip && folder == "hip" && !is_hip) || (!is_for_hip && self.name.starts_with("hip::")) {
            return false;
        }
        let ways =
            ["client(\"NAME\"", "program(\"NAME\"", "join(\"NAME\"", "\"NAME.c\"", "/NAME.c", "/NAME\"", "NAME.so"];
        ways.iter().any(|way| self.text.contains(&way.replace("NAME", program)))
            // A name that is no plain word is the program's wherever it stands in quotes.
            || (program.contains('_') || is_for_hip) && self.text.contains(&format!("\"{program}\""))
    }
}

fn sources() -> Vec<Source> {
    let tests = repository().join("tests");
    let all = ["tests", "src", "gpu"].into_iter().flat_map(|folder| files(&tests.join(folder), &["rs", "py", "sh"]));
    let all = all.map(|file| {
        let name = file.strip_prefix(&tests).expect("below it").with_extension("").to_string_lossy().into_owned();
        let name = name.strip_prefix("tests/").map_or_else(|| name.clone(), |test| test.replace('/', "::"));
        let text = fs::read_to_string(&file).expect("a source");
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let words = text.split(|c| !is_part(c)).map(str::to_owned).collect();
        Source { name, text, words }
    });
    // The table of what is built, and this file.
    all.filter(|source| !["src/harness/artifacts", "repository::programs"].contains(&&*source.name)).collect()
}

fn list() -> String {
    let (sources, mut list) = (sources(), String::new());
    for (folder, what) in FOLDERS {
        let path = repository().join("tests/programs").join(folder);
        let _ =
            write!(list, "## tests/programs/{folder}\n{what}\n\n| program | what it does | used by |\n|---|---|---|\n");
        for source in files(&path, &["c"]).into_iter().filter(|file| file.parent() == Some(&path)) {
            let name = source.file_stem().and_then(|name| name.to_str()).expect("a name in UTF-8");
            let users = sources.iter().filter(|source| source.names(name, folder)).map(|source| source.name.as_str());
            let users: Vec<_> = users.collect();
            let users = if users.is_empty() { "–".to_owned() } else { format!("`{}`", users.join("`, `")) };
            let _ = writeln!(list, "| `{name}` | {} | {users} |", first_sentence(&source));
        }
        list.push('\n');
    }
    list
}

#[test]
fn the_readme_lists_each_program() {
    let readme = repository().join("tests/programs/README.md");
    let text = fs::read_to_string(&readme).expect("the README");
    let (before, rest) = text.split_once(BEGIN).expect("the mark where the list begins");
    let (listed, after) = rest.split_once(END).expect("the mark where it ends");
    let list = list();
    if listed != list {
        assert!(std::env::var_os("BLESS").is_some(), "the list is not what it should be; BLESS=1 rewrites it:\n{list}");
        fs::write(&readme, format!("{before}{BEGIN}{list}{END}{after}")).expect("written");
    }
}
