//! Example command lines, for the man pages. A test parses each of them.

/// Command, line, and its purpose.
pub const EXAMPLES: &[(&str, &str, &str)] = &[
    ("run", "gpumem run -- llama-server -m model.gguf", "Starts a server under the preload."),
    (
        "run",
        "gpumem run --limit 8GiB --tag kv -- ./server",
        "Lets it have no more than 8 GiB of each device, and names what it holds.",
    ),
    ("record", "gpumem record 4711 -o run.gpumem", "Records a process until Ctrl-C."),
    ("report", "gpumem report 4711", "Writes a page of HTML to send to a colleague."),
    ("ps", "gpumem ps --live", "Lists the processes that run."),
    ("allocs", "gpumem allocs --by tag", "Shows who holds memory, by the names that the program gave."),
    (
        "allocs",
        "gpumem allocs 4711 --stacks --limit 5",
        "Shows the five call sites of process 4711 that hold most, with their call stacks.",
    ),
    ("leaks", "gpumem leaks", "Shows who holds more and more."),
    (
        "leaks",
        "gpumem leaks --since warm --fail-over 100MiB",
        "Ends with 3 where more than 100 MiB were left behind since the mark warm.",
    ),
    ("graphs", "gpumem graphs --by class", "Shows what CUDA graphs take, and which of them can share."),
    ("stats", "gpumem stats", "Shows what the device's memory is made of."),
    ("events", "gpumem events --problems", "Shows what went wrong."),
    ("top", "gpumem top -d 500ms", "Watches a process, twice a second."),
    ("mark", "gpumem mark warm", "Names this moment, for gpumem leaks --since warm."),
    ("trim", "gpumem trim 4711", "Gives what the pool keeps back to the driver."),
    ("set", "gpumem set LIMIT=8GiB POOL_MAX=1GiB", "Changes two variables of a running process."),
    ("get", "gpumem get LIMIT", "Shows what is in force, and where it came from."),
    ("off", "gpumem off 4711", "Makes gpumem step aside in a running process."),
    ("park", "gpumem park --dry-run 4711", "Says what parking process 4711 frees, and what keeps it from being done."),
    ("park", "gpumem park 4711", "Moves its device memory to host memory; its next GPU call waits."),
    ("resume", "gpumem resume 4711", "Moves it back, and the process goes on where it was."),
    ("share", "gpumem share home", "Lets programs that were started with GPUMEM_SHARE=home take turns on a GPU."),
    ("dump", "gpumem dump -o before.gpumem", "Keeps what is live now, with its symbols."),
    ("diff", "gpumem diff before.gpumem 4711", "Shows what changed since a dump."),
    ("export", "gpumem export -o live.speedscope.json", "Writes live memory by call stack, for speedscope."),
    ("serve", "gpumem serve", "Serves http://127.0.0.1:9849/metrics to a Prometheus server on this machine."),
    (
        "serve",
        "gpumem serve --listen :9849 --web-config /etc/gpumem/web.yml",
        "The same for other machines, with TLS and users.",
    ),
    (
        "serve",
        "gpumem serve --otlp http://127.0.0.1:4318",
        "The same, and pushes profiles to a collector of OpenTelemetry.",
    ),
    ("clean", "gpumem clean --dry-run", "Shows which ledgers of ended processes would be removed."),
    ("doctor", "gpumem doctor 4711", "Says why something is missing of process 4711, and what to do."),
    ("selftest", "gpumem selftest --seconds 60", "Tries this machine's GPU and driver for a minute."),
    ("check", "gpumem check 4711", "Looks now for writes where none should be, under GPUMEM_GUARD=1."),
    ("completions", "gpumem completions bash", "Prints what bash needs to complete gpumem's words."),
    ("man", "gpumem man --out man1", "Writes a man page for each command."),
    ("help", "gpumem help memory-grows", "Prints a guide."),
];

/// Returns the examples of one command; for gpumem itself, all of them.
pub(super) fn of(command: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let fits = move |row: &&(&str, &str, &str)| command == "gpumem" || row.0 == command;
    EXAMPLES.iter().filter(fits).map(|&(_, line, what)| (line, what))
}
