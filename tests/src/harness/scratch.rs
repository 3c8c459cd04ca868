//! A folder for one test or one run.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A folder that is removed when this is dropped.
pub struct Scratch(pub(super) PathBuf);

impl Scratch {
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let path = loop {
            let name = format!("gm-suite-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
            let path = std::env::temp_dir().join(name);
            match std::fs::create_dir(&path) {
                Ok(()) => break path,
                // A killed process with the same number left the folder.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => panic!("{}: {error}", path.display()),
            }
        };
        // Programs run as other users, too.
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(&path, all).expect("its mode");
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.0.as_os_str().is_empty() {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_that_others_left_are_passed_over() {
        let own = Scratch::new();
        let name = own.path().to_str().expect("UTF-8");
        let (stem, number) = name.rsplit_once('-').expect("a number");
        let number: u32 = number.parse().expect("a number");
        // Other tests of this process use some of these folders.
        let all = (1..=8).map(|more| PathBuf::from(format!("{stem}-{}", number + more)));
        let left: Vec<Scratch> = all.filter(|path| std::fs::create_dir(path).is_ok()).map(Scratch).collect();
        assert!(!left.is_empty());
        let new = Scratch::new();
        assert!(left.iter().all(|left| left.path() != new.path()));
    }
}
