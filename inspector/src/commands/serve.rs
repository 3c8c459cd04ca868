//! `gpumem serve`: metrics of all processes, for Prometheus.

use crate::args::number;
use crate::context::{Command, Context};
use crate::failure::Result;
use crate::metrics::{self, Detail, Format, Names, Naming};
use crate::web::{self, Made, Pages, Ready, Wanted};
use serde::Serialize;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// Serve metrics of all processes over HTTP, for Prometheus
///
/// The metrics are those of every running process that gpumem ps lists, containers included. Root sees other users' processes.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The address to listen on; the default is reached from this machine alone. Port 0 takes any free port
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9849", value_parser = address)]
    listen: SocketAddr,
    /// A name by which the server is asked for; may be given several times. On the loopback address, addresses and localhost are taken too; elsewhere, any name unless one is given here
    #[arg(long, value_name = "NAME", value_parser = host, value_hint = clap::ValueHint::Hostname)]
    host: Vec<String>,
    /// TLS, users and passwords: a web-config file, as Prometheus' own programs take it
    #[arg(long, visible_alias = "web.config.file", value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    web_config: Option<PathBuf>,
    /// How many call sites and tags of each process to name: those that hold most. The others are summed. 0 names none
    #[arg(long, value_name = "N", default_value_t = metrics::TOP, value_parser = top)]
    top: usize,
    /// Most connections at a time; further ones are refused
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = connections)]
    max_connections: usize,
    /// Do not look up symbols: call sites are modules and offsets
    #[arg(long)]
    no_symbols: bool,
}

#[derive(Serialize)]
struct Report {
    /// Where the metrics are.
    url: String,
}

fn address(text: &str) -> std::result::Result<SocketAddr, String> {
    let address = || match text.strip_prefix(':') {
        // As Prometheus' own programs take it.
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

fn top(text: &str) -> std::result::Result<usize, String> {
    number(text).ok().filter(|&n| n <= 100).ok_or_else(|| "allowed: a number from 0 to 100".into())
}

fn connections(text: &str) -> std::result::Result<usize, String> {
    number(text).ok().filter(|n| (1..=10_000).contains(n)).ok_or_else(|| "allowed: a number from 1 to 10000".into())
}

impl Command for Args {
    const NAME: &'static str = "serve";

    /// Serves until it is ended by a signal.
    ///
    /// # Errors
    /// What is in the way of listening.
    fn run(&self, context: &Context) -> Result<()> {
        let detail = Detail { top: self.top, symbols: !self.no_symbols };
        if let Some(why) = context.world.lacks_proc() {
            tracing::warn!("{why}");
        }
        let world = context.world.clone();
        let mut naming = Naming::Background(Names::default());
        let pages = Pages::new(move || {
            let page = metrics::of_all(&world, detail, &mut naming);
            Made { text: page.write(Format::Text), open_metrics: page.write(Format::OpenMetrics) }
        });
        let wanted = Wanted {
            listen: self.listen,
            hosts: self.host.clone(),
            config: self.web_config.clone(),
            connections: self.max_connections,
        };
        web::serve(&wanted, pages, |ready| {
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
