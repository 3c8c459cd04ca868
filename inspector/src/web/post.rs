//! One HTTP request to a collector, and its answer.

use crate::failure::plain;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HOST, RETRY_AFTER, USER_AGENT};
use hyper::http::uri::Authority;
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, spawn_local};

/// Longest answer that is read.
const MOST_ANSWER: usize = 64 << 10;

/// The URL of a collector.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    host: String,
    port: u16,
    /// Host and port as the URL has them.
    authority: String,
    path: String,
}

impl Endpoint {
    /// Returns the endpoint with this path, unless its URL has one.
    pub(crate) fn or_path(self, path: &str) -> Self {
        let path = if self.path == "/" { path.into() } else { self.path };
        Self { path, ..self }
    }
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let url = text.parse::<Uri>().ok();
        let parts = url.as_ref().and_then(|url| Some((url.scheme_str()?, url.authority()?, url.path_and_query()?)));
        let endpoint = match parts {
            Some(("https", ..)) => {
                return Err(
                    "TLS is not spoken here; allowed: the http URL of a collector on this machine, which passes \
                     profiles on by TLS"
                        .into(),
                );
            }
            Some(("http", authority, path)) => port(authority).map(|port| Self {
                host: authority.host().trim_matches(['[', ']']).to_owned(),
                port,
                authority: authority.as_str().to_owned(),
                path: path.as_str().to_owned(),
            }),
            _ => None,
        };
        endpoint.ok_or_else(|| "allowed: the URL of a collector, such as http://127.0.0.1:4318".into())
    }
}

/// Returns the port, or `None` if the authority has a user, no host or no valid port.
fn port(authority: &Authority) -> Option<u16> {
    let host = Some(authority.host()).filter(|host| !host.is_empty())?;
    match authority.as_str().strip_prefix(host)? {
        "" => Some(80),
        port => port.strip_prefix(':')?.parse().ok().filter(|&port| port > 0),
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "http://{}{}", self.authority, self.path)
    }
}

/// The answer of a collector.
pub(super) struct Answer {
    pub status: StatusCode,
    /// The time after which the collector wants to be asked again.
    pub retry_after: Option<Duration>,
    pub body: Bytes,
}

/// An open connection to a collector. Dropping it closes it.
pub(super) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    driver: JoinHandle<()>,
}

impl Connection {
    /// # Errors
    /// Says why the collector is not reached.
    pub(super) async fn open(to: &Endpoint) -> Result<Self, String> {
        let stream = TcpStream::connect((&*to.host, to.port)).await.map_err(|error| plain(&error))?;
        let _ = stream.set_nodelay(true);
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        let driver = spawn_local(async move {
            let _ = connection.await;
        });
        Ok(Self { sender, driver })
    }

    /// Posts a body that is compressed by gzip.
    ///
    /// # Errors
    /// Says why there is no whole answer.
    pub(super) async fn post(&mut self, to: &Endpoint, kind: &str, body: Bytes) -> Result<Answer, String> {
        let request = Request::builder().method(Method::POST).uri(&to.path).header(HOST, &to.authority);
        let request = request.header(CONTENT_TYPE, kind).header(CONTENT_ENCODING, "gzip");
        let agent = concat!("gpumem/", env!("CARGO_PKG_VERSION"));
        let request = request.header(USER_AGENT, agent).body(Full::new(body)).map_err(|error| error.to_string())?;
        self.sender.ready().await.map_err(|error| error.to_string())?;
        let answer: Response<Incoming> = self.sender.send_request(request).await.map_err(|error| error.to_string())?;
        let status = answer.status();
        let seconds = answer.headers().get(RETRY_AFTER).and_then(|after| after.to_str().ok()?.trim().parse().ok());
        let body = match Limited::new(answer.into_body(), MOST_ANSWER).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => Bytes::new(),
            Err(error) => return Err(error.to_string()),
        };
        Ok(Answer { status, retry_after: seconds.map(Duration::from_secs), body })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_url_without_tls_and_passwords() {
        for (text, shown, host, port) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1", "127.0.0.1", 4318),
            ("http://[::1]:4318/", "http://[::1]:4318/v1", "::1", 4318),
            ("http://otel.lan/push?a=b", "http://otel.lan/push?a=b", "otel.lan", 80),
        ] {
            let endpoint = text.parse::<Endpoint>().unwrap().or_path("/v1");
            assert_eq!((&*endpoint.to_string(), &*endpoint.host, endpoint.port), (shown, host, port), "{text}");
        }
        for (text, says) in [
            ("https://otel.lan", "on this machine"),
            ("otel.lan:4318", "such as http://"),
            ("4318", "such as http://"),
            ("", "such as http://"),
            ("http://", "such as http://"),
            ("http://:4318", "such as http://"),
            ("http://a:b@otel.lan", "such as http://"),
            ("ftp://otel.lan", "such as http://"),
            ("http://otel.lan:99999", "such as http://"),
        ] {
            let said = text.parse::<Endpoint>().unwrap_err();
            assert!(said.contains(says), "{text}: {said}");
        }
    }
}
