//! Answers over HTTP, with a limit on everything that a client can request, and pushes to a collector. Knows nothing of
//! ledgers: its caller makes the pages.
//!
//! * [`answer`]: turns a request into its answer.
//! * [`hosts`]: names by which the server may be addressed.
//! * `config`: the web-config file. `tls`: its certificates. `users`: its users and their passwords. All three belong
//!   to the feature `tls`; `without` replaces them if it is off.
//! * [`push`]: bodies pushed to a collector at intervals. [`post`]: one request to it.
//!
//! One thread does all of it: it makes the pages within a bounded time, and other connections wait meanwhile.

mod answer;
#[cfg(feature = "tls")]
mod config;
mod hosts;
mod post;
mod push;
#[cfg(feature = "tls")]
mod tls;
#[cfg(feature = "tls")]
mod users;
#[cfg(any(test, not(feature = "tls")))]
#[cfg_attr(feature = "tls", expect(dead_code, reason = "built for its test"))]
mod without;

pub(crate) use answer::{Asked, MadePage, Pages, Reply};
pub(crate) use hyper::StatusCode;
pub(crate) use post::Endpoint;
pub(crate) use push::{Outcomes, Push, Source};

use crate::failure::{Failure, Result, plain};
use answer::Site;
#[cfg(feature = "tls")]
use config::Config;
use hosts::Hosts;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::sockopt::set_tcp_user_timeout;
use std::cell::{Cell, RefCell};
use std::future::pending;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{sleep, timeout};
#[cfg(not(feature = "tls"))]
use without::Config;

/// Longest head of a request, and most lines in it.
const MOST_HEAD: usize = 16 << 10;
const MOST_HEADERS: usize = 64;
/// The head of a request must arrive within this time. It is also the limit for an idle connection.
const HEAD_WITHIN: Duration = Duration::from_secs(10);
/// A client that reads nothing for this long is dropped.
const READS_WITHIN: Duration = Duration::from_secs(10);
/// Longest life of a connection; a collector opens another.
const MOST_LIFE: Duration = Duration::from_secs(600);
const LAST_ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Interval of checks for renewed certificates.
const LOOKS_EACH: Duration = Duration::from_secs(1);

/// Settings of a server.
pub(crate) struct Wanted {
    pub listen: SocketAddr,
    /// Names by which it may be addressed.
    pub hosts: Vec<String>,
    /// A web-config file.
    pub config: Option<PathBuf>,
    /// Connections at a time; more are refused.
    pub connections: usize,
    /// The push to a collector, if there is to be one.
    pub push: Option<Push>,
}

/// Properties of a server that is ready.
pub(crate) struct Ready {
    pub at: SocketAddr,
    pub https: bool,
    /// Clients must authenticate.
    pub asks_who: bool,
}

/// Serves pages until SIGINT or SIGTERM. Calls `ready` once it accepts connections.
///
/// # Errors
/// Problems in the web-config file, or with listening.
pub(crate) fn serve(wanted: Wanted, pages: Pages, ready: impl FnOnce(Ready) -> Result<()>) -> Result<()> {
    let config = wanted.config.as_deref().map(Config::read).transpose()?;
    let https = config.as_ref().is_some_and(|config: &Config| config.tls().is_some());
    let asks_who = config.as_ref().is_some_and(Config::asks_who);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(4).build();
    let runtime = runtime.map_err(|error| Failure::io("cannot start the server", &error))?;
    let done = LocalSet::new().block_on(&runtime, async {
        let listener = TcpListener::bind(wanted.listen).await.map_err(|error| {
            Failure::error(format!("cannot listen on {}: {}", wanted.listen, plain(&error)))
                .fix("name another address: --listen 127.0.0.1:9850")
        })?;
        let server = Rc::new(Server {
            site: Site::new(pages, Hosts::new(wanted.listen.ip(), wanted.hosts)),
            config: config.map(|config| RefCell::new(Rc::new(config))),
            path: wanted.config.unwrap_or_default(),
            looked: Cell::new(Instant::now()),
            open: Cell::new(0),
            most: wanted.connections,
        });
        let end = |kind| signal(kind).map_err(|error| Failure::io("cannot wait for signals", &error));
        let (mut interrupt, mut terminate) = (end(SignalKind::interrupt())?, end(SignalKind::terminate())?);
        let at = listener.local_addr().map_err(|error| Failure::io("cannot start the server", &error))?;
        ready(Ready { at, https, asks_who })?;
        // A write to a client or a collector that has hung up fails, and ends nothing else.
        let _pipe = end(SignalKind::pipe())?;
        let push = async {
            match wanted.push {
                Some(push) => push.run().await,
                None => pending().await,
            }
        };
        tokio::select! {
            () = server.accept_all(&listener) => Ok(()),
            never = push => match never {},
            _ = interrupt.recv() => Ok(()),
            _ = terminate.recv() => Ok(()),
        }
    });
    // Neither a password that is being compared nor a resolver is waited for.
    runtime.shutdown_background();
    done
}

