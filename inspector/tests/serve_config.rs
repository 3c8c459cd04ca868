//! `gpumem serve --web-config`: certificates, users, headers, and files that are wrong.

mod common;
use common::web::{Server, body, status};
use common::*;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;

/// An authority, with what it signs.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
    der: CertificateDer<'static>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let (pem, der) = (certificate.pem(), certificate.der().clone());
        Self { issuer: Issuer::new(params, key), pem, der }
    }

    /// A certificate and its key, as PEM and for a client.
    fn sign(&self) -> (String, String, CertificateDer<'static>, PrivateKeyDer<'static>) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let der = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        (certificate.pem(), key.serialize_pem(), certificate.der().clone(), der)
    }
}

fn write(dir: &Path, name: &str, text: &str) -> String {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

type Client = (CertificateDer<'static>, PrivateKeyDer<'static>);

/// Returns the answer that a client with TLS gets, or an error of TLS in words.
fn get(server: &Server, roots: &Authority, client: Option<Client>, headers: &str) -> Result<String, String> {
    let mut store = RootCertStore::empty();
    store.add(roots.der.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let builder = builder.with_root_certificates(store);
    let config = match client {
        Some((certificate, key)) => builder.with_client_auth_cert(vec![certificate], key).unwrap(),
        None => builder.with_no_client_auth(),
    };
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), server.connect());
    let request = format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).map_err(|error| error.to_string())?;
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Err(error) if answer.is_empty() => Err(error.to_string()),
        _ => Ok(String::from_utf8_lossy(&answer).into_owned()),
    }
}

#[test]
fn users_need_their_password() {
    let dir = dir();
    dir.put(me(), demo(me()));
    let hash = bcrypt::hash("secret", 4).unwrap();
    let config = format!(
        "basic_auth_users:\n  alice: {hash}\nhttp_server_config:\n  http2: false\n  headers:\n    X-Frame-Options: deny\n"
    );
    let config = write(dir.path(), "web.yml", &config);
    let server = Server::start(&dir, &["--web-config", &config]);
    for (authorization, expected) in [
        ("", 401),
        ("Authorization: Basic YWxpY2U6c2VjcmV0\r\n", 200),
        ("Authorization: basic YWxpY2U6c2VjcmV0\r\n", 200),
        ("Authorization: Basic YWxpY2U6c2VjcmV1\r\n", 401),
        ("Authorization: Basic Ym9iOnNlY3JldA==\r\n", 401),
        ("Authorization: Basic\r\n", 401),
        ("Authorization: Bearer YWxpY2U6c2VjcmV0\r\n", 401),
    ] {
        let answer = server.get("/metrics", authorization);
        assert_eq!(status(&answer), expected, "{authorization}: {answer}");
        assert_eq!(answer.contains("gpumem_live_bytes"), expected == 200, "{answer}");
        assert_eq!(answer.contains("www-authenticate: Basic"), expected == 401, "{answer}");
        assert!(answer.contains("x-frame-options: deny"), "{answer}");
    }
    // As Prometheus' own programs, all paths alike.
    assert_eq!(status(&server.get("/-/healthy", "")), 401);
}

