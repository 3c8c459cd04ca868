//! `gpumem serve`: metrics and profiles of all processes, for Prometheus and for stores of profiles.

use crate::args::{number_in, span};
use crate::context::Context;
use crate::failure::Result;
use crate::metrics::{self, Collector, Detail, Format, Lack, otlp, table};
use crate::web::{self, Asked, Endpoint, MadePage, Outcomes, Pages, Push, Ready, Reply, Source, StatusCode, Wanted};
use serde::Serialize;
use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

/// Serve metrics and profiles of all processes over HTTP, for Prometheus, Pyroscope, Parca
///
/// /metrics has the metrics, /debug/pprof/gpu?pid=PID the profile of a process, and /targets the list of processes that
/// have one. --otlp pushes the same profiles to a collector of OpenTelemetry. It serves every running process that
/// gpumem ps lists, containers included. Only root sees other users' processes.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The address to listen on; the default can be reached only from this machine. Port 0 takes any free port
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9849", value_parser = address)]
    listen: SocketAddr,
    /// A host name that requests may use (HTTP header Host); repeatable. IP addresses and localhost are also accepted.
    /// A server that does not listen on the loopback address accepts every name, unless this option is given
    #[arg(long, value_name = "NAME", value_parser = host, value_hint = clap::ValueHint::Hostname)]
    host: Vec<String>,
    /// TLS, users and passwords: a web-config file, as Prometheus' own programs take it
    #[arg(long, visible_alias = "web.config.file", value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    web_config: Option<PathBuf>,
    /// How many call sites and tags of each process to name: those that hold most. The others are summed. 0 names none
    #[arg(long, value_name = "N", default_value_t = metrics::TOP, value_parser = number_in::<usize>(0, 100))]
    top: usize,
    /// Maximum number of connections at a time; further ones are refused
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = number_in::<usize>(1, 10_000))]
    max_connections: usize,
    /// Also push the profiles to a receiver of OTLP: the http URL of a collector. Without a path, /v1development/profiles is added. OpenTelemetry's signal for profiles is in development and may change
    #[arg(long, value_name = "URL", value_hint = clap::ValueHint::Url)]
    otlp: Option<Endpoint>,
    /// Time between two pushes of a process
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = interval, requires = "otlp")]
    otlp_every: Duration,
    /// Do not look up symbols: call sites are modules and offsets
    #[arg(long)]
    no_symbols: bool,
}

#[derive(Serialize)]
struct Report {
    /// URL of the metrics.
    url: String,
}

fn address(text: &str) -> std::result::Result<SocketAddr, String> {
    let address = || match text.strip_prefix(':') {
        // As in Prometheus' own programs.
        Some(port) => Some(SocketAddr::new(IpAddr::from([0; 16]), port.parse().ok()?)),
        None => text.replace("localhost:", "127.0.0.1:").parse().ok(),
    };
    address()
        .ok_or_else(|| "allowed: an address and a port, such as 127.0.0.1:9849, [::1]:9849, or :9849 for all".into())
}

fn host(text: &str) -> std::result::Result<String, String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    match !text.is_empty() && text.chars().all(is_name) {
        true => Ok(text.trim_end_matches('.').to_ascii_lowercase()),
        false => Err("allowed: the name of a host, such as metrics.example.com, without a port".into()),
    }
}

fn interval(text: &str) -> std::result::Result<Duration, String> {
    let allowed = Duration::from_secs(1)..=Duration::from_secs(3600);
    span(text).ok().filter(|span| allowed.contains(span)).ok_or_else(|| "allowed: a time from 1s to 1h".into())
}

const JSON: &str = "application/json";
const PLAIN: &str = "text/plain; charset=utf-8";
/// Content type that profile collectors require.
const PROFILE: &str = "application/octet-stream";

