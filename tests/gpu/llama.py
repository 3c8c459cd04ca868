"""llama-server natively, preloaded and without graphs, by turns, with four parallel clients.

    llama.py LLAMA_SERVER MODEL.gguf        LLAMA_PAIRS=8 LLAMA_SECONDS=10 LLAMA_ARGS="-fa off"

LLAMA_ROW=dense|moe|cpumoe names the row of the table; experts on the CPU are to be faster by 3 %.

Every run of the server answers the same prompts one after another (temperature 0: the texts must be
the same each time), then the same list of requests from four clients (tokens a second). Printed: the
median of tokens a second each way, the median ratio of the pairs, and how host and device memory grew
from when the server was ready to the end of the load. One more run has the independent counter beside the shim and compares counts at exit.
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

from done import row
from harness import OUT, WORK, environment, inspect, ledger_of, record, verdict
from stats import Ledger, differences, of_counter

GROUP = "llama"
SERVER, MODEL = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
PAIRS = int(os.environ.get("LLAMA_PAIRS", "8"))
SECONDS = float(os.environ.get("LLAMA_SECONDS", "10"))
ARGUMENTS = shlex.split(os.environ.get("LLAMA_ARGS", "-fa off"))
ROW = os.environ.get("LLAMA_ROW", "dense")
LEAST = 1.03 if ROW == "cpumoe" else 0.99
CLIENTS = 4
MODES = {"native": (False, {}), "preloaded": (True, {}), "off": (False, {"GGML_CUDA_DISABLE_GRAPHS": "1"})}
WORDS = "a river of small stones ran under the old bridge where children came to count the slow green boats".split()


def prompt(rng, words):
    return " ".join(rng.choice(WORDS) for _ in range(words))


def request(index):
    """Request `index` of the load: the same in every run."""
    rng = random.Random(index)
    return prompt(rng, rng.choice([5, 20, 80, 300, 700])), rng.choice([16, 40, 90, 200])


class Server:
    """A running llama-server."""

    def __init__(self, name, preload, count=False, env=None):
        self.folder = WORK / f"llama-{name}"
        self.folder.mkdir(parents=True, exist_ok=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = open(self.folder / "log", "wb")
        self.process = subprocess.Popen(
            [SERVER, "-m", MODEL, "--port", str(self.port), "-ngl", "99", "-np", str(CLIENTS), "-c", "16384",
             "--cache-ram", "0", "--seed", "1", *ARGUMENTS],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, env=environment(self.folder, preload, count, env))
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


def one(mode, pair, requests):
    """One timed run."""
    preload, env = MODES[mode]
    server = Server(f"{mode}-{pair}", preload, env=env)
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
                seen = {"interception": read.interception, "reason": read.reason, "counts": read.counts,
                        "trouble": read.trouble(), "cache": read.cache()}
                for view in ("stats", "graphs", "allocs"):
                    try:
                        (OUT / f"llama-{view}.txt").write_text(inspect(view, ledger, text=True))
                    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
                        seen[f"{view}_error"] = str(error)[:160]
    finally:
        status = server.stop()
    result = {"tokens_per_second": tokens / seconds, "requests": count, "texts": texts, "status": status,
              "host_mib": after[0] - before[0], "device_mib": after[1] - before[1], **seen}
    record({"group": GROUP, "name": f"{mode}-{pair}", "mode": mode, "row": ROW, **result})
    return result


def pairs(requests):
    """Runs of every mode, in turning order."""
    runs = {mode: [] for mode in MODES}
    for pair in range(PAIRS):
        for mode in list(MODES) if pair % 2 == 0 else reversed(MODES):
            if mode != "off" or pair < 3:  # its growth is needed, its speed is not
                runs[mode].append(one(mode, pair, requests))
        print(f"     {GROUP}/pair {pair}: " + ", ".join(
            f"{mode} {of[-1]['tokens_per_second']:.1f} tokens/s {of[-1]['host_mib']:+.0f} {of[-1]['device_mib']:+.0f} MiB"
            for mode, of in runs.items()), flush=True)
    return runs


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
    runs = pairs(requests)
    native, preloaded = runs["native"], runs["preloaded"]
    results.append(verdict(GROUP, "texts", [] if len({r["texts"] for r in native + preloaded}) == 1 else
                           [f"native {len({r['texts'] for r in native})} and preloaded {len({r['texts'] for r in preloaded})} kinds of texts"],
                           f"the same in {len(native) + len(preloaded)} runs"))
    wrong = {r.get("reason") or r.get("interception", "no ledger") for r in preloaded if r.get("interception") != "complete"}
    wrong |= {text for r in preloaded for text in r.get("trouble", [])}
    wrong |= {r[k] for r in preloaded for k in r if k.endswith("_error")}
    results.append(verdict(GROUP, "interception", sorted(wrong), f"{len(preloaded)} runs"))
    statuses = {r["status"] for r in native}, {r["status"] for r in preloaded}
    results.append(verdict(GROUP, "status", [] if statuses[0] == statuses[1] else [f"{statuses}"], f"{statuses[0]}"))
    middle = {mode: {k: statistics.median(r[k] for r in of) for k in ("tokens_per_second", "host_mib", "device_mib")}
              for mode, of in runs.items()}
    ratio = statistics.median(b["tokens_per_second"] / a["tokens_per_second"] for a, b in zip(native, preloaded))
    texts = {mode: f"{of['tokens_per_second']:.1f} tokens/s, {of['host_mib']:+.0f} MiB" for mode, of in middle.items()}
    problems = [] if ratio >= LEAST else [f"ratio {ratio:.4f} < {LEAST}"]
    if middle["preloaded"]["host_mib"] > middle["off"]["host_mib"] + 64:
        problems.append(f"grew {middle['preloaded']['host_mib']:.0f} MiB, graphs off {middle['off']['host_mib']:.0f}")
    row(f"llama-{ROW}", f"{texts['native']} (graphs off {texts['off']})", f"{ratio:.3f} ×: {texts['preloaded']}", not problems)
    cache = preloaded[-1].get("cache") or {}
    each = cache.get("source_bytes_per_node")
    row("source-llama", "–", f"{each} B ({ROW})", each is not None and each <= 60)
    results.append(verdict(GROUP, "speed", problems, f"ratio {ratio:.4f}, {PAIRS} pairs; {cache}", ratio=ratio, median=middle))
    results.append(counted())
    sys.exit(0 if all(results) else 1)


main()
