//! Turns a request into its answer.

use super::Config;
use super::hosts::Hosts;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::{Method, Request, Response, StatusCode};
use std::cell::RefCell;
use std::convert::Infallible;
use std::time::{Duration, Instant};

/// A page of metrics that was made: returns it as OpenMetrics if told so, else as plain text.
pub(crate) type MadePage = Box<dyn Fn(bool) -> String>;

/// A page is served again for this long before it is made anew: many clients cost no more than one.
const FRESH: Duration = Duration::from_secs(1);

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";

/// A request for another page than the metrics.
pub(crate) struct Asked<'a> {
    pub path: &'a str,
    pub query: &'a str,
    /// The name and port by which the client knows the server; empty if the request has none.
    pub host: &'a str,
    pub https: bool,
}

/// The reply to such a request.
pub(crate) struct Reply {
    pub status: StatusCode,
    pub kind: &'static str,
    pub body: Vec<u8>,
}

type Other = dyn FnMut(&Asked<'_>) -> Option<Reply>;

/// Makers of the pages.
pub(crate) struct Pages {
    make: RefCell<Box<dyn FnMut() -> MadePage>>,
    other: RefCell<Box<Other>>,
}

impl Pages {
    /// `make` makes the metrics. `other` makes any other page; `None` if there is none at that path.
    pub(crate) fn new(
        make: impl FnMut() -> MadePage + 'static,
        other: impl FnMut(&Asked<'_>) -> Option<Reply> + 'static,
    ) -> Self {
        Self { make: RefCell::new(Box::new(make)), other: RefCell::new(Box::new(other)) }
    }
}

/// Everything that the server serves.
pub(super) struct Site {
    pages: Pages,
    hosts: Hosts,
    last: RefCell<Option<LastPage>>,
}

/// The last page.
struct LastPage {
    at: Instant,
    page: MadePage,
    /// Its text in each format that was requested: plain, OpenMetrics.
    texts: [Option<Bytes>; 2],
}

type HttpAnswer = Response<Full<Bytes>>;

impl Site {
    pub(super) fn new(pages: Pages, hosts: Hosts) -> Self {
        Self { pages, hosts, last: RefCell::default() }
    }

    pub(super) async fn answer(
        &self,
        request: Request<Incoming>,
        config: Option<&Config>,
    ) -> Result<HttpAnswer, Infallible> {
        let mut answer = match self.hosts.refusal(&request) {
            Some(why) => answer(StatusCode::FORBIDDEN, PLAIN, why),
            None => {
                let who = request.headers().get(AUTHORIZATION).map(HeaderValue::as_bytes);
                let may = match config {
                    Some(config) => config.lets_in(who).await,
                    None => true,
                };
                if may {
                    self.route(&request, config.is_some_and(|config| config.tls().is_some()))
                } else {
                    who_are_you()
                }
            }
        };
        for (name, value) in config.map(Config::headers).unwrap_or_default() {
            answer.headers_mut().insert(name, value.clone());
        }
        tracing::debug!("{} {}: {}", request.method(), request.uri().path(), answer.status());
        Ok(answer)
    }

    fn route(&self, request: &Request<Incoming>, https: bool) -> HttpAnswer {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut refused = answer(StatusCode::METHOD_NOT_ALLOWED, PLAIN, "only GET and HEAD are answered\n");
            refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return refused;
        }
        match request.uri().path() {
            "/metrics" => self.metrics(wants_open_metrics(request)),
            "/-/healthy" => answer(StatusCode::OK, PLAIN, "gpumem serves\n"),
            "/" => answer(StatusCode::OK, HTML, INDEX),
            path => self.other(request, path, https).unwrap_or_else(|| answer(StatusCode::NOT_FOUND, PLAIN, NOT_FOUND)),
        }
    }

    fn other(&self, request: &Request<Incoming>, path: &str, https: bool) -> Option<HttpAnswer> {
        let host = request.headers().get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let asked = Asked { path, query: request.uri().query().unwrap_or_default(), host, https };
        let Reply { status, kind, body } = (self.pages.other.borrow_mut())(&asked)?;
        let mut answer = answer(status, kind, body);
        if status == StatusCode::SERVICE_UNAVAILABLE {
            answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("5"));
        }
        Some(answer)
    }

    fn metrics(&self, open: bool) -> HttpAnswer {
        let mut last = self.last.borrow_mut();
        let fresh = last.take().filter(|last| last.at.elapsed() < FRESH);
        let LastPage { page, texts, .. } = last.insert(fresh.unwrap_or_else(|| {
            let page = (self.pages.make.borrow_mut())();
            LastPage { at: Instant::now(), page, texts: [None, None] }
        }));
        let body = texts[usize::from(open)].get_or_insert_with(|| page(open).into()).clone();
        answer(StatusCode::OK, if open { OPEN_METRICS } else { TEXT }, body)
    }
}

/// True if the client prefers OpenMetrics, or accepts no other format that the server has.
fn wants_open_metrics(request: &Request<Incoming>) -> bool {
    let values = request.headers().get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut best = (0.0_f32, 0.0_f32);
    for part in values.flat_map(|value| value.split(',')) {
        let mut words = part.split(';').map(str::trim);
        let kind = words.next().unwrap_or_default();
        let weight = words.find_map(|word| word.strip_prefix("q=")?.parse().ok()).unwrap_or(1.0);
        match kind {
            "application/openmetrics-text" => best.0 = best.0.max(weight),
            "text/plain" | "text/*" | "*/*" => best.1 = best.1.max(weight),
            _ => {}
        }
    }
    best.0 > best.1
}

fn who_are_you() -> HttpAnswer {
    let mut refused = answer(StatusCode::UNAUTHORIZED, PLAIN, "a user and a password are needed\n");
    refused
        .headers_mut()
        .insert(WWW_AUTHENTICATE, HeaderValue::from_static("Basic realm=\"gpumem\", charset=\"UTF-8\""));
    refused
}

fn answer(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> HttpAnswer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

const NOT_FOUND: &str = "not found; there are /metrics, /targets, /debug/pprof/gpu?pid=PID and /-/healthy\n";

const INDEX: &str = "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>gpumem</title></head><body>\
<h1>gpumem</h1><p><a href=\"/metrics\">Metrics</a>: what processes hold on the GPU.</p>\
<p><a href=\"/targets\">Targets</a>: the processes that have a profile, each at /debug/pprof/gpu?pid=PID.</p></body></html>\n";
