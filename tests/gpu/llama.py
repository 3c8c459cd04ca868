"""llama-server natively and preloaded, in alternating pairs, with four parallel clients.

    llama.py LLAMA_SERVER MODEL.gguf        LLAMA_PAIRS=8 LLAMA_SECONDS=10 LLAMA_ARGS="-fa off"

Every run of the server answers the same prompts one after another (temperature 0: the texts must be
the same each time), then the same list of requests from four clients (tokens a second). Printed: the
median of tokens a second either way, the median ratio of the pairs, and how host and device memory
grew under load. One more run has the independent counter beside the shim and compares counts at exit.
"""
import hashlib
import json
import os
import pathlib
import random
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.request

from harness import OUT, WORK, environment, inspect, ledger_of, record, verdict
from stats import Ledger, differences, of_counter

GROUP = "llama"
SERVER, MODEL = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
PAIRS = int(os.environ.get("LLAMA_PAIRS", "8"))
SECONDS = float(os.environ.get("LLAMA_SECONDS", "10"))
ARGUMENTS = shlex.split(os.environ.get("LLAMA_ARGS", "-fa off"))
CLIENTS = 4
WORDS = "a river of small stones ran under the old bridge where children came to count the slow green boats".split()


def prompt(rng, words):
    return " ".join(rng.choice(WORDS) for _ in range(words))


def request(index):
    """Request `index` of the load: the same in every run."""
    rng = random.Random(index)
    return prompt(rng, rng.choice([5, 20, 80, 300, 700])), rng.choice([16, 40, 90, 200])


