//! Example command lines, for the man pages. A test parses each of them.

/// A command line, and its purpose.
pub const EXAMPLES: &[(&str, &str)] = &[
    ("gpumem run -- llama-server -m model.gguf", "Starts a server under the preload."),
    (
        "gpumem run --limit 8GiB --tag kv -- ./server",
        "Lets it have no more than 8 GiB of each device, and names what it holds.",
    ),
    ("gpumem record 4711 -o run.gpumem", "Records a process until Ctrl-C."),
    ("gpumem report 4711", "Writes a page of HTML to send to a colleague."),
    ("gpumem ps --live", "Lists the processes that run."),
    ("gpumem allocs --by tag", "Shows who holds memory, by the names that the program gave."),
    (
        "gpumem allocs 4711 --stacks --limit 5",
        "Shows the five call sites of process 4711 that hold most, with their call stacks.",
    ),
    ("gpumem leaks", "Shows what keeps growing."),
    (
        "gpumem leaks --since warm --fail-over 100MiB",
        "Ends with 3 where more than 100 MiB were left behind since the mark warm.",
    ),
    ("gpumem graphs --by class", "Shows what CUDA graphs take, and which of them can share."),
    ("gpumem stats", "Shows what the device's memory is made of."),
    ("gpumem events --problems", "Shows what went wrong."),
    ("gpumem top -d 500ms", "Watches a process, twice a second."),
    ("gpumem mark warm", "Names this moment, for gpumem leaks --since warm."),
    ("gpumem trim 4711", "Gives what the pool keeps back to the driver."),
    ("gpumem set LIMIT=8GiB POOL_MAX=1GiB", "Changes two variables of a running process."),
    ("gpumem get LIMIT", "Shows what is in force, and where it came from."),
    ("gpumem off 4711", "Makes gpumem step aside in a running process."),
    ("gpumem park --dry-run 4711", "Says what parking process 4711 frees, and what keeps it from being done."),
    ("gpumem park 4711", "Moves its device memory to host memory; its next GPU call waits."),
    ("gpumem resume 4711", "Moves it back, and the process goes on where it was."),
    ("gpumem share home", "Lets programs that were started with GPUMEM_SHARE=home take turns on a GPU."),
    ("gpumem dump -o before.gpumem", "Keeps what is live now, with its symbols."),
    ("gpumem diff before.gpumem 4711", "Shows what changed since a dump."),
    ("gpumem export -o live.speedscope.json", "Writes live memory by call stack, for speedscope."),
    ("gpumem serve", "Serves http://127.0.0.1:9849/metrics to a Prometheus server on this machine."),
    (
        "gpumem serve --listen :9849 --web-config /etc/gpumem/web.yml",
        "The same for other machines, with TLS and users.",
    ),
    ("gpumem serve --otlp http://127.0.0.1:4318", "The same, and pushes profiles to a collector of OpenTelemetry."),
    ("gpumem clean --dry-run", "Shows which ledgers of ended processes would be removed."),
    ("gpumem doctor 4711", "Says why something is missing of process 4711, and what to do."),
    ("gpumem selftest --seconds 60", "Tries this machine's GPU and driver for a minute."),
    ("gpumem check 4711", "Looks now for writes where none should be, under GPUMEM_GUARD=1."),
    ("gpumem completions bash", "Prints what bash needs to complete gpumem's words."),
    ("gpumem man --out man1", "Writes a man page for each command."),
    ("gpumem help memory-grows", "Prints a guide."),
];

/// Returns the command of a line.
pub(super) fn command_of(line: &'static str) -> &'static str {
    line.split(' ').nth(1).unwrap_or_default()
}

/// Returns the examples of one command; for gpumem itself, all of them.
pub(super) fn of(command: &str) -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    EXAMPLES.iter().filter(move |(line, _)| command == "gpumem" || command_of(line) == command)
}
