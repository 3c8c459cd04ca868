//! The differential tester's command. Exit status: 0 when nothing differed, 1 when something did, 2 for
//! wrong arguments or when there is no driver to ask.

#![deny(clippy::print_stdout)]

use gpumem_tests::differ::child::Setup;
use gpumem_tests::differ::hunt::{Hunt, smallest};
use gpumem_tests::differ::pair::{Pair, Verdict};
use gpumem_tests::differ::{generate, program::Program, run};
use gpumem_tests::{say, say_line};
use std::io::{BufReader, Cursor};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

const USAGE: &str = "\
usage: differ gen --seed N [--length L]          prints a program
       differ exec FILE [--words] [--clock]      runs it on the driver found here, prints what it answers
       differ pair FILE --lib PATH [OPTIONS]     runs it natively and preloaded, prints what differs
       differ hunt --lib PATH [OPTIONS]          does so for many seeds
  --lib PATH       libgpumem.so
  --env K=V        a variable of the preloaded run; any number of them
  --both K=V       a variable of both runs
  --words          memory contents in full
  --clock          exec: operations that take a millisecond say so
  --times N        pair: so many times, until it differs (1)
  --shrink         pair: prints the smallest program that differs
  --seeds A..B     hunt: which (0..1000000)
  --seconds S      hunt: at most (600)
  --length L       hunt: operations of a program, about (60)
  --caps A,B,...   hunt: values of GPUMEM_GRAPH_CACHE (1,2,8); '': the default bounds
  --without TEXT   hunt: leaves out operations whose text holds this; any number of them
  --most N         hunt: differences after which it stops (3)
  --out DIR        hunt: where small programs are put (.)
  --json           hunt: what came of it as one JSON object; all else goes to stderr
";

#[derive(Default)]
struct Arguments {
    file: Option<PathBuf>,
    options: Vec<(String, String)>,
}

impl Arguments {
    fn parse(args: impl Iterator<Item = String>) -> Result<Self, String> {
        let (mut parsed, mut args) = (Self::default(), args);
        while let Some(arg) = args.next() {
            match arg.strip_prefix("--") {
                Some(name @ ("words" | "shrink" | "clock" | "json")) => {
                    parsed.options.push((name.into(), String::new()))
                }
                Some(
                    name @ ("lib" | "env" | "both" | "times" | "seeds" | "seconds" | "length" | "caps" | "most" | "out"
                    | "seed" | "without"),
                ) => {
                    parsed.options.push((name.into(), args.next().ok_or(format!("--{name} needs a value"))?));
                }
                Some(_) => return Err(format!("unknown argument {arg}")),
                None if parsed.file.is_none() => parsed.file = Some(arg.into()),
                None => return Err(format!("unknown argument {arg}")),
            }
        }
        Ok(parsed)
    }

    fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.options.iter().filter(move |(option, _)| option == name).map(|(_, value)| value.as_str())
    }

    fn has(&self, name: &str) -> bool {
        self.all(name).next().is_some()
    }

    fn number<N: std::str::FromStr>(&self, name: &str, default: N) -> Result<N, String> {
        match self.all(name).last() {
            None => Ok(default),
            Some(text) => text.parse().map_err(|_| format!("--{name} {text}: not a number")),
        }
    }

    fn program(&self) -> Result<Program, String> {
        let file = self.file.as_deref().ok_or("a file is needed")?;
        let text = if file == Path::new("-") {
            std::io::read_to_string(std::io::stdin())
        } else {
            std::fs::read_to_string(file)
        };
        text.map_err(|error| format!("{}: {error}", file.display()))?.parse()
    }

    fn setup(&self) -> Result<Setup, String> {
        let pairs = |name| -> Result<Vec<(String, String)>, String> {
            let split = |text: &str| text.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned()));
            self.all(name).map(|text| split(text).ok_or(format!("--{name} {text}: not NAME=VALUE"))).collect()
        };
        let lib = Path::new(self.all("lib").last().ok_or("--lib is needed")?);
        Ok(Setup {
            exe: std::env::current_exe().map_err(|error| format!("own path: {error}"))?,
            lib: Some(lib.canonicalize().map_err(|error| format!("{}: {error}", lib.display()))?),
            libraries: None,
            both: pairs("both")?,
            preloaded: pairs("env")?,
            limit: Duration::from_secs(30),
            words: self.has("words"),
        })
    }
}

