//! Certificates of the server and of clients.

use crate::failure::{Failure, Result, plain};
use crate::source::open;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion, version};
use serde::Deserialize;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;

/// Longest file of configuration, certificates or a key.
const MOST_BYTES: u64 = 1 << 20;

/// Certificates, and requirements on clients.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a mapping with cert_file and key_file")]
pub(super) struct Tls {
    pub cert_file: PathBuf,
    pub key_file: PathBuf,
    #[serde(default)]
    pub client_auth_type: String,
    #[serde(default)]
    pub client_ca_file: Option<PathBuf>,
    #[serde(default)]
    pub min_version: String,
    #[serde(default)]
    pub max_version: String,
}

/// Makes the TLS acceptor.
///
/// # Errors
/// Describes the problem with a file or a value.
pub(super) fn of(tls: &Tls) -> Result<TlsAcceptor> {
    let key = bytes(&tls.key_file)?;
    let key = PrivateKeyDer::from_pem_slice(&key).map_err(|error| {
        Failure::error(format!(
            "key_file {} has no private key: {error}; allowed: a private key in PEM",
            tls.key_file.display()
        ))
    })?;
    let provider = Arc::new(ring::default_provider());
    let versions = versions(&tls.min_version, &tls.max_version)?;
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(&versions);
    let builder = builder.map_err(|error| Failure::error(error.to_string()))?;
    let certificates = certificates("cert_file", &tls.cert_file)?;
    let wanted = match (tls.client_auth_type.as_str(), &tls.client_ca_file) {
        ("" | "NoClientCert", None) => None,
        ("" | "NoClientCert", Some(_)) => {
            return Err(Failure::error(
                "client_ca_file is of no use without client_auth_type: RequireAndVerifyClientCert",
            ));
        }
        (kind @ ("RequireAndVerifyClientCert" | "VerifyClientCertIfGiven"), Some(file)) => {
            let mut roots = RootCertStore::empty();
            for certificate in self::certificates("client_ca_file", file)? {
                roots.add(certificate).map_err(|error| Failure::error(format!("client_ca_file: {error}")))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier = if kind == "VerifyClientCertIfGiven" { verifier.allow_unauthenticated() } else { verifier };
            Some(verifier.build().map_err(|error| Failure::error(format!("client_ca_file: {error}")))?)
        }
        ("RequireAndVerifyClientCert" | "VerifyClientCertIfGiven", None) => {
            return Err(Failure::error(
                "client_auth_type asks for certificates, and client_ca_file names none to verify them by",
            ));
        }
        (other, _) => {
            return Err(Failure::error(format!(
                "client_auth_type is {other:?}; allowed: NoClientCert, VerifyClientCertIfGiven, RequireAndVerifyClientCert"
            )));
        }
    };
    let builder = match wanted {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder
        .with_single_cert(certificates, key)
        .map_err(|error| Failure::error(format!("cert_file and key_file do not belong together: {error}")))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn certificates(field: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let bytes = bytes(path)?;
    let all: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        Ok(_) => Err(Failure::error(format!("{field} {} has no certificate", path.display()))),
        Err(error) => {
            Err(Failure::error(format!("{field} {} is not a PEM file with certificates: {error}", path.display())))
        }
    }
}

/// Returns the TLS versions between these two; none older than 1.2.
fn versions(min: &str, max: &str) -> Result<Vec<&'static SupportedProtocolVersion>> {
    let number = |field: &str, text: &str, unset| match text {
        "" => Ok(unset),
        "TLS12" => Ok(12),
        "TLS13" => Ok(13),
        _ => Err(Failure::error(format!("{field} is {text:?}; allowed: TLS12, TLS13"))),
    };
    let (min, max) = (number("min_version", min, 12)?, number("max_version", max, 13)?);
    if min > max {
        return Err(Failure::error("min_version is above max_version"));
    }
    let all = [(12, &version::TLS12), (13, &version::TLS13)];
    Ok(all.into_iter().filter(|(number, _)| (min..=max).contains(number)).map(|(_, version)| version).collect())
}

/// Reads a regular file that is not too long.
///
/// # Errors
/// Says what prevents it.
pub(super) fn bytes(path: &Path) -> Result<Vec<u8>> {
    let file: File = open::any(path)?;
    let mut bytes = Vec::new();
    let name = path.display();
    let read = file.take(MOST_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|error| Failure::error(format!("cannot read {name}: {}", plain(&error))))?;
    match bytes.len() as u64 > MOST_BYTES {
        true => Err(Failure::error(format!("{name} is longer than 1 MiB"))),
        false => Ok(bytes),
    }
}
