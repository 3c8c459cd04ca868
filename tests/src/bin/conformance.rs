//! Runs the conformance suite against the `libcuda.so.1` that the dynamic loader
//! finds, or HIP's against its runtime, and prints one line per check. Exit status: 0
//! when none failed, 1 when one did, 2 for wrong arguments or when there is no driver to ask.

#![deny(clippy::print_stdout)]

use gpumem_tests::conformance::{self, Check, Outcome, Source, checkpoint, hip};
use gpumem_tests::{say, say_line};
use std::process::{Command, ExitCode};

const USAGE: &str = "\
usage: conformance [--hip] [--filter TEXT]... [--except TEXT]... [--after NAME] [--json] [--list] [--driver] [--help]
  --hip          the checks of the HIP runtime, not those of the CUDA driver
  --filter TEXT  only checks whose name contains TEXT; any of several
  --except TEXT  not those whose name contains TEXT; any of several
  --after NAME   only those behind the check of this name: goes on where one ended the process
  --json         one JSON object per check
  --list         print the names and where each rule comes from, run nothing
  --driver       print the CUDA driver's version and devices as one JSON object, run nothing
";

#[derive(Default)]
struct Options {
    hip: bool,
    filters: Vec<String>,
    exceptions: Vec<String>,
    after: Option<String>,
    json: bool,
    list: bool,
    driver: bool,
    /// One check, in this process: how those that need their own are run.
    one: Option<String>,
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options::default();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--hip" => options.hip = true,
            "--json" => options.json = true,
            "--list" => options.list = true,
            "--driver" => options.driver = true,
            "--filter" => options.filters.push(args.next().ok_or("--filter needs a text")?),
            "--except" => {
                options.exceptions.push(args.next().ok_or("--except needs a text")?);
            }
            "--after" => options.after = Some(args.next().ok_or("--after needs a name")?),
            "--one" => options.one = Some(args.next().ok_or("--one needs a name")?),
            "--help" | "-h" => return Err(String::new()),
            other => return Err(format!("unknown argument {other}")),
        }
    }
    Ok(options)
}

fn source(check: &Check) -> &'static str {
    match check.source {
        Source::Measured => "measured",
        Source::Documented => "documented",
        Source::Expected => "expected",
    }
}

fn line(check: &Check, outcome: &Outcome, json: bool) -> String {
    if json {
        let (result, detail) = match outcome {
            Outcome::Ok => ("ok", Vec::new()),
            Outcome::Fail(why) => ("fail", why.clone()),
            Outcome::Skip(why) => ("skip", vec![why.clone()]),
        };
        let name = check.name;
        let source = source(check);
        return serde_json::json!({
            "check": name, "result": result, "source": source, "detail": detail
        })
        .to_string();
    }
    match outcome {
        Outcome::Ok => format!("ok {}", check.name),
        Outcome::Skip(why) => format!("skip {}: {why}", check.name),
        Outcome::Fail(why) => {
            let lines: Vec<String> = why.iter().map(|w| format!("FAIL {}: {w}", check.name)).collect();
            lines.join("\n")
        }
    }
}

/// Runs a check in a process of its own, which prints its line as JSON.
fn run_alone(check: &Check) -> Outcome {
    let failed = |why: String| Outcome::Fail(vec![why]);
    let output =
        std::env::current_exe().and_then(|exe| Command::new(exe).args(["--json", "--one", check.name]).output());
    let output = match output {
        Ok(output) => output,
        Err(e) => return failed(format!("starting a process of its own: {e}")),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let Ok(value) = serde_json::from_str::<serde_json::Value>(text.trim()) else {
        let end = String::from_utf8_lossy(&output.stderr);
        return failed(format!("its process ended with {}: {}", output.status, end.trim()));
    };
    let detail: Vec<String> = value["detail"]
        .as_array()
        .map(|a| a.iter().filter_map(|v| v.as_str().map(String::from)).collect())
        .unwrap_or_default();
    match value["result"].as_str() {
        Some("ok") => Outcome::Ok,
        Some("skip") => Outcome::Skip(detail.join("; ")),
        _ => Outcome::Fail(detail),
    }
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    if args.next().as_deref() == Some(checkpoint::CHILD) {
        return checkpoint::serve(args.next().as_deref());
    }
    let options = match parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(why) => {
            if why.is_empty() {
                say!("{USAGE}");
                return ExitCode::SUCCESS;
            }
            eprint!("conformance: {why}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    if options.driver {
        return match conformance::driver() {
            Ok(driver) => {
                say_line!("{driver}");
                ExitCode::SUCCESS
            }
            Err(why) => {
                eprintln!("conformance: {why}");
                ExitCode::from(2)
            }
        };
    }
    // A check that panics is a failure with a line of its own, not a backtrace.
    std::panic::set_hook(Box::new(|_| ()));
    let named = |texts: &[String], c: &Check| texts.iter().any(|t| c.name.contains(t.as_str()));
    let wanted =
        |c: &Check| (options.filters.is_empty() || named(&options.filters, c)) && !named(&options.exceptions, c);
    let mut checks = if options.hip { hip::CHECKS.to_vec() } else { conformance::all() };
    if let Some(name) = &options.after {
        let Some(at) = checks.iter().position(|c| c.name == name) else {
            eprintln!("conformance: no check is named {name}; --list prints them");
            return ExitCode::from(2);
        };
        checks.drain(..=at);
        if checks.is_empty() {
            return ExitCode::SUCCESS;
        }
    }
    match &options.one {
        Some(name) => checks.retain(|c| c.name == name),
        None => checks.retain(wanted),
    }
    if checks.is_empty() {
        eprintln!("conformance: no check has such a name; --list prints them");
        return ExitCode::from(2);
    }
    if options.list {
        for check in &checks {
            say_line!("{} ({})", check.name, source(check));
        }
        return ExitCode::SUCCESS;
    }
    match if options.hip { hip::device_line() } else { conformance::device_line() } {
        Ok(_) if options.one.is_some() => {}
        Ok(device) => eprintln!("conformance: {device}"),
        Err(why) => {
            eprintln!("conformance: {why}");
            return ExitCode::from(2);
        }
    }
    let (mut ok, mut failed, mut skipped) = (0, 0, 0);
    for check in &checks {
        let outcome = match &options.one {
            None if check.alone => run_alone(check),
            _ => conformance::run(check),
        };
        match outcome {
            Outcome::Ok => ok += 1,
            Outcome::Fail(_) => failed += 1,
            Outcome::Skip(_) => skipped += 1,
        }
        say_line!("{}", line(check, &outcome, options.json));
    }
    if options.one.is_none() {
        eprintln!("conformance: {ok} ok, {failed} failed, {skipped} skipped");
    }
    ExitCode::from(u8::from(failed > 0))
}