class Server:
    """A running llama-server."""

    def __init__(self, name, preload, count=False):
        self.folder = WORK / f"llama-{name}"
        self.folder.mkdir(parents=True, exist_ok=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = open(self.folder / "log", "wb")
        self.process = subprocess.Popen(
            [SERVER, "-m", MODEL, "--port", str(self.port), "-ngl", "99", "-np", str(CLIENTS), "-c", "16384",
             "--cache-ram", "0", "--seed", "1", *ARGUMENTS],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, env=environment(self.folder, preload, count))
        limit = time.monotonic() + 120
        while True:
            try:
                if json.load(self.get("/health")).get("status") == "ok":
                    break
            except OSError:
                pass
            if self.process.poll() is not None or time.monotonic() > limit:
                self.stop()
                raise RuntimeError(f"the server did not get ready: {(self.folder / 'log').read_text(errors='replace')[-300:]}")
            time.sleep(0.1)

    def get(self, path, body=None):
        data = json.dumps(body).encode() if body else None
        return urllib.request.urlopen(urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"}), timeout=120)

    def complete(self, text, tokens):
        return json.load(self.get("/completion", {
            "prompt": text, "n_predict": tokens, "ignore_eos": True, "cache_prompt": False, "temperature": 0, "seed": 1}))

    def memory(self):
        """(host MiB, device MiB): resident set of the server, used memory of the card."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        host = next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS"))
        try:
            device = float(subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                                          capture_output=True, text=True, timeout=20).stdout.split()[0])
        except (OSError, IndexError, ValueError, subprocess.TimeoutExpired):
            device = 0.0
        return host, device

    def texts(self):
        """Digest of what it answers to the same prompts, one at a time."""
        digest = hashlib.sha256()
        for index in range(6):
            rng = random.Random(1000 + index)
            digest.update(self.complete(prompt(rng, [3, 30, 100, 200, 400, 600][index]), 48)["content"].encode())
        return digest.hexdigest()

    def load(self, count=None, seconds=None):
        """Sends requests from all clients: `count` of them, or for `seconds`. Returns (requests, tokens, seconds)."""
        lock, state, failures = threading.Lock(), {"next": 0, "tokens": 0}, []
        start = time.monotonic()

        def client():
            while not failures:
                with lock:
                    index = state["next"]
                    if (count is not None and index >= count) or (seconds and time.monotonic() - start >= seconds):
                        return
                    state["next"] += 1
                try:
                    predicted = self.complete(*request(index))["tokens_predicted"]
                except (OSError, ValueError, KeyError) as error:
                    failures.append(error)
                    return
                with lock:
                    state["tokens"] += predicted

        threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise RuntimeError(f"a request failed: {failures[0]}")
        return state["next"], state["tokens"], time.monotonic() - start

    def ledger(self):
        return ledger_of(self.folder, self.process.pid)

    def stop(self):
        """Asks it to end; returns its status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(40)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.log.close()
        return self.process.wait()


def one(name, preload, requests):
    """One timed run."""
    server = Server(name, preload)
    try:
        before = server.memory()
        texts = server.texts()
        count, tokens, seconds = server.load(count=requests)
        after = server.memory()
        seen = {}
        if preload:
            ledger = server.ledger()
            if ledger:
                read = Ledger(ledger)
                seen = {"interception": read.interception, "reason": read.reason, "counts": read.counts, "trouble": read.trouble()}
                for view in ("stats", "graphs", "allocs"):
                    try:
                        (OUT / f"llama-{view}.txt").write_text(inspect(view, ledger, text=True))
                    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
                        seen[f"{view}_error"] = str(error)[:160]
    finally:
        status = server.stop()
    result = {"tokens_per_second": tokens / seconds, "requests": count, "texts": texts, "status": status,
              "host_mib": [before[0], after[0]], "device_mib": [before[1], after[1]], **seen}
    record({"group": GROUP, "name": name, "preloaded": preload, **result})
    return result


def pairs(requests):
    """The alternating pairs; returns (native runs, preloaded runs)."""
    native, preloaded = [], []
    for pair in range(PAIRS):
        for preload in ((False, True), (True, False))[pair % 2]:
            (preloaded if preload else native).append(one(f"{'preloaded' if preload else 'native'}-{pair}", preload, requests))
        print(f"     {GROUP}/pair {pair}: native {native[-1]['tokens_per_second']:.1f}, preloaded "
              f"{preloaded[-1]['tokens_per_second']:.1f} tokens/s", flush=True)
    return native, preloaded


def counted():
    """A shorter run with the counter beside the shim, to its clean end."""
    server = Server("both", True, count=True)
    try:
        server.texts()
        server.load(count=40)
        ledger = server.ledger()
    finally:
        server.stop()
    if not ledger:
        return verdict(GROUP, "counts", ["no ledger"])
    file = server.folder / "counts" / f"{server.process.pid}.json"
    if not file.exists():
        return verdict(GROUP, "counts", ["the counter wrote nothing"])
    counter, read = of_counter(json.loads(file.read_text())), Ledger(ledger)
    problems = differences(counter, read.counts) + read.trouble()
    detail = ", ".join(f"{k} {v}" for k, v in counter.items() if k.endswith(".allocs") or k in ("launches", "execs_created", "updates", "update_failures"))
    return verdict(GROUP, "counts", problems[:8], f"{detail}; live at exit {read.live() or 0}", counter=counter,
                   counts=read.counts, live=read.live())


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    results = []
    server = Server("warm-up", False)
    try:
        requests, tokens, seconds = server.load(seconds=SECONDS)
    finally:
        server.stop()
    print(f"     {GROUP}/warm-up: {requests} requests, {tokens} tokens in {seconds:.1f} s", flush=True)
    native, preloaded = pairs(requests)
    results.append(verdict(GROUP, "texts", [] if len({r["texts"] for r in native + preloaded}) == 1 else
                           [f"native {len({r['texts'] for r in native})} and preloaded {len({r['texts'] for r in preloaded})} kinds of texts"],
                           f"the same in {len(native) + len(preloaded)} runs"))
    wrong = {r.get("reason") or r.get("interception", "no ledger") for r in preloaded if r.get("interception") != "complete"}
    wrong |= {text for r in preloaded for text in r.get("trouble", [])}
    wrong |= {r[k] for r in preloaded for k in r if k.endswith("_error")}
    results.append(verdict(GROUP, "interception", sorted(wrong), f"{len(preloaded)} runs"))
    statuses = {r["status"] for r in native}, {r["status"] for r in preloaded}
    results.append(verdict(GROUP, "status", [] if statuses[0] == statuses[1] else [f"{statuses}"], f"{statuses[0]}"))
    speed = [[r["tokens_per_second"] for r in runs] for runs in (native, preloaded)]
    ratio = statistics.median(b / a for a, b in zip(*speed))
    medians = [statistics.median(s) for s in speed]
    results.append(verdict(GROUP, "speed", [] if ratio >= 0.99 else [f"ratio {ratio:.4f} < 0.99"],
                           f"ratio {ratio:.4f} (native {medians[0]:.1f}, preloaded {medians[1]:.1f} tokens/s, {PAIRS} pairs)", ratio=ratio,
                           native=medians[0], preloaded=medians[1]))
    for what in ("host_mib", "device_mib"):
        grown = [statistics.median(r[what][1] - r[what][0] for r in runs) for runs in (native, preloaded)]
        print(f"     {GROUP}/{what}: grew {grown[0]:.1f} natively, {grown[1]:.1f} preloaded", flush=True)
        record({"group": GROUP, "name": f"growth-{what}", "native": grown[0], "preloaded": grown[1]})
    results.append(counted())
    sys.exit(0 if all(results) else 1)


main()
