//! `make run`: from a leaking server to the source line of its leak, with the commands that a user types.
//!
//!     gpumem-demo [--simulator] [--interval TIME]
//!
//! `libgpumem.so`, `gpumem` and the simulated driver lie beside this program, where cargo puts them. The server is
//! [leak.c](../leak.c), which is compiled here.

#![forbid(unsafe_code)]

mod screen;

use screen::{Screen, say};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::time::{Duration, Instant};

const SOURCE: &str = include_str!("../leak.c");
/// Four samples a second: a verdict needs 32 samples, and the first ones show a cache that fills.
const INTERVAL: &str = "250ms";
/// Samples that `gpumem leaks` needs for a verdict.
const ENOUGH: u64 = 32;
/// After this time something is wrong.
const PATIENCE: Duration = Duration::from_secs(45);
const PAUSE: Duration = Duration::from_millis(200);

fn main() -> ExitCode {
    match show() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("demo: {why}");
            ExitCode::FAILURE
        }
    }
}

fn show() -> Result<(), String> {
    let (simulator, interval) = options(std::env::args().skip(1))?;
    let stage = Stage::set(simulator)?;
    say!("{}\n\n", stage.device);
    say!(
        "leak.c is a small server: it loads weights, fills a cache, and keeps a block and a CUDA graph of each request.\n"
    );
    say!(
        "Here gpumem takes a sample of its memory each {interval}, so that it can judge soon; the default is each second.\n\n"
    );
    say!("$ gpumem run --growth-interval {interval} -- leak blocks graphs &\n");
    let mut server = stage.start(&interval)?;
    let pid = server.0.id().to_string();
    let leaks = judged(&stage, &mut server, &pid)?;
    say!("\n$ gpumem leaks {pid}\n{leaks}");
    let line = culprit(&leaks).ok_or("gpumem leaks names no line of leak.c")?;
    say!("\nThe fault is in line {line} of demo/leak.c: what it allocates is never freed.\n\n{}", excerpt(line));
    let graphs = stage.ask(&["graphs", &pid])?;
    let cache = graphs.lines().skip_while(|line| !line.contains("graph cache")).take(2);
    say!(
        "\nNone of its graphs is ever destroyed, and their memory levels off: gpumem keeps few of them with the driver.\n"
    );
    say!("\n$ gpumem graphs {pid} | grep -A1 'graph cache'\n{}\n", cache.collect::<Vec<_>>().join("\n"));
    let page = stage.folder.join("report.html");
    stage.ask(&["report", &pid, "-o", &page.to_string_lossy()])?;
    say!("\n$ gpumem report {pid}\nThe same as a page to look at and to send: {}\n", shown(&page));
    drop(server);
    say!("{}", next(&stage));
    Ok(())
}

/// Parses the command line: only the simulator, and the time between samples.
fn options(mut words: impl Iterator<Item = String>) -> Result<(bool, String), String> {
    let (mut simulator, mut interval) = (false, INTERVAL.to_owned());
    while let Some(word) = words.next() {
        match word.as_str() {
            "--simulator" => simulator = true,
            "--interval" => interval = words.next().ok_or("--interval needs a time, such as 250ms")?,
            _ => return Err(format!("{word}: allowed are --simulator and --interval TIME")),
        }
    }
    Ok((simulator, interval))
}

/// Everything needed to run the server under gpumem.
struct Stage {
    gpumem: PathBuf,
    /// Folder of the server and its output.
    folder: PathBuf,
    /// Folder of the server's driver, if it is not the system's.
    driver: Option<PathBuf>,
    /// The device's name.
    device: String,
}

