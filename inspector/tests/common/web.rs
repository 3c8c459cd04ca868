//! A running `gpumem serve`, and a client that says exactly what it is told to.

use super::{Dir, gpumem};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub struct Server {
    child: Child,
    /// `127.0.0.1:PORT`.
    pub at: String,
    pub url: String,
}

impl Server {
    /// Serves the ledgers of a directory on a port that is free.
    pub fn start(dir: &Dir, args: &[&str]) -> Self {
        Self::listening(dir, "127.0.0.1:0", args)
    }

    /// The same on an address.
    pub fn listening(dir: &Dir, listen: &str, args: &[&str]) -> Self {
        let mut command = gpumem();
        command.env("GPUMEM_DIR", dir.path());
        Self::of(command, listen, args)
    }

    /// Serves the ledgers of all processes.
    pub fn wide() -> Self {
        Self::of(gpumem(), "127.0.0.1:0", &[])
    }

    fn of(mut command: Command, listen: &str, args: &[&str]) -> Self {
        command.args(["serve", "--listen", listen]).args(args);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("serving ").unwrap_or_else(|| panic!("{line}")).to_owned();
        let at = url.split('/').nth(2).unwrap().replace("0.0.0.0", "127.0.0.1");
        Self { child, at, url }
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.at).unwrap();
        // A server that hangs is told, and does not hang the test.
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        stream
    }

    /// Sends bytes and reads until the server closes; what it answered, which may be nothing.
    pub fn say(&self, bytes: &[u8]) -> String {
        String::from_utf8_lossy(&self.raw(bytes)).into_owned()
    }

    fn raw(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = self.connect();
        // It may have closed already: that is an answer.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    }

    /// The head of an answer and its body, which may be no text.
    pub fn fetch(&self, path: &str) -> (String, Vec<u8>) {
        let asked = format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.at);
        let answer = self.raw(asked.as_bytes());
        let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").map_or(answer.len(), |at| at + 4);
        (String::from_utf8_lossy(&answer[..end]).into_owned(), answer[end..].to_vec())
    }

    pub fn get(&self, path: &str, headers: &str) -> String {
        self.say(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n").as_bytes())
    }

    /// The page of metrics once every call site that is to be named has its name.
    pub fn named(&self) -> String {
        let begin = std::time::Instant::now();
        loop {
            let answer = self.get("/metrics", "");
            // Those that await their names are summed beside the sites that are named.
            let is_all = answer.contains("site=\"") && !answer.contains("site=\"(other)\"");
            if is_all || begin.elapsed() > Duration::from_secs(30) {
                return answer;
            }
            std::thread::sleep(Duration::from_millis(300));
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// True while it runs and answers.
    pub fn is_well(&mut self) -> bool {
        self.is_running() && self.get("/-/healthy", "").starts_with("HTTP/1.1 200 ")
    }

    /// Ends it by a signal: its exit code.
    pub fn end(mut self, signal: i32) -> Option<i32> {
        // SAFETY: the child was not waited for yet, so no other process can have its number.
        unsafe { libc::kill(self.child.id() as i32, signal) };
        self.child.wait().unwrap().code()
    }

    pub fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The status of an answer; 0 if there is none.
pub fn status(answer: &str) -> u32 {
    ["HTTP/1.1 ", "HTTP/1.0 "]
        .iter()
        .find_map(|begin| answer.strip_prefix(begin))
        .and_then(|rest| rest.split(' ').next()?.parse().ok())
        .unwrap_or(0)
}

pub fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}
