//! A program that stays running and answers each line with a line of JSON.

use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(120);

pub(super) struct Held {
    process: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Held {
    pub(super) fn start(mut command: Command) -> Result<Self, String> {
        let name = command.get_program().to_string_lossy().into_owned();
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut process = spawned.map_err(|error| format!("{name}: {error}"))?;
        let (input, out) = process.stdin.take().zip(process.stdout.take()).ok_or("no pipes were made")?;
        let (send, lines) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(out).lines().map_while(Result::ok);
            lines.take_while(|line| send.send(line.clone()).is_ok()).for_each(drop);
        });
        Ok(Self { process, input, lines })
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The next line that it prints.
    pub(super) fn answer(&self) -> Result<Value, String> {
        let said = self.lines.recv_timeout(PATIENCE);
        let said = said.map_err(|why| format!("no answer within {} s: {why}", PATIENCE.as_secs()))?;
        serde_json::from_str(&said).map_err(|error| format!("{error}: {said}"))
    }

    /// Sends a line and returns the answer.
    pub(super) fn ask(&mut self, line: &str) -> Result<Value, String> {
        let sent = writeln!(self.input, "{line}").and_then(|()| self.input.flush());
        sent.map_err(|error| format!("{line}: {error}"))?;
        self.answer().map_err(|why| format!("{line}: {why}"))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