fn pair(arguments: &Arguments) -> Result<bool, String> {
    let (program, setup) = (arguments.program()?, arguments.setup()?);
    for _ in 0..arguments.number("times", 1)? {
        match Pair::new(&setup).run(&program)? {
            Verdict::Same => {}
            Verdict::Ill(why) | Verdict::StoodStill(why) => return Err(why),
            Verdict::Differs(difference) if arguments.has("shrink") => {
                let tries = arguments.number("times", 1)?;
                let (difference, program) = smallest(&setup, &program, tries, *difference);
                say!("{difference}{program}");
                return Ok(false);
            }
            Verdict::Differs(difference) => {
                say!("{difference}");
                return Ok(false);
            }
        }
    }
    say_line!("the same");
    Ok(true)
}

fn hunt(arguments: &Arguments) -> Result<bool, String> {
    let seeds = arguments.all("seeds").last().unwrap_or("0..1000000");
    let (from, to) = seeds.split_once("..").ok_or(format!("--seeds {seeds}: not A..B"))?;
    let number = |text: &str| text.parse().map_err(|_| format!("--seeds {seeds}: not A..B"));
    let out = PathBuf::from(arguments.all("out").last().unwrap_or("."));
    let hunt = Hunt {
        setup: arguments.setup()?,
        seeds: number(from)?..number(to)?,
        time: Duration::from_secs(arguments.number("seconds", 600)?),
        length: arguments.number("length", 60)?,
        caps: arguments.all("caps").last().unwrap_or("1,2,8").split(',').map(str::to_owned).collect(),
        most: arguments.number("most", 3)?,
        without: arguments.all("without").map(str::to_owned).collect(),
    };
    let json = arguments.has("json");
    let mut say = |line: String| if json { eprintln!("{line}") } else { say_line!("{line}") };
    let tally = hunt.run(&mut say)?;
    let mut files = Vec::new();
    for found in &tally.found {
        let file = out.join(format!("differ-{}.json", found.seed));
        std::fs::write(&file, found.file()).map_err(|error| format!("{}: {error}", file.display()))?;
        say(format!("\n{}:\n{}", file.display(), found.file()));
        files.push(serde_json::json!({ "file": file, "what": found.difference.to_string() }));
    }
    let (ill, fleeting, stood_still) = (tally.ill.len(), tally.fleeting.len(), tally.stood_still.len());
    let (preloaded, waited) = (tally.stood_still_preloaded.len(), tally.waited_to_instantiate);
    say(format!(
        "{} programs, {} operations: {} differ, {fleeting} differed once, {ill} not judged, {stood_still} stood still natively, \
         {preloaded} once under the preload alone, {waited} waited in the driver's instantiate",
        tally.programs,
        tally.operations,
        tally.found.len()
    ));
    if json {
        let why = |list: &[(u64, String)]| -> Vec<String> {
            list.iter().map(|(seed, why)| format!("seed {seed}: {why}")).collect()
        };
        let answer = serde_json::json!({
            "programs": tally.programs, "operations": tally.operations, "differ": files,
            "fleeting": why(&tally.fleeting), "ill": why(&tally.ill),
            "stood_still": why(&tally.stood_still), "stood_still_preloaded": why(&tally.stood_still_preloaded),
            "waited_to_instantiate": waited,
        });
        say_line!("{answer}");
    }
    // A driver that lets programs stand still now and then does so in both runs.
    Ok(tally.found.is_empty() && fleeting == 0 && preloaded <= stood_still)
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let command = args.next().unwrap_or_default();
    let done = Arguments::parse(args).and_then(|arguments| match command.as_str() {
        "gen" => {
            let (seed, length) = (arguments.number("seed", 0)?, arguments.number("length", 60)?);
            say!("{}", generate::program(seed, length));
            Ok(true)
        }
        "exec" => {
            let text = format!("{}.\n", arguments.program()?);
            run::serve(Cursor::new(text), std::io::stdout().lock(), arguments.has("words"), arguments.has("clock"))
                .map(|()| true)
        }
        "serve" => {
            let input = BufReader::new(std::io::stdin());
            run::serve(input, std::io::stdout().lock(), arguments.has("words"), false).map(|()| true)
        }
        "pair" => pair(&arguments),
        "hunt" => hunt(&arguments),
        "help" | "--help" | "-h" => {
            say!("{USAGE}");
            Ok(true)
        }
        other => Err(format!("unknown command {other:?}\n{USAGE}")),
    });
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(why) => {
            eprintln!("differ: {why}");
            ExitCode::from(2)
        }
    }
}
