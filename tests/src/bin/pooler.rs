//! The command of the tester of allocation. Exit status: 0 when nothing differed, 1 when something did, 2 for
//! wrong arguments or when there is no driver to ask.

#![deny(clippy::print_stdout)]

use gpumem_tests::pool::hunt::{Hunt, Setup, Verdict, library, own_path, pair, shrink};
use gpumem_tests::pool::program::Program;
use gpumem_tests::pool::{generate, run};
use gpumem_tests::{say, say_line};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

const USAGE: &str = "\
usage: pooler gen --seed N [--length L]          prints a program
       pooler exec FILE                          runs it on the driver found here, prints what it answers
       pooler pair FILE --lib PATH [OPTIONS]     runs it natively and preloaded, prints what differs
       pooler hunt --lib PATH [OPTIONS]          does so for many seeds
  --lib PATH       libgpumem.so
  --env K=V        a variable of the preloaded run; any number of them
  --both K=V       a variable of both runs
  --times N        pair: so many times, until it differs (1)
  --shrink N       pair: prints the smallest program that differs within N runs
  --seeds A..B     hunt: which (0..1000000)
  --seconds S      hunt: at most (600)
  --length L       operations of a program, about (120)
  --without TEXT   hunt: leaves out operations whose text holds this; any number of them
  --most N         hunt: differences after which it stops (3)
  --out DIR        hunt: where small programs are put (.)
";

struct Arguments {
    file: Option<PathBuf>,
    options: HashMap<String, Vec<String>>,
}

impl Arguments {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut parsed = Self { file: None, options: HashMap::new() };
        while let Some(arg) = args.next() {
            match arg.strip_prefix("--") {
                Some(name) if USAGE.contains(&format!("--{name} ")) => {
                    let value = args.next().ok_or(format!("--{name} needs a value"))?;
                    parsed.options.entry(name.into()).or_default().push(value);
                }
                None if parsed.file.is_none() => parsed.file = Some(arg.into()),
                _ => return Err(format!("unknown argument {arg}\n{USAGE}")),
            }
        }
        Ok(parsed)
    }

    fn all(&self, name: &str) -> &[String] {
        self.options.get(name).map_or(&[], Vec::as_slice)
    }

    fn number<N: std::str::FromStr>(&self, name: &str, default: N) -> Result<N, String> {
        match self.all(name).last() {
            None => Ok(default),
            Some(text) => text.parse().map_err(|_| format!("--{name} {text}: not a number")),
        }
    }

    fn program(&self) -> Result<Program, String> {
        let file = self.file.as_deref().ok_or("a file is needed")?;
        std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?.parse()
    }

    fn setup(&self) -> Result<Setup, String> {
        let pairs = |name| -> Result<Vec<(String, String)>, String> {
            let split = |text: &String| text.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned()));
            self.all(name).iter().map(|text| split(text).ok_or(format!("--{name} {text}: not NAME=VALUE"))).collect()
        };
        Ok(Setup {
            exe: own_path()?,
            lib: library(Path::new(self.all("lib").last().ok_or("--lib is needed")?))?,
            libraries: None,
            both: pairs("both")?,
            preloaded: pairs("env")?,
            limit: Duration::from_secs(30),
        })
    }
}

fn one(arguments: &Arguments) -> Result<bool, String> {
    let (program, setup) = (arguments.program()?, arguments.setup()?);
    for _ in 0..arguments.number("times", 1)? {
        match pair(&setup, &program)? {
            Verdict::Same => {}
            Verdict::Ill(why) => return Err(why),
            Verdict::Differs(difference) => {
                let tries = arguments.number("shrink", 0)?;
                match tries {
                    0 => say!("{difference}"),
                    tries => {
                        let (program, difference) = shrink(&setup, program, difference, tries);
                        say!("{difference}{program}");
                    }
                }
                return Ok(false);
            }
        }
    }
    say_line!("the same");
    Ok(true)
}

fn hunt(arguments: &Arguments) -> Result<bool, String> {
    let seeds = arguments.all("seeds").last().map_or("0..1000000", String::as_str);
    let (from, to) = seeds.split_once("..").ok_or(format!("--seeds {seeds}: not A..B"))?;
    let number = |text: &str| text.parse().map_err(|_| format!("--seeds {seeds}: not A..B"));
    let out = PathBuf::from(arguments.all("out").last().map_or(".", String::as_str));
    let hunt = Hunt {
        setup: arguments.setup()?,
        seeds: number(from)?..number(to)?,
        time: Duration::from_secs(arguments.number("seconds", 600)?),
        length: arguments.number("length", 120)?,
        most: arguments.number("most", 3)?,
        without: arguments.all("without").to_vec(),
    };
    let tally = hunt.run(&mut |line| say_line!("{line}"))?;
    for found in &tally.found {
        let file = out.join(format!("pooler-{}.json", found.seed));
        std::fs::write(&file, found.file()).map_err(|error| format!("{}: {error}", file.display()))?;
        say_line!("\n{}:\n{}", file.display(), found.file());
    }
    say_line!(
        "{} programs, {} operations: {} differ, {} differed once, {} not judged",
        tally.programs,
        tally.operations,
        tally.found.len(),
        tally.fleeting.len(),
        tally.ill.len()
    );
    Ok(tally.found.is_empty() && tally.fleeting.is_empty())
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let command = args.next().unwrap_or_default();
    let done = Arguments::parse(args).and_then(|arguments| match command.as_str() {
        "gen" => {
            say!("{}", generate::program(arguments.number("seed", 0)?, arguments.number("length", 120)?));
            Ok(true)
        }
        "exec" => run::exec(&arguments.program()?, std::io::stdout().lock()).map(|()| true),
        "pair" => one(&arguments),
        "hunt" => hunt(&arguments),
        "help" => {
            say!("{USAGE}");
            Ok(true)
        }
        other => Err(format!("unknown command {other:?}\n{USAGE}")),
    });
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(why) => {
            eprintln!("pooler: {why}");
            ExitCode::from(2)
        }
    }
}