#[test]
fn certificates_are_spoken_asked_for_and_renewed() {
    let dir = dir();
    dir.put(me(), demo(me()));
    let authority = Authority::new();
    let (pem, key, ..) = authority.sign();
    write(dir.path(), "cert.pem", &pem);
    write(dir.path(), "key.pem", &key);
    write(dir.path(), "ca.pem", &authority.pem);
    let plain = "tls_server_config:\n  cert_file: cert.pem\n  key_file: key.pem\n";
    let asks = format!("{plain}  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.pem\n");
    let (plain, asks) = (write(dir.path(), "plain.yml", plain), write(dir.path(), "asks.yml", &asks));

    let mut server = Server::start(&dir, &["--web-config", &plain]);
    assert!(server.url.starts_with("https://"), "{}", server.url);
    let answer = get(&server, &authority, None, "").unwrap();
    assert!(status(&answer) == 200 && answer.contains("gpumem_live_bytes"), "{answer}");
    let http = server.get("/metrics", "");
    assert!(status(&http) == 400 && body(&http).contains("this is HTTPS"), "{http}");
    // Garbage instead of a handshake.
    assert!(!server.say(&[22, 3, 1, 0, 5, 1, 2, 3, 4, 5]).contains("gpumem"));

    // Another authority signs from now on; until the server has looked, the old certificate is shown.
    let renewed = Authority::new();
    let (pem, key, ..) = renewed.sign();
    write(dir.path(), "key.pem", &key);
    write(dir.path(), "cert.pem", &pem);
    while get(&server, &renewed, None, "").is_err() {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(get(&server, &authority, None, "").unwrap_err().contains("certificate"), "the old one is gone");
    // What is wrong now leaves what was right.
    write(dir.path(), "cert.pem", "no certificate");
    std::thread::sleep(std::time::Duration::from_millis(1100));
    assert!(get(&server, &renewed, None, "").is_ok());
    assert!(server.is_running());

    write(dir.path(), "cert.pem", &pem);
    let server = Server::start(&dir, &["--web-config", &asks]);
    let refused = get(&server, &renewed, None, "");
    assert!(refused.as_ref().is_err_and(|error| error.contains("Certificate")), "{refused:?}");
    let (_, _, certificate, key) = authority.sign();
    let answer = get(&server, &renewed, Some((certificate, key)), "").unwrap();
    assert_eq!(status(&answer), 200, "{answer}");
    let (_, _, certificate, key) = renewed.sign();
    assert!(get(&server, &renewed, Some((certificate, key)), "").is_err(), "signed by another authority");
}

#[test]
fn what_is_wrong_in_a_file_is_told_with_its_place() {
    let dir = dir();
    let authority = Authority::new();
    let (pem, key, ..) = authority.sign();
    write(dir.path(), "cert.pem", &pem);
    write(dir.path(), "key.pem", &key);
    write(dir.path(), "other.pem", &authority.sign().1);
    let tls = "tls_server_config:\n  cert_file: cert.pem\n  key_file: key.pem\n";
    let other = tls.replace("key.pem", "other.pem");
    for (text, words) in [
        ("basic_auth_user:\n  a: b\n", "unknown field `basic_auth_user`"),
        ("basic_auth_users: 3\n", "line 1"),
        ("a: [1, 2\n", "line"),
        ("basic_auth_users:\n  a: secret\n", "the hash of a is no bcrypt hash; htpasswd"),
        ("tls_server_config:\n  cert_file: cert.pem\n", "missing field `key_file`"),
        ("tls_server_config:\n  cert_file: none.pem\n  key_file: key.pem\n", "none.pem"),
        ("tls_server_config:\n  cert_file: key.pem\n  key_file: key.pem\n", "has no certificate"),
        ("tls_server_config:\n  cert_file: cert.pem\n  key_file: cert.pem\n", "has no private key"),
        (&other, "cert_file and key_file do not belong together"),
        (&format!("{tls}  min_version: TLS10\n"), "min_version is \"TLS10\"; allowed: TLS12, TLS13"),
        (&format!("{tls}  min_version: TLS13\n  max_version: TLS12\n"), "min_version is above max_version"),
        (&format!("{tls}  client_auth_type: RequireAnyClientCert\n"), "allowed: NoClientCert, VerifyClientCertIfGiven"),
        (&format!("{tls}  client_auth_type: RequireAndVerifyClientCert\n"), "client_ca_file names none"),
        (&format!("{tls}  cipher_suites: [x]\n"), "unknown field `cipher_suites`"),
        ("http_server_config:\n  headers:\n    X-Other: y\n", "the header X-Other cannot be set; allowed: Content-"),
        ("http_server_config:\n  headers:\n    X-Frame-Options: \"a\\nb\"\n", "has a value that is none"),
    ] {
        let config = write(dir.path(), "web.yml", text);
        let answer = dir.gpumem(&["serve", "--listen", "127.0.0.1:0", "--web-config", &config]);
        assert_eq!((answer.code, answer.out.as_str()), (1, ""), "{text}: {}", answer.err);
        let begin = format!("gpumem: web-config {config}: ");
        assert!(answer.err.starts_with(&begin) && answer.err.contains(words), "{text}: {}", answer.err);
        assert!(!answer.err.contains("PRIVATE KEY"), "a secret is shown: {}", answer.err);
    }
    for (path, words) in [("/none.yml", "there is no file /none.yml"), ("/dev/zero", "not a regular file")] {
        let answer = dir.gpumem(&["serve", "--web-config", path]);
        assert!(answer.code != 0 && answer.err.contains(words), "{}", answer.err);
    }
}

/// A file of random bytes, and a good one with some of its bytes changed: read or refused, in bounds.
#[test]
fn random_files_are_read_or_refused() {
    let dir = dir();
    let hash = bcrypt::hash("secret", 4).unwrap();
    let good = format!(
        "# of the exporters\nbasic_auth_users:\n  alice: {hash}\n  bob: &x {hash}\nhttp_server_config:\n  headers: {{X-Frame-Options: 'deny'}}\n"
    );
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = move |most: usize| {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        ((random >> 33) % most as u64) as usize
    };
    // Anchors that refer to each other: a short file that would be an endless one.
    let mut bomb = String::from("a: &a [x,x,x,x,x,x,x,x,x]\n");
    for (one, before) in ('b'..='k').zip('a'..) {
        bomb += &format!("{one}: &{one} [{}]\n", vec![format!("*{before}"); 9].join(","));
    }
    let nested = format!("a: {}{}", "[".repeat(50_000), "]".repeat(50_000));
    let mut files: Vec<Vec<u8>> = vec![bomb.into_bytes(), nested.into_bytes(), vec![b'a'; 2 << 20]];
    for case in 0..60 {
        let mut bytes = good.clone().into_bytes();
        match case % 3 {
            0 => bytes = (0..next(500)).map(|_| next(256) as u8).collect(),
            1 => bytes.truncate(next(bytes.len())),
            _ => {}
        }
        for _ in 0..=next(4) {
            if !bytes.is_empty() {
                let at = next(bytes.len());
                bytes[at] = next(256) as u8;
            }
        }
        files.push(bytes);
    }
    // Whatever is read, the address cannot be listened on: each case ends by itself.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let path = dir.path().join("web.yml");
    for bytes in files {
        std::fs::write(&path, &bytes).unwrap();
        let answer = dir.gpumem(&["serve", "--listen", &taken, "--web-config", path.to_str().unwrap()]);
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(300)]).into_owned();
        assert!(answer.code == 1 && answer.err.starts_with("gpumem: "), "{shown}: {} {}", answer.code, answer.err);
        assert!(answer.err.len() < 2000 && answer.err.lines().count() < 4, "{shown}: {}", answer.err);
    }
}
