//! The web-config file of Prometheus' programs and exporters: certificates, users, headers.

use super::tls::{self, Tls, bytes};
use super::users::Users;
use crate::failure::{Failure, Result};
use crate::text::{clean, shorten};
use hyper::header::{HeaderName, HeaderValue};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use tokio_rustls::TlsAcceptor;

#[derive(Default, Deserialize)]
#[serde(
    deny_unknown_fields,
    default,
    expecting = "a mapping with tls_server_config, http_server_config or basic_auth_users"
)]
struct Raw {
    tls_server_config: Option<Tls>,
    http_server_config: Option<Http>,
    basic_auth_users: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a mapping with headers")]
struct Http {
    /// Of no effect, since the server speaks only HTTP/1.1, as every collector does. Taken, so that a file of another
    /// exporter can be used.
    http2: bool,
    headers: BTreeMap<String, String>,
}

/// Headers that may be set, the same as in Prometheus' own programs.
const HEADERS: [&str; 5] = [
    "Content-Security-Policy",
    "Strict-Transport-Security",
    "X-Content-Type-Options",
    "X-Frame-Options",
    "X-XSS-Protection",
];

/// Most columns of a message about a file.
const MOST_SAID: usize = 500;

/// A web-config file that was read.
pub(super) struct Config {
    tls: Option<TlsAcceptor>,
    users: Users,
    asks_who: bool,
    headers: Vec<(HeaderName, HeaderValue)>,
    /// The files that it was read from, with their state at that time.
    files: Vec<(PathBuf, FileState)>,
}

/// Modification time and length of a file, which change with it.
type FileState = Option<(SystemTime, u64)>;

fn seen(path: &Path) -> FileState {
    let meta = std::fs::metadata(path).ok()?;
    Some((meta.modified().ok()?, meta.len()))
}

impl Config {
    /// Reads a file; paths in it are relative to its directory.
    ///
    /// # Errors
    /// Describes the problem and its place, in this file or in one that it names.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let mut files = vec![(path.to_owned(), seen(path))];
        let name = path.display();
        // A key or a value may be as long as the file.
        let wrong = |what: String| Failure::error(format!("web-config {name}: {}", shorten(&clean(&what), MOST_SAID)));
        let text = String::from_utf8(bytes(path)?).map_err(|_| wrong("it is not UTF-8".into()))?;
        // An empty file sets nothing.
        let raw: Option<Raw> = serde_saphyr::from_str(&text).map_err(|error| wrong(told(&error)))?;
        let Raw { tls_server_config, http_server_config, basic_auth_users } = raw.unwrap_or_default();
        let folder = path.parent().unwrap_or(Path::new("."));
        let by_certificate =
            tls_server_config.as_ref().is_some_and(|tls| tls.client_auth_type == "RequireAndVerifyClientCert");
        let tls = tls_server_config.map(|mut tls| {
            for file in
                [Some(&mut tls.cert_file), Some(&mut tls.key_file), tls.client_ca_file.as_mut()].into_iter().flatten()
            {
                *file = folder.join(&*file);
                files.push((file.clone(), seen(file)));
            }
            tls::of(&tls).map_err(|failure| wrong(format!("tls_server_config: {failure}")))
        });
        let tls = tls.transpose()?;
        let users = Users::new(basic_auth_users).map_err(|what| wrong(format!("basic_auth_users: {what}")))?;
        let headers = headers(&http_server_config.unwrap_or_default())
            .map_err(|what| wrong(format!("http_server_config: {what}")))?;
        Ok(Self { asks_who: by_certificate || users.are_there(), tls, users, headers, files })
    }

    /// Returns the TLS acceptor, if TLS is on.
    pub(super) fn tls(&self) -> Option<&TlsAcceptor> {
        self.tls.as_ref()
    }

    /// True if every client must authenticate, by a password or a certificate.
    pub(super) fn asks_who(&self) -> bool {
        self.asks_who
    }

    /// Returns true if the sender of this authorization header may get an answer.
    pub(super) async fn lets_in(&self, who: Option<&[u8]>) -> bool {
        !self.users.are_there() || self.users.are_right(who).await
    }

    /// Returns the headers of every answer.
    pub(super) fn headers(&self) -> &[(HeaderName, HeaderValue)] {
        &self.headers
    }

    /// True if a file has changed since, such as a renewed certificate.
    pub(super) fn is_old(&self) -> bool {
        self.files.iter().any(|(path, then)| seen(path) != *then)
    }
}

/// Describes the problem and its place, without quoting the file, which has secrets.
fn told(error: &serde_saphyr::Error) -> String {
    error.without_snippet().to_string()
}

fn headers(http: &Http) -> std::result::Result<Vec<(HeaderName, HeaderValue)>, String> {
    let one = |(name, value): (&String, &String)| {
        if !HEADERS.iter().any(|known| known.eq_ignore_ascii_case(name)) {
            return Err(format!("the header {name} cannot be set; allowed: {}", HEADERS.join(", ")));
        }
        let parsed = name.parse().ok().zip(value.parse().ok());
        parsed.ok_or_else(|| format!("the header {name} has a value that is none"))
    };
    http.headers.iter().map(one).collect()
}

#[cfg(test)]
mod tests;
