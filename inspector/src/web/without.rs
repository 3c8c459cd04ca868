//! Replaces `config` if the feature `tls` is off: there is no configuration, because no file is read.

use crate::failure::{Failure, Result};
use hyper::header::{HeaderName, HeaderValue};
use std::io;
use std::path::Path;

/// A type without values.
#[derive(Debug)]
pub(super) enum Config {}

impl Config {
    /// # Errors
    /// Always: says what this build lacks, and which build has it.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let what = format!("web-config {}: this gpumem was built without TLS and users", path.display());
        Err(Failure::error(what).fix("make builds one with them: target/release/gpumem (cargo feature tls)"))
    }

    pub(super) fn is_old(&self) -> bool {
        match *self {}
    }

    pub(super) fn asks_who(&self) -> bool {
        match *self {}
    }

    pub(super) fn headers(&self) -> &[(HeaderName, HeaderValue)] {
        match *self {}
    }

    pub(super) async fn lets_in(&self, _: Option<&[u8]>) -> bool {
        match *self {}
    }

    pub(super) fn tls(&self) -> Option<&Self> {
        match *self {}
    }

    pub(super) async fn accept<S>(&self, _: S) -> io::Result<S> {
        match *self {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs in builds with and without TLS.
    #[test]
    fn a_build_without_tls_says_so_and_which_build_has_it() {
        let said = Config::read(Path::new("/etc/gpumem/web.yml")).expect_err("no file is read").to_string();
        let expected = "web-config /etc/gpumem/web.yml: this gpumem was built without TLS and users; \
            make builds one with them: target/release/gpumem (cargo feature tls)";
        assert_eq!(said, expected);
        let manifest = include_str!("../../Cargo.toml");
        assert!(manifest.contains("\ndefault = [\"tls\"]\n"), "what make builds has it");
    }
}