/// Returns the answer to a request other than for the metrics.
fn other(collector: &mut Collector, asked: &Asked<'_>) -> Option<Reply> {
    let refused = |status, why: &str| Reply { status, kind: PLAIN, body: why.into() };
    Some(match asked.path {
        "/targets" if asked.host.is_empty() => refused(StatusCode::BAD_REQUEST, "the request says no host\n"),
        "/targets" => {
            let body = collector.targets(asked.host, asked.https).into();
            Reply { status: StatusCode::OK, kind: JSON, body }
        }
        "/debug/pprof/gpu" => {
            let mut words = asked.query.split('&').filter_map(|word| word.strip_prefix("pid="));
            let Some(pid) = words.next().and_then(|pid| pid.parse().ok()) else {
                return Some(refused(StatusCode::BAD_REQUEST, "whose? ?pid=PID; /targets lists all\n"));
            };
            match collector.profile(pid) {
                Ok(profile) => Reply { status: StatusCode::OK, kind: PROFILE, body: profile.to_vec() },
                Err((Lack::NotFound, why)) => refused(StatusCode::NOT_FOUND, &why),
                Err((Lack::Forbidden, why)) => refused(StatusCode::FORBIDDEN, &why),
                Err((Lack::Unavailable, why)) => refused(StatusCode::SERVICE_UNAVAILABLE, &why),
            }
        }
        _ => return None,
    })
}

/// Returns the makers of pushed profiles.
fn source(collector: Rc<RefCell<Collector>>) -> Source {
    let of_keys = Rc::clone(&collector);
    Source {
        keys: Box::new(move || of_keys.borrow_mut().begin_round()),
        make: Box::new(move |pid| collector.borrow_mut().otlp_request(pid)),
        kind: otlp::KIND,
        complaint: otlp::complaint,
    }
}

/// Adds what became of pushed profiles to a page.
fn add_outcomes(page: &mut metrics::Page, outcomes: &Outcomes) {
    let Outcomes { accepted, refused, dropped, failed_tries, waiting_bytes } = outcomes;
    for (name, count) in [("accepted", accepted), ("refused", refused), ("dropped", dropped)] {
        page.add(&table::OTLP_PROFILES, &[("outcome", name)], count.get() as f64);
    }
    page.add(&table::OTLP_FAILED_TRIES, &[], failed_tries.get() as f64);
    page.add(&table::OTLP_WAITING_BYTES, &[], waiting_bytes.get() as f64);
}

impl Args {
    /// Serves until a signal ends it.
    ///
    /// # Errors
    /// The reason why it cannot listen.
    pub(super) fn run(&self, context: &Context) -> Result<()> {
        let detail = Detail { top: self.top, symbols: !self.no_symbols };
        if let Some(why) = context.world.lacks_proc() {
            tracing::warn!("{why}");
        }
        let collector = Rc::new(RefCell::new(Collector::new(context.world.clone(), detail)));
        let (of_metrics, of_push) = (Rc::clone(&collector), Rc::clone(&collector));
        let outcomes = self.otlp.as_ref().map(|_| Rc::<Outcomes>::default());
        let push = self.otlp.clone().zip(outcomes.clone()).map(|(to, outcomes)| Push {
            to: to.or_path(otlp::PATH),
            each: self.otlp_every,
            source: source(of_push),
            outcomes,
        });
        let make = move || -> MadePage {
            let mut page: metrics::Page = of_metrics.borrow_mut().page();
            if let Some(outcomes) = &outcomes {
                add_outcomes(&mut page, outcomes);
            }
            Box::new(move |open| page.write(if open { Format::OpenMetrics } else { Format::Text }))
        };
        let pages = Pages::new(make, move |asked| other(&mut collector.borrow_mut(), asked));
        let wanted = Wanted {
            listen: self.listen,
            hosts: self.host.clone(),
            config: self.web_config.clone(),
            connections: self.max_connections,
            push,
        };
        web::serve(wanted, pages, |ready| {
            let Ready { at, https, asks_who } = ready;
            let is_safe = at.ip().is_loopback() || https && asks_who;
            if !is_safe {
                let what = match (https, asks_who) {
                    (true, _) => "whoever reaches it can read names of processes and call sites",
                    (false, true) => "passwords go there without TLS",
                    (false, false) => "whoever reaches it can read names of processes and call sites, without TLS",
                };
                tracing::warn!("{at} is not of this machine alone: {what}; --web-config sets TLS and users");
            }
            let report = Report { url: format!("{}://{at}/metrics", if https { "https" } else { "http" }) };
            context.print(&report, |out, report| {
                writeln!(out, "serving {}", report.url)?;
                writeln!(out, "alerts, a dashboard, what to add to Prometheus: gpumem help services")
            })
        })
    }
}
