//! The files of deploy/ for Prometheus and Grafana: their names are metrics that exist, and a real Prometheus server
//! scrapes, answers each panel, and raises each alert that a program earns. Without the server and promtool those tests
//! say so and pass; docs/metrics.md tells what they showed.

use gpumem_tests::harness::artifacts::repository;
use gpumem_tests::harness::run::{Running, Scratch, wait_for};
use gpumem_tests::harness::{artifacts, client, command};
use gpumem_tests::skipped::installed;
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};

fn deploy(name: &str) -> String {
    let path = repository().join("deploy").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn dashboard() -> Value {
    serde_json::from_str(&deploy("grafana/gpumem.json")).expect("JSON")
}

/// Title and query of every target of every panel.
fn queries() -> Vec<(String, String)> {
    let board = dashboard();
    let panels = board["panels"].as_array().expect("panels").iter();
    let of = |panel: &Value| {
        let title = panel["title"].as_str().expect("a title").to_owned();
        let targets = panel["targets"].as_array().expect("targets").clone();
        targets.into_iter().map(move |target| (title.clone(), target["expr"].as_str().expect("a query").to_owned()))
    };
    panels.flat_map(of).collect()
}

/// Words of a text that are named as our metrics are.
fn metrics_in(text: &str) -> BTreeSet<&str> {
    let words = text.split(|letter: char| !(letter.is_ascii_lowercase() || letter == '_'));
    words.filter(|word| word.starts_with("gpumem_")).collect()
}

#[test]
fn what_dashboard_and_alerts_name_is_a_metric() {
    let all = gpumem_inspector::metrics();
    let known = |name: &str| all.iter().any(|metric| metric.name == name);
    for (title, query) in queries() {
        let named = metrics_in(&query);
        assert!(!named.is_empty(), "{title}: {query}");
        assert!(named.iter().all(|name| known(name)), "{title}: {query}");
    }
    let rules = deploy("prometheus/gpumem.rules.yml");
    let exprs = rules.lines().filter(|line| !line.trim_start().starts_with(['#', 's', 'd'])).collect::<String>();
    let named = metrics_in(&exprs);
    assert!(named.len() >= 9, "{named:?}");
    assert!(named.iter().all(|name| known(name)), "{named:?}");
}

/// The dashboard has what Grafana needs: panels that do not cover each other, each with a source and its own number.
#[test]
fn the_dashboard_is_one() {
    let board = dashboard();
    assert!(board["schemaVersion"].as_u64().is_some_and(|version| version >= 36) && board["uid"] == "gpumem");
    let variables = board["templating"]["list"].as_array().expect("variables");
    let names: Vec<_> = variables.iter().map(|variable| variable["name"].as_str().expect("a name")).collect();
    assert_eq!(names, ["datasource", "instance", "process"]);
    // Those of @grafana/schema that are in use here: what a file has beside them Grafana may drop. `make packages-test
    // ARGS=tools` holds all of the file to that package.
    let known = "name label type query datasource refresh sort multi includeAll allValue current";
    for variable in variables {
        let keys = variable.as_object().expect("an object").keys();
        assert_eq!(keys.filter(|key| !known.split(' ').any(|it| it == *key)).collect::<Vec<_>>(), [""; 0]);
        let current = &variable["current"];
        assert!(current.is_null() || current["text"].is_string() && current["value"].is_string(), "{variable}");
    }
    let panels = board["panels"].as_array().expect("panels");
    let (mut ids, mut cells) = (BTreeSet::new(), BTreeSet::new());
    for panel in panels {
        let number = |name: &str| panel["gridPos"][name].as_u64().expect("a number");
        assert!(ids.insert(panel["id"].as_u64()), "{panel}");
        assert!(["stat", "timeseries"].contains(&panel["type"].as_str().expect("a type")), "{panel}");
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{panel}");
        assert!(panel["description"].as_str().is_some_and(|text| text.ends_with('.')), "{panel}");
        assert!(number("x") + number("w") <= 24, "{panel}");
        for x in number("x")..number("x") + number("w") {
            for y in number("y")..number("y") + number("h") {
                assert!(cells.insert((x, y)), "two panels at {x}, {y}: {}", panel["title"]);
            }
        }
        for target in panel["targets"].as_array().expect("targets") {
            let expr = target["expr"].as_str().expect("a query");
            assert_eq!(expr.matches('(').count(), expr.matches(')').count(), "{expr}");
            assert!(expr.contains("$instance"), "{expr}");
        }
    }
    assert!(panels.len() >= 15);
}

/// A program with the moods that alerts are for, and `gpumem serve` beside it.
struct Served {
    program: Running,
    server: Running,
    /// `127.0.0.1:PORT`.
    at: String,
}

fn served(dir: &Path, args: &[&str]) -> Served {
    let program = client("moods").dir(dir).waits();
    let program = program.envs(&[
        ("GPUMEM_LIMIT", "512MiB"),
        ("SIM_DEVICE_MEM", "500M"),
        ("GPUMEM_GROWTH_INTERVAL", "20ms"),
        ("GPUMEM_GRAPH_CACHE", "2"),
        ("GPUMEM_STRANDED", "report"),
        ("GPUMEM_TAG", "moods"),
    ]);
    let program = program.start(true);
    program.says("serving");
    let (server, at) = serve(dir, args);
    Served { program, server, at }
}

/// `gpumem serve`, and where it listens.
fn serve(dir: &Path, args: &[&str]) -> (Running, String) {
    let server = command(&artifacts().gpumem).args(["serve", "--listen", "127.0.0.1:0"]).args(args);
    let server = server.env("GPUMEM_DIR", dir).start(false);
    server.says("serving http");
    let at = server.stdout().split('/').nth(2).expect("an address").to_owned();
    (server, at)
}

#[test]
fn promtool_takes_rules_and_pages() {
    let Some(promtool) = installed("promtool") else { return };
    let folder = repository().join("deploy/prometheus");
    for args in [["check", "rules", "gpumem.rules.yml"], ["test", "rules", "gpumem.rules.test.yml"]] {
        let said = Command::new(&promtool).args(args).current_dir(&folder).output().expect("promtool runs");
        assert!(said.status.success(), "{args:?}: {}{}", text(&said.stdout), text(&said.stderr));
    }
    let dir = Scratch::new();
    let mut served = served(dir.path(), &[]);
    served.program.tell("near");
    let page = get(&served.at, "/metrics");
    let mut check = Command::new(&promtool);
    let check = check.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut check = check.spawn().expect("promtool runs");
    check.stdin.take().expect("piped").write_all(page.as_bytes()).expect("it reads");
    let said = check.wait_with_output().expect("it ends");
    assert!(said.status.success(), "{}{}", text(&said.stdout), text(&said.stderr));
    assert_eq!(text(&said.stdout) + &text(&said.stderr), "", "no remark either");
    served.program.finish().ok();
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The body of an answer over HTTP.
fn get(at: &str, path: &str) -> String {
    let answer = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(at)?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(text(&answer))
    };
    let answer = answer().unwrap_or_default();
    answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default()
}

/// A Prometheus server, and what it answers to queries.
struct Prometheus {
    at: String,
    _running: Running,
}

impl Prometheus {
    /// Scrapes every second. The rules are ours, with spans and bounds as they are for a program of seconds.
    fn start(prometheus: &Path, dir: &Path, target: &str) -> Self {
        let rules = deploy("prometheus/gpumem.rules.yml").replace("10m", "8s").replace("268435456", "67108864");
        let lines = rules.lines().map(|line| match line.trim_start().starts_with("for: ") {
            true => "        for: 1s".to_owned(),
            false => line.to_owned(),
        });
        std::fs::write(dir.join("rules.yml"), lines.collect::<Vec<_>>().join("\n")).expect("written");
        let config = format!(
            "global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}\nrule_files: [rules.yml]\nscrape_configs:\n  - job_name: gpumem\n    static_configs: [{{targets: ['{target}']}}]\n    basic_auth: &who {{username: prometheus, password: secret}}\n  - job_name: listed\n    http_sd_configs: [{{url: 'http://{target}/targets', refresh_interval: 1s, basic_auth: *who}}]\n    basic_auth: *who\n    metrics_path: /-/healthy\n"
        );
        std::fs::write(dir.join("prometheus.yml"), config).expect("written");
        // Free a moment ago; who takes it in between is told by the server's end.
        let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
        let at = format!("127.0.0.1:{port}");
        let data = format!("--storage.tsdb.path={}", dir.join("data").display());
        let running = command(prometheus)
            .arg(format!("--config.file={}", dir.join("prometheus.yml").display()))
            .arg(data)
            .args([&format!("--web.listen-address={at}"), "--log.level=error"])
            .start(false);
        wait_for("Prometheus to be ready", || get(&at, "/-/ready").contains("Ready"));
        Self { at, _running: running }
    }

    fn query(&self, query: &str) -> Vec<Value> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let answer = get(&self.at, &format!("/api/v1/query?query={encoded}"));
        let answer: Value = serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{query}: {error}: {answer}"));
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        answer["data"]["result"].as_array().expect("a vector").clone()
    }

    /// True if its service discovery has the process, with the query of its profile.
    fn discovers(&self, pid: u32) -> bool {
        let answer: Value = serde_json::from_str(&get(&self.at, "/api/v1/targets")).expect("JSON");
        let targets = answer["data"]["activeTargets"].as_array().expect("targets").iter();
        let mut labels = targets.filter(|target| target["scrapePool"] == "listed").map(|target| &target["labels"]);
        labels.any(|labels| labels["pid"].as_str() == Some(&*pid.to_string()) && labels["service_name"].is_string())
    }

    /// Alerts that fire now, or did at any time.
    fn fires(&self, query: &str) -> BTreeSet<String> {
        let samples = self.query(query);
        samples.iter().map(|sample| sample["metric"]["alertname"].as_str().unwrap_or("?").to_owned()).collect()
    }

    fn wait_for_alert(&self, name: &str) {
        let query = format!("ALERTS{{alertstate=\"firing\",alertname=\"{name}\"}}");
        wait_for(name, || !self.query(&query).is_empty());
    }
}