struct Server {
    site: Site,
    /// The web-config file, if any, and its path.
    config: Option<RefCell<Rc<Config>>>,
    path: PathBuf,
    /// Time of the last check for changed files.
    looked: Cell<Instant>,
    /// Number of open connections.
    open: Cell<usize>,
    most: usize,
}

impl Server {
    async fn accept_all(self: &Rc<Self>, listener: &TcpListener) {
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => {
                    tracing::debug!("{peer} connects");
                    if self.open.get() >= self.most {
                        // Written at once, without waiting: a flood of connections costs no memory.
                        let _ = stream.try_write(FULL);
                        continue;
                    }
                    self.open.set(self.open.get() + 1);
                    let server = Rc::clone(self);
                    spawn_local(async move {
                        server.connection(stream).await;
                        server.open.set(server.open.get() - 1);
                        tracing::debug!("{peer} is gone");
                    });
                }
                // No descriptor is left, or the client is gone: later connections may succeed.
                Err(error) => {
                    tracing::warn!("cannot take a connection: {}", plain(&error));
                    sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    async fn connection(&self, stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        let _ = set_tcp_user_timeout(&stream, READS_WITHIN.as_millis() as u32);
        let config = self.config();
        let config = config.as_deref();
        let Some(tls) = config.and_then(Config::tls) else {
            return self.requests(stream, config).await;
        };
        let accepted = async {
            // A TLS handshake begins with byte 22; a letter is a request without TLS.
            let mut first = [0];
            if stream.peek(&mut first).await.is_ok_and(|_| first[0].is_ascii_alphabetic()) {
                let _ = stream.try_write(PLAIN_TO_TLS);
                return None;
            }
            let accepted = tls.accept(stream).await;
            accepted.inspect_err(|error| tracing::debug!("no TLS: {error}")).ok()
        };
        if let Ok(Some(stream)) = timeout(HEAD_WITHIN, accepted).await {
            self.requests(stream, config).await;
        }
    }

    /// Returns the current web-config file, or the earlier one if the file or one that it names is invalid now.
    fn config(&self) -> Option<Rc<Config>> {
        let mut config = self.config.as_ref()?.borrow_mut();
        if self.looked.get().elapsed() >= LOOKS_EACH && config.is_old() {
            match Config::read(&self.path) {
                Ok(read) if read.tls().is_some() == config.tls().is_some() => *config = Rc::new(read),
                Ok(_) => {
                    tracing::warn!("{}: whether TLS is spoken is not changed while it is served", self.path.display());
                }
                Err(failure) => tracing::warn!("{failure}; what was read before goes on"),
            }
            self.looked.set(Instant::now());
        }
        Some(Rc::clone(&config))
    }

    /// Answers the requests of one connection.
    async fn requests(&self, stream: impl AsyncRead + AsyncWrite + Unpin, config: Option<&Config>) {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(HEAD_WITHIN)
            .max_buf_size(MOST_HEAD)
            .max_headers(MOST_HEADERS);
        let service = service_fn(|request| self.site.answer(request, config));
        let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
        let done = match timeout(MOST_LIFE, connection.as_mut()).await {
            Ok(done) => done,
            Err(_) => {
                connection.as_mut().graceful_shutdown();
                timeout(LAST_ANSWER_WITHIN, connection).await.unwrap_or(Ok(()))
            }
        };
        if let Err(error) = done {
            tracing::debug!("a connection ends: {error}");
        }
    }
}

/// Answer to a client that speaks HTTP to an HTTPS server.
const PLAIN_TO_TLS: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n\
Content-Length: 29\r\nConnection: close\r\n\r\nthis is HTTPS: https://, TLS\n";
/// Answer to a client if all connections are taken.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\n\
Content-Length: 41\r\nRetry-After: 5\r\nConnection: close\r\n\r\ntoo many connections: --max-connections\r\n";
