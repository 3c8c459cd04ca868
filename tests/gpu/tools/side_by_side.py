"""A native and a preloaded server side by side: the same requests at the same time, memory of both each second, and the rules.

servers.py and rpc.py hold servers to these rules: preloaded memory never above native + 4 MiB + 2 %; in the later half no
more growth than 1 MiB of host memory (and 5 % of native's: a handle that is not resident keeps a source) and 4 MiB of the
device, one block of the driver's. By the clock the preloaded server may be ahead of the native one by AHEAD seconds: both
take host memory in steps of 6 to 13 MiB (arenas of the C library for threads of theirs), each when it happens to.
flat.py sends its requests by the same clients, and has rules of its own.
"""
import concurrent.futures
import random
import threading
import time

from done import row
from harness import OUT, SLACK_MIB, SLACK_SHARE, inspect, record, verdict
from llama_server import CLIENTS, prompt
from memory import Watch, above, grown, ledgers_in, quartiles_text, series, trouble_of

MODES = {"native": False, "preloaded": True}
LATER_MIB = {"host": 1.0, "device": 4.0}
LATER_SHARE = {"host": 0.05, "device": 0.0}
LEVEL_MIB = 8.0  # a native server that grows by less in the later half has levelled off
MOST_WORDS, MOST_TOKENS = 700, 200
AHEAD = 30  # samples, one a second
ALONE = 1 / 6  # the part of the time in which one client works alone
MOST_FAILURES = 3