/// A user, whose password is "secret".
const USERS: &str = "basic_auth_users:\n  prometheus: $2b$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW\n";

const FIRING: &str = "ALERTS{alertstate=\"firing\"}";

#[test]
fn a_prometheus_server_scrapes_answers_and_alerts() {
    let Some(prometheus) = installed("prometheus") else { return };
    let (dir, work) = (Scratch::new(), Scratch::new());
    let config = work.path().join("web.yml");
    std::fs::write(&config, USERS).expect("written");
    // Port 9 discards, where anything listens at all.
    let args = ["--web-config", config.to_str().expect("text"), "--otlp", "http://127.0.0.1:9"];
    let mut served = served(dir.path(), &args);
    let server = Prometheus::start(&prometheus, work.path(), &served.at);
    wait_for("a scrape", || server.query("up{job=\"gpumem\"}").iter().any(|up| up["value"][1] == "1"));
    wait_for("two scrapes", || server.query("count_over_time(gpumem_up[1m]) > 2").len() == 1);
    assert_eq!(server.fires(FIRING), BTreeSet::new());
    wait_for("the process as a target", || server.discovers(served.program.pid()));

    served.program.tell("strand");
    server.wait_for_alert("GpumemStranded");
    served.program.tell("rest");
    served.program.tell("grow");
    server.wait_for_alert("GpumemMemoryGrows");
    for (title, query) in queries() {
        let query = query.replace("$instance", ".*").replace("$process", ".*").replace("$__rate_interval", "10s");
        assert!(!server.query(&query).is_empty(), "the panel {title:?} is empty: {query}");
    }
    served.program.tell("rest");
    served.program.tell("over");
    server.wait_for_alert("GpumemOutOfMemory");
    served.program.tell("thrash");
    server.wait_for_alert("GpumemGraphCacheThrashes");
    served.program.tell("near");
    server.wait_for_alert("GpumemNearLimit");
    server.wait_for_alert("GpumemDeviceNearlyFull");
    served.program.tell("rest");
    wait_for("all alerts to resolve", || server.fires(FIRING).is_empty());
    let fired = server.fires(&format!("count_over_time({FIRING}[10m])"));
    assert_eq!(fired.len(), 6, "all but GpumemNotRecorded: {fired:?}");

    served.program.finish().ok();
    wait_for("the process to be gone", || server.query("gpumem_up == 1").is_empty());
    assert_eq!(server.query("gpumem_processes{status=\"running\"}")[0]["value"][1], "0");
    drop(served.server);
}

