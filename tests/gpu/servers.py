"""Servers whose cache of CUDA graphs evicts or never does: four clients, shapes that change, native and preloaded side by side.

    LLAMA_SERVER=… LLAMA_OLD_SERVER=… IK_SERVER=… LLAMA_MODEL=… servers.py [today | old | ik]...     all at once
        SERVERS_SECONDS=480 LLAMA_ARGS="-fa off -t 4" LLAMA_OLD_MODEL=… IK_MODEL=… IK_ARGS="…"

`today` is a llama-server of now, `old` one from before its cache evicted, `ik` that of ik_llama.cpp. Each client sends
requests of ever new lengths, every request to the native and to the preloaded server at the same time, and the
next when both have answered. For a sixth of the time one client works alone, so that small batches have their graphs too.

Each second of both servers: anonymous resident memory (RssAnon) and device memory (NVML, without the pool's idle
blocks). Held to: the same texts for prompts sent one at a time, before the load and, where they are the same natively, after
it (texts of requests that run beside others depend on which ones: how many are alike is told); preloaded memory never above native + 4 MiB +
2 %; in the later half no more growth than 1 MiB of host memory (and 5 % of native's: a handle that is not resident keeps
a source) and 4 MiB of the device, one block of the driver's. By the clock the preloaded server may be ahead of the native one by AHEAD seconds: both take host memory
in steps of 6 to 13 MiB (arenas of the C library for threads of theirs), each when it happens to.
"""
import concurrent.futures
import os
import random
import shlex
import sys
import threading
import time

from done import row
from harness import OUT, SLACK_MIB, SLACK_SHARE, inspect, record, verdict
from llama_server import ARGUMENTS, CLIENTS, Server, path_of, prompt
from memory import Watch, above, grown, ledgers_in, quartiles_text, series, trouble_of

GROUP = "servers"
SECONDS = float(os.environ.get("SERVERS_SECONDS", "480"))
MODES = {"native": False, "preloaded": True}
# name: program, model, more options
SERVERS = {
    "today": (path_of("LLAMA_SERVER"), path_of("LLAMA_MODEL"), ()),
    "old": (path_of("LLAMA_OLD_SERVER"), path_of("LLAMA_OLD_MODEL", "LLAMA_MODEL"), ()),
    "ik": (path_of("IK_SERVER"), path_of("IK_MODEL", "LLAMA_MODEL"), shlex.split(os.environ.get("IK_ARGS", ""))),
}
NEEDS = {"today": "LLAMA_SERVER", "old": "LLAMA_OLD_SERVER", "ik": "IK_SERVER"}
LATER_MIB = {"host": 1.0, "device": 4.0}
LATER_SHARE = {"host": 0.05, "device": 0.0}
LEVEL_MIB = 8.0  # a native server that grows by less in the later half has levelled off
MOST_WORDS, MOST_TOKENS = 700, 200
AHEAD = 30  # samples, one a second
ALONE = 1 / 6  # the part of the time in which one client works alone
MOST_FAILURES = 3


class Load:
    """Four clients over a native and a preloaded server, until the time is over."""

    def __init__(self, servers):
        self.servers, self.lock = servers, threading.Lock()
        self.speeds, self.ratios, self.failures = {mode: [] for mode in MODES}, [], []
        self.alike = self.requests = 0

    def ask(self, mode, text, tokens):
        start = time.monotonic()
        answer = self.servers[mode].complete(text, tokens)
        return answer["content"], answer["tokens_predicted"] / (time.monotonic() - start)

    def client(self, number, start):
        rng = random.Random(number)
        with concurrent.futures.ThreadPoolExecutor(len(MODES)) as both:
            while (now := time.monotonic() - start) < SECONDS and not self.failures:
                if number and now % 60 < 60 * ALONE:
                    time.sleep(0.1)
                    continue
                text, tokens = prompt(rng, rng.randint(1, MOST_WORDS)), rng.randint(4, MOST_TOKENS)
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

    def run(self):
        start = time.monotonic()
        threads = [threading.Thread(target=self.client, args=(number, start)) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def texts_of(servers):
    """Digest of what each answers to the same prompts, one at a time."""
    with concurrent.futures.ThreadPoolExecutor(len(servers)) as both:
        return dict(zip(servers, both.map(lambda server: server.texts(), servers.values())))


def excess_grows(native, preloaded, slack):
    """Whether the preloaded series is further above the native one in the later half than it was before, by more than `slack`."""
    excess = [b - a for a, b in zip(native, preloaded)]
    half = len(excess) // 2
    return max(excess[half:]) > max(excess[:half]) + slack


def judge(name, watches, load, problems):
    """The rules of memory, and what is told."""
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
    record({"group": GROUP, "name": f"{name}-samples", **{mode: watch.samples for mode, watch in watches.items()}})
    speeds = {mode: quartiles_text(load.speeds[mode], 1) for mode in MODES}
    row(f"servers-{name}", f"{'; '.join(told['native'])}; {speeds['native']} tokens/s",
        f"{'; '.join(told['preloaded'])}; {speeds['preloaded']} tokens/s, {quartiles_text(load.ratios, 3)} × of a request", not problems)
    return problems, notes


def one(name):
    program, model, more = SERVERS[name]
    servers = {mode: Server(f"{GROUP}-{name}-{mode}", preload, program=program, model=model, more=more) for mode, preload in MODES.items()}
    load, watches, problems, cache = Load(servers), {}, [], []
    try:
        for server in servers.values():
            server.ready()
        before = texts_of(servers)
        if len(set(before.values())) != 1:
            problems.append("other texts than natively")
        watches = {mode: Watch(f"{GROUP}-{name}", mode, server.process.pid, server.folder, MODES[mode]) for mode, server in servers.items()}
        load.run()
        for watch in watches.values():
            watch.end()
        problems += load.failures[:MOST_FAILURES]
        if not load.failures:
            after = texts_of(servers)
            if after["native"] == before["native"] != after["preloaded"]:
                problems.append("other texts after the load, natively the same")
        ledgers = ledgers_in(servers["preloaded"].folder)
        problems += trouble_of(ledgers, graphs=True)
        cache = [ledger.cache() for ledger in ledgers]
        if ledgers:
            (OUT / f"{GROUP}-{name}-graphs.txt").write_text(inspect("graphs", servers["preloaded"].ledger(), text=True))
    finally:
        for server in servers.values():
            server.end()
        statuses = {mode: server.stop() for mode, server in servers.items()}
    if len(set(statuses.values())) != 1:
        problems.append(f"statuses {statuses}")
    problems, notes = judge(name, watches, load, problems)
    notes.append(f"{load.requests} requests in {SECONDS:.0f} s, {load.alike} with the same text in both")
    return verdict(GROUP, name, problems, f"{'; '.join(notes)}; {cache}")


def judged(name):
    try:
        return one(name)
    except (RuntimeError, OSError, ValueError, KeyError) as error:
        return verdict(GROUP, name, [f"{type(error).__name__}: {error}"[:300]])


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    named = []
    for name in sys.argv[1:] or SERVERS:
        program, model, _ = SERVERS[name]
        if not program or not model:
            print(f"skip {GROUP}/{name} set {NEEDS[name]} and LLAMA_MODEL", flush=True)
        else:
            named.append(name)
    print(f"     {GROUP}: {', '.join(named) or 'none'} for {SECONDS:.0f} s, all at once, with {' '.join(ARGUMENTS)}", flush=True)
    with concurrent.futures.ThreadPoolExecutor(len(named) or 1) as all_at_once:
        results = list(all_at_once.map(judged, named))
    sys.exit(0 if all(results) else 1)


main()