class Load:
    """Clients over a native and a preloaded server until the time is over: each request is sent to both at the same time, and
    the next when both have answered.

    `work(number)` gives a client's requests, without end: the prompt, and how many tokens to predict. For a part of each
    minute, `alone`, the first client works by itself, so that small batches have their graphs too. Each minute a line says how far
    it is, under its `name`.
    """

    def __init__(self, servers, seconds, work, alone=0.0, name="load"):
        self.servers, self.seconds, self.work, self.alone, self.lock = servers, seconds, work, alone, threading.Lock()
        self.speeds, self.ratios, self.failures = {mode: [] for mode in MODES}, [], []
        self.alike = self.requests = 0
        self.name, self.next_line = name, 60

    def ask(self, mode, text, tokens):
        start = time.monotonic()
        answer = self.servers[mode].complete(text, tokens)
        return answer["content"], answer["tokens_predicted"] / (time.monotonic() - start)

    def client(self, number, start):
        work = self.work(number)
        with concurrent.futures.ThreadPoolExecutor(len(MODES)) as both:
            while (now := time.monotonic() - start) < self.seconds and not self.failures:
                if number and now % 60 < 60 * self.alone:
                    time.sleep(0.1)
                    continue
                text, tokens = next(work)
                asked = {mode: both.submit(self.ask, mode, text, tokens) for mode in MODES}
                try:
                    answers = {mode: answer.result() for mode, answer in asked.items()}
                except (OSError, ValueError, KeyError) as error:
                    self.failures.append(f"a request failed: {error}")
                    return
                with self.lock:
                    for mode, (_, speed) in answers.items():
                        self.speeds[mode].append(speed)
                    self.ratios.append(answers["preloaded"][1] / answers["native"][1])
                    self.requests += 1
                    self.alike += answers["native"][0] == answers["preloaded"][0]
                    if now >= self.next_line:
                        self.next_line += 60
                        print(f"     {self.name} {now:.0f} s: {self.requests} requests, {self.alike} alike, {quartiles_text(self.ratios, 3)} × of a request", flush=True)

    def run(self):
        start = time.monotonic()
        threads = [threading.Thread(target=self.client, args=(number, start)) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def ever_new(number):
    """Requests of ever new lengths."""
    rng = random.Random(number)
    while True:
        yield prompt(rng, rng.randint(1, MOST_WORDS)), rng.randint(4, MOST_TOKENS)


def texts_of(servers):
    """Digest of what each answers to the same prompts, one at a time."""
    with concurrent.futures.ThreadPoolExecutor(len(servers)) as both:
        return dict(zip(servers, both.map(lambda server: server.texts(), servers.values())))


def excess_grows(native, preloaded, slack):
    """Whether the preloaded series is further above the native one in the later half than it was before, by more than `slack`."""
    excess = [b - a for a, b in zip(native, preloaded)]
    half = len(excess) // 2
    return max(excess[half:]) > max(excess[:half]) + slack


def judge(group, name, key, watches, load, problems):
    """The rules of memory, and what is told: problems, notes. `key` is the row of done.py."""
    problems, notes = list(problems), []
    found = {mode: series(watch.samples) for mode, watch in watches.items()}
    told = {mode: [] for mode in MODES}
    for kind in ("host", "device"):
        if any(kind not in of for of in found.values()):
            notes.append(f"no {kind} memory was told")
            continue
        native, preloaded = (found[mode][kind] for mode in MODES)
        if min(len(native), len(preloaded)) < 10:
            problems.append(f"only {len(native)} and {len(preloaded)} samples")
            continue
        worst, later = above(native, preloaded, AHEAD), {mode: grown(found[mode][kind]) for mode in MODES}
        for mode in MODES:
            values = found[mode][kind]
            told[mode].append(f"{kind} {values[0]:.1f} to {values[-1]:.1f} MiB, at most {max(values):.1f}, later half {later[mode]:+.1f}")
        if worst > 0:
            problems.append(f"{kind}: {worst:.1f} MiB above native + {SLACK_MIB:.0f} MiB + {SLACK_SHARE:.0%}")
        grows = later["preloaded"] > LATER_MIB[kind] + LATER_SHARE[kind] * max(later["native"], 0.0)
        # Where the native server levels off too, each takes its last steps (arenas of 6 to 8 MiB) when it happens to: what the
        # preloaded one takes above it is what may not grow.
        if grows and (later["native"] > LEVEL_MIB or excess_grows(native, preloaded, LATER_MIB[kind])):
            problems.append(f"{kind}: grows {later['preloaded']:.1f} MiB in the later half, natively {later['native']:.1f}")
    record({"group": group, "name": f"{name}-samples", **{mode: watch.samples for mode, watch in watches.items()}})
    speeds = {mode: quartiles_text(load.speeds[mode], 1) for mode in MODES}
    row(key, f"{'; '.join(told['native'])}; {speeds['native']} tokens/s",
        f"{'; '.join(told['preloaded'])}; {speeds['preloaded']} tokens/s, {quartiles_text(load.ratios, 3)} × of a request", not problems)
    return problems, notes


def tried(group, name, key, servers, watched, seconds):
    """The load over both servers, whose memory is that of `watched`: the servers themselves, or what they work with; and the
    verdict. Texts of prompts sent one at a time are the same before the load and, where they are natively, after it."""
    load, watches, problems, cache = Load(servers, seconds, ever_new, ALONE, f"{group}/{name}"), {}, [], []
    try:
        for one in (*watched.values(), *servers.values()):
            one.ready()
        before = texts_of(servers)
        if len(set(before.values())) != 1:
            problems.append("other texts than natively")
        watches = {mode: Watch(f"{group}-{name}", mode, one.process.pid, one.folder, MODES[mode]) for mode, one in watched.items()}
        load.run()
        for watch in watches.values():
            watch.end()
        problems += load.failures[:MOST_FAILURES]
        if not load.failures:
            after = texts_of(servers)
            if after["native"] == before["native"] != after["preloaded"]:
                problems.append("other texts after the load, natively the same")
        ledgers = ledgers_in(watched["preloaded"].folder)
        problems += trouble_of(ledgers, graphs=True)
        cache = [ledger.cache() for ledger in ledgers]
        if ledgers:
            (OUT / f"{group}-{name}-graphs.txt").write_text(inspect("graphs", watched["preloaded"].ledger(), text=True))
    finally:
        statuses = []
        # What asks ends before what it asks of.
        for of in (servers, watched):
            for one in of.values():
                one.end()
            statuses.append({mode: one.stop() for mode, one in of.items()})
    problems += dict.fromkeys(f"statuses {of}" for of in statuses if len(set(of.values())) != 1)
    problems, notes = judge(group, name, key, watches, load, problems)
    notes.append(f"{load.requests} requests in {seconds:.0f} s, {load.alike} with the same text in both")
    return verdict(group, name, problems, f"{'; '.join(notes)}; {cache}")


def judged(group, name, run):
    """What `run` finds; what it could not do is a line."""
    try:
        return run()
    except (RuntimeError, OSError, ValueError, KeyError) as error:
        return verdict(group, name, [f"{type(error).__name__}: {error}"[:300]])
