//! A group's name and limit, from `GPUMEM_LIMIT_GROUP`, and the path of the group's file ([`crate::group`]).

use super::parse::parse_size;
use crate::place::{SHARED, SHARED_PREFIX};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Ending of the name of a group's file, if the user did not name the file.
pub const SUFFIX: &str = ".group";
/// The smallest limit.
pub const LEAST: u64 = 1 << 20;

/// The contents of `GPUMEM_LIMIT_GROUP`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupLimit {
    /// A name, or an absolute path.
    named: String,
    /// Bytes of each device that all members may take together.
    pub limit: u64,
}

impl GroupLimit {
    /// Parses `NAME:SIZE` or `/PATH:SIZE`; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let (named, size) = text.trim().rsplit_once(':')?;
        let limit = parse_size(size).filter(|limit| *limit >= LEAST)?;
        let is_path = named.len() > 1 && named.starts_with('/') && !named.ends_with('/');
        (is_path || is_name(named)).then(|| Self { named: named.to_owned(), limit })
    }

    /// Returns the group's name.
    pub fn name(&self) -> &str {
        let file = Path::new(&self.named).file_name().and_then(OsStr::to_str).unwrap_or(&self.named);
        file.strip_suffix(SUFFIX).filter(|name| !name.is_empty()).unwrap_or(file)
    }

    /// Returns the group's file, and true if the user named its directory. `$XDG_RUNTIME_DIR` is not used: a user's
    /// services and shells differ in it, and meet here.
    pub fn path(&self, gpumem_dir: Option<&OsStr>, uid: u32) -> (PathBuf, bool) {
        if self.named.starts_with('/') {
            return (PathBuf::from(&self.named), true);
        }
        let file = format!("{}{SUFFIX}", self.named);
        match gpumem_dir.filter(|dir| !dir.is_empty()) {
            Some(dir) => (Path::new(dir).join(file), true),
            None => {
                let root = SHARED.iter().find(|dir| Path::new(dir).is_dir()).unwrap_or(&SHARED[0]);
                (PathBuf::from(format!("{root}/{SHARED_PREFIX}{uid}")).join(file), false)
            }
        }
    }
}

fn is_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=64).contains(&text.len()) && !text.starts_with('.') && text.bytes().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_a_name_or_a_path_and_a_size() {
        let parsed = |text| GroupLimit::parse(text).map(|spec| (spec.named, spec.limit));
        assert_eq!(parsed("team-a:24GiB"), Some(("team-a".into(), 24 << 30)));
        assert_eq!(parsed(" pod_7.x:512M "), Some(("pod_7.x".into(), 512 << 20)));
        assert_eq!(parsed("/run/a:b/pod.group:1MiB"), Some(("/run/a:b/pod.group".into(), 1 << 20)));
        let long = format!("{}:1G", "a".repeat(65));
        for text in [
            "",
            "24GiB",
            "team:",
            ":24GiB",
            "team:1KiB",
            "team:0",
            "../a:1G",
            "a/b:1G",
            ".a:1G",
            "a b:1G",
            "/:1G",
            "/a/:1G",
            "team:-1",
            "t\u{e9}am:1G",
            &long,
        ] {
            assert_eq!(parsed(text), None, "{text}");
        }
    }

    #[test]
    fn a_groups_file_lies_where_all_processes_of_the_user_look() {
        let path = |text, dir: Option<&str>| GroupLimit::parse(text).unwrap().path(dir.map(OsStr::new), 7);
        assert_eq!(path("a:1G", Some("/x")), ("/x/a.group".into(), true));
        assert_eq!(path("a:1G", Some("")), ("/dev/shm/gpumem-7/a.group".into(), false));
        assert_eq!(path("/y/z:1G", Some("/x")), ("/y/z".into(), true));
        assert_eq!(GroupLimit::parse("/y/pod.group:1G").unwrap().name(), "pod");
    }
}