/// Ends the server on drop, however this program ends.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Stage {
    fn set(simulator: bool) -> Result<Self, String> {
        let own = std::env::current_exe().map_err(|error| format!("its own path: {error}"))?;
        let kit = own.parent().ok_or("its own path has no folder")?;
        for file in ["libgpumem.so", "gpumem"] {
            if !kit.join(file).is_file() {
                return Err(format!("{} is not built: make run builds it", kit.join(file).display()));
            }
        }
        let folder = kit.join("demo");
        std::fs::create_dir_all(folder.join("driver")).map_err(|error| format!("{}: {error}", folder.display()))?;
        let mut stage = Self { gpumem: kit.join("gpumem"), folder, driver: None, device: String::new() };
        stage.compile()?;
        let gpu = if simulator { Err("--simulator".to_owned()) } else { stage.device() };
        match gpu {
            Ok(name) => stage.device = format!("On the GPU: {name}."),
            Err(why) => {
                stage.driver = Some(stage.simulated(kit)?);
                stage.device().map_err(|why| format!("the simulated driver: {why}"))?;
                stage.device = format!("On a simulated driver ({why}).");
            }
        }
        Ok(stage)
    }

    fn server(&self) -> PathBuf {
        self.folder.join("leak")
    }

    /// Compiles the server. Source and program are written under temporary names first: another demo may be running.
    fn compile(&self) -> Result<(), String> {
        let (source, new) = (self.folder.join("leak.c"), self.folder.join(format!("leak.{}", std::process::id())));
        let written = std::fs::write(&new, SOURCE).and_then(|()| std::fs::rename(&new, &source));
        written.map_err(|error| format!("{}: {error}", source.display()))?;
        let cc = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        let mut compile = Command::new(&cc);
        compile.args(["-std=gnu11", "-O1", "-g", "-fno-omit-frame-pointer", "leak.c", "-ldl", "-o"]).arg(&new);
        let name = Path::new(&cc).display();
        let done = compile.current_dir(&self.folder).output().map_err(|error| format!("{name}: {error}"))?;
        good(done).map_err(|why| format!("{name}: {why}"))?;
        std::fs::rename(&new, self.server()).map_err(|error| format!("{}: {error}", new.display()))
    }

    /// Makes a folder with the simulated driver under the real driver's name.
    fn simulated(&self, kit: &Path) -> Result<PathBuf, String> {
        let (built, folder) = (kit.join("libcuda.so"), self.folder.join("driver"));
        if !built.is_file() {
            return Err(format!("{} is not built: make run builds it", built.display()));
        }
        match std::os::unix::fs::symlink("../../libcuda.so", folder.join("libcuda.so.1")) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                Err(format!("{}: {error}", folder.display()))
            }
            _ => Ok(folder),
        }
    }

    /// Returns the name of the device that the server sees, or the reason why it sees none.
    fn device(&self) -> Result<String, String> {
        let done = self.clean(&self.server()).arg("device").output().map_err(|error| format!("leak: {error}"))?;
        good(done).map(|said| said.trim().to_owned())
    }

    /// Returns a command that inherits no settings of this shell except the place of the ledgers.
    fn clean(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("GPUMEM_")) {
            if name != "GPUMEM_DIR" {
                command.env_remove(name);
            }
        }
        command.env_remove("LD_PRELOAD").stdin(Stdio::null());
        if let Some(driver) = &self.driver {
            command.env("LD_LIBRARY_PATH", driver);
        }
        command
    }

    /// Starts the server under gpumem. It ends when its stdin closes.
    fn start(&self, interval: &str) -> Result<Server, String> {
        let mut run = self.clean(&self.gpumem);
        run.args(["run", "--growth-interval", interval, "--"]).arg(self.server()).args(["blocks", "graphs"]);
        let server = run.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        server.map(Server).map_err(|error| format!("{}: {error}", self.gpumem.display()))
    }

    /// Runs a gpumem command and returns its answer.
    fn ask(&self, words: &[&str]) -> Result<String, String> {
        let mut gpumem = self.clean(&self.gpumem);
        // The answers are printed to this program's stdout.
        let colors = if screen::is_terminal() { "always" } else { "never" };
        let done = gpumem.args(words).args(["--color", colors]).output().map_err(|error| format!("gpumem: {error}"))?;
        good(done).map_err(|why| format!("gpumem {}: {why}", words.join(" ")))
    }
}

/// Returns a command's output if it succeeded, else its error message.
fn good(done: Output) -> Result<String, String> {
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    Err(if said.trim().is_empty() { done.status.to_string() } else { said.trim().to_owned() })
}

/// Waits until `gpumem leaks` has a verdict on the server, and returns its answer.
fn judged(stage: &Stage, server: &mut Server, pid: &str) -> Result<String, String> {
    let (begin, mut screen) = (Instant::now(), Screen::default());
    loop {
        if let Some(status) = server.0.try_wait().map_err(|error| error.to_string())? {
            return Err(format!("the server has ended: {status}"));
        }
        let answer = stage.ask(&["leaks", pid]);
        let samples = answer.as_ref().map_or(0, |said| samples(said));
        screen.progress(samples.min(ENOUGH), ENOUGH);
        if samples >= ENOUGH && answer.as_ref().is_ok_and(|said| culprit(said).is_some()) {
            screen.done();
            return answer;
        }
        if begin.elapsed() > PATIENCE {
            return Err(format!("no verdict after {} s: {}", PATIENCE.as_secs(), answer.unwrap_or_else(|why| why)));
        }
        std::thread::sleep(PAUSE);
    }
}

/// Returns the number of samples in an answer of `gpumem leaks`: `33 samples in 8.0 s; …`.
fn samples(said: &str) -> u64 {
    let plain = plain(said);
    let line = plain.lines().find(|line| line.contains(" in ") && line.contains("sample"));
    line.and_then(|line| line.split(' ').next()?.parse().ok()).unwrap_or(0)
}

/// Returns the line of leak.c that called the steadily growing call site: its outermost frame.
fn culprit(said: &str) -> Option<usize> {
    let plain = plain(said);
    let growing = plain.split("\n\n").find(|block| block.starts_with("grows steadily"))?;
    let who = growing.lines().find_map(|line| line.trim().strip_prefix("who "))?;
    let (_, line) = who.rsplit_once("leak.c:")?;
    line.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
}

/// Removes colours from the text.
fn plain(said: &str) -> String {
    let mut parts = said.split('\u{1b}');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('m').map_or("", |(_, rest)| rest))
}

/// Returns a line of the server with the lines around it.
fn excerpt(line: usize) -> String {
    let lines = SOURCE.lines().enumerate().map(|(at, text)| (at + 1, text));
    let near = lines.filter(|(at, _)| at.abs_diff(line) <= 1);
    near.map(|(at, text)| format!("{} {at:>4}  {text}\n", if at == line { '>' } else { ' ' })).collect()
}

/// Returns a path relative to the working directory, as a user would type it.
fn shown(path: &Path) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    path.strip_prefix(here).unwrap_or(path).display().to_string()
}

fn next(stage: &Stage) -> String {
    format!(
        "
Your own program, with {gpumem}, or with gpumem after `make install PREFIX=$HOME/.local`:
  gpumem run -- PROGRAM      then, in another terminal:
  gpumem leaks               what keeps growing, after half a minute
  gpumem top                 all processes, live
  gpumem report              a page to look at and to send
  gpumem help memory-grows   five minutes from memory that grows to the answer; `gpumem help` lists the guides
",
        gpumem = shown(&stage.gpumem)
    )
}
