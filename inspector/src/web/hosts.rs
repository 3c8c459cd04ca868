//! Names by which a server may be addressed.
//!
//! A web page can make a browser send requests to this machine under the page's own name, if the name's owner points it
//! to the loopback address (DNS rebinding), and then read the answer. The request contains that name. So a server on
//! the loopback address answers only to addresses, which cannot be rebound, to `localhost`, and to the names it was
//! given.

use hyper::Request;
use hyper::header::HOST;
use std::net::{IpAddr, Ipv6Addr};

pub(super) struct Hosts {
    names: Vec<String>,
    /// True if any name is accepted.
    any: bool,
}

impl Hosts {
    /// Names in lower case. A server that listens on another address than the loopback one accepts any name, unless
    /// names are given.
    pub(super) fn new(listen: IpAddr, names: Vec<String>) -> Self {
        Self { any: !listen.to_canonical().is_loopback() && names.is_empty(), names }
    }

    /// Returns the reason for refusing a request, if any.
    pub(super) fn refusal<T>(&self, request: &Request<T>) -> Option<String> {
        let named = request.uri().authority().map(|authority| authority.as_str().as_bytes());
        let hosts = request.headers().get_all(HOST).iter().map(|host| host.as_bytes());
        let mut hosts = hosts.chain(named);
        // A browser always sends a name. A client without one is no browser.
        let strange = hosts.find(|host| !self.takes(host)).filter(|_| !self.any)?;
        let strange: String =
            String::from_utf8_lossy(strange).chars().filter(char::is_ascii_graphic).take(100).collect();
        Some(format!(
            "this server does not answer to the name {strange:?}, but to addresses, to localhost, and to names that gpumem serve \
             is given by --host\n"
        ))
    }

    fn takes(&self, host: &[u8]) -> bool {
        let Ok(host) = std::str::from_utf8(host) else { return false };
        let name = without_port(host).trim_end_matches('.').to_ascii_lowercase();
        let is_address = match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
            Some(inner) => inner.parse::<Ipv6Addr>().is_ok(),
            None => name.parse::<std::net::Ipv4Addr>().is_ok(),
        };
        is_address || name == "localhost" || self.names.contains(&name)
    }
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(hosts: &Hosts, uri: &str, headers: &[&str]) -> bool {
        let mut request = Request::builder().uri(uri);
        for header in headers {
            request = request.header(HOST, *header);
        }
        hosts.refusal(&request.body(()).unwrap()).is_none()
    }

    #[test]
    fn on_loopback_only_what_no_page_can_own_is_answered() {
        for listen in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            let hosts = Hosts::new(listen.parse().unwrap(), vec!["gpu.lan".into()]);
            for good in [
                "127.0.0.1",
                "127.0.0.1:9849",
                "[::1]:9849",
                "[::1]",
                "10.1.2.3:1",
                "localhost",
                "LocalHost:9849",
                "localhost.",
                "gpu.lan:80",
                "GPU.LAN.",
            ] {
                assert!(asked(&hosts, "/", &[good]), "{listen} {good}");
            }
            for bad in [
                "evil.example",
                "127.0.0.1.evil.example",
                "localhost.evil",
                "evil.gpu.lan",
                "",
                ":9849",
                "[::1",
                "::1",
                "0x7f.1",
                "127.1",
                "2130706433",
                "evil@127.0.0.1",
                "127.0.0.1:evil",
            ] {
                assert!(!asked(&hosts, "/", &[bad]), "{listen} {bad:?}");
            }
            // Every name in the request counts.
            assert!(!asked(&hosts, "/", &["localhost", "evil.example"]));
            assert!(!asked(&hosts, "http://evil.example/metrics", &["localhost"]));
            assert!(asked(&hosts, "http://localhost:1/metrics", &["localhost:1"]));
            assert!(asked(&hosts, "/", &[]), "no browser");
        }
    }

    #[test]
    fn elsewhere_any_name_is_answered_until_some_are_given() {
        for listen in ["0.0.0.0", "::", "10.0.0.7"] {
            let (any, named) =
                (Hosts::new(listen.parse().unwrap(), vec![]), Hosts::new(listen.parse().unwrap(), vec!["a.b".into()]));
            for host in ["evil.example", "", "\u{fc}"] {
                assert!(asked(&any, "/", &[host]) && !asked(&named, "/", &[host]), "{host:?}");
            }
            assert!(
                asked(&named, "/", &["a.b:9849"])
                    && asked(&named, "/", &["10.0.0.7:9849"])
                    && asked(&named, "/", &["localhost"])
            );
        }
    }
}