/// A program that runs out of memory and dies of it before anybody has asked for its counters, and one whose ledger
/// cannot be read: both are told.
#[test]
fn what_dies_or_cannot_be_read_raises_its_alert() {
    let Some(prometheus) = installed("prometheus") else { return };
    let (dir, work) = (Scratch::new(), Scratch::new());
    let config = work.path().join("web.yml");
    std::fs::write(&config, USERS).expect("written");
    let server = serve(dir.path(), &["--web-config", config.to_str().expect("text")]);
    let prometheus = Prometheus::start(&prometheus, work.path(), &server.1);
    wait_for("a scrape", || prometheus.query("up{job=\"gpumem\"}").iter().any(|up| up["value"][1] == "1"));

    // It has one second at most between two scrapes, and takes less.
    let mut dies = client("moods").dir(dir.path()).env("SIM_DEVICE_MEM", "500M").waits().start(true);
    dies.says("serving");
    dies.tell("over");
    dies.tell("die");
    prometheus.wait_for_alert("GpumemOutOfMemory");
    let up = prometheus.query(&format!("gpumem_up{{pid=\"{}\"}}", dies.pid()));
    assert_eq!(up[0]["value"][1], "0", "{up:?}");
    assert_eq!(prometheus.fires(FIRING), BTreeSet::from(["GpumemOutOfMemory".to_owned()]), "it has ended");
    drop(dies);

    let running = client("held").dir(dir.path()).waits().start(true);
    running.says("held");
    let ledger = running.ledger().path;
    let whole = std::fs::read(&ledger).expect("a ledger");
    let spoilt = ledger.with_extension("spoilt");
    std::fs::write(&spoilt, [b"no ledger", &whole[9..]].concat()).expect("written");
    std::fs::rename(&spoilt, &ledger).expect("renamed");
    prometheus.wait_for_alert("GpumemNotRecorded");
    let query = format!("ALERTS{{alertname=\"GpumemNotRecorded\",pid=\"{}\"}}", running.pid());
    assert_eq!(prometheus.query(&query).len(), 1);
}
