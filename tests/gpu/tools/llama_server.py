"""A llama-server and the requests that its clients send: llama.py times servers, flat.py watches their memory.

LLAMA_SERVER and LLAMA_MODEL name the program and a model, LLAMA_ARGS more options. ik_llama.cpp's server takes the
same options and requests.
"""
import hashlib
import json
import os
import pathlib
import random
import shlex
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request

from harness import WORK, beside, device_used, environment, ledger_of, path_of


SERVER, MODEL = path_of("LLAMA_SERVER"), path_of("LLAMA_MODEL")
ARGUMENTS = shlex.split(os.environ.get("LLAMA_ARGS", "-fa off -t 4"))
CLIENTS = 4
WORDS = "a river of small stones ran under the old bridge where children came to count the slow green boats".split()


def prompt(rng, words):
    return " ".join(rng.choice(WORDS) for _ in range(words))


LENGTHS = [(words, tokens) for tokens in (16, 40, 90, 200) for words in (5, 20, 80, 300, 700)]


def requests(client, count):
    """The first `count` requests of a client, for each the prompt and how many tokens to predict: the same in every
    run, and of the same lengths as those of the other clients."""
    lengths = [LENGTHS[7 * i % len(LENGTHS)] for i in range(count)]
    rng = random.Random(client)
    rng.shuffle(lengths)
    return [(prompt(rng, words), tokens) for words, tokens in lengths]


class Listening:
    """A program in the background that listens at a port of this machine: `arguments(port)` are its options."""

    def __init__(self, name, program, arguments, preload, env=None, count=False):
        self.folder, self.ending = WORK / name, False
        self.folder.mkdir(parents=True, exist_ok=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = open(self.folder / "log", "wb")
        self.process = subprocess.Popen([str(a) for a in [program, *arguments(self.port)]], stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                                        env=environment(self.folder, preload, count, {**beside(program), **(env or {})}))

    def answers(self):
        """Whether it takes a connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5):
            return True

    def ready(self, seconds=120):
        """Waits until it answers; RuntimeError when it ended, or does not answer for so long."""
        limit = time.monotonic() + seconds
        while True:
            try:
                if self.answers():
                    return self
            except OSError:
                pass
            if self.process.poll() is not None or time.monotonic() > limit:
                self.stop()
                raise RuntimeError(f"{self.folder.name} did not get ready: {(self.folder / 'log').read_text(errors='replace')[-300:]}")
            time.sleep(0.05)

    def ledger(self):
        return ledger_of(self.folder, self.process.pid)

    def end(self):
        """Asks it to end."""
        if self.process.poll() is None and not self.ending:
            self.ending = True
            self.process.send_signal(signal.SIGTERM)

    def stop(self):
        """Asks it to end and waits; returns its status."""
        self.end()
        if self.process.poll() is None:
            try:
                self.process.wait(40)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.log.close()
        return self.process.wait()


class Server(Listening):
    """A running llama-server; `more` are options of its own."""

    def __init__(self, name, preload, env=None, count=False, program=None, model=None, more=()):
        def arguments(port):
            return ["-m", model or MODEL, "--port", port, "-ngl", "99", "-np", CLIENTS, "-c", "16384", "--cache-ram", "0", "--seed", "1", *ARGUMENTS, *more]

        super().__init__(f"llama-{name}", program or SERVER, arguments, preload, env, count)
        self.host, self.device, self.before = 0.0, 0.0, 0.0

    def answers(self):
        return json.load(self.get("/health")).get("status") == "ok"

    def ready(self, seconds=120):
        super().ready(seconds)
        self.before = self.rss()
        return self

    def get(self, path, body=None):
        data = json.dumps(body).encode() if body else None
        return urllib.request.urlopen(urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"}), timeout=120)

    def complete(self, text, tokens):
        """The server's answer. A model of random weights may say what older servers cannot put into an answer (bytes that are
        no UTF-8): they answer 500 then, after all tokens were predicted, and quote it, and that is the text."""
        asked = {"prompt": text, "n_predict": tokens, "ignore_eos": True, "cache_prompt": False, "temperature": 0, "seed": 1}
        try:
            return json.load(self.get("/completion", asked))
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")
            if error.code == 500 and ("UTF-8" in said or "Failed to parse input" in said):
                return {"content": said, "tokens_predicted": tokens}
            raise OSError(f"HTTP {error.code}: {said[:200]}") from error

    def rss(self):
        """MiB of its resident set."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS"))

    def alone(self, what):
        """Calls `what` while no other server works: what the card's used memory grows by is this one's."""
        used = device_used() or 0
        result = what()
        self.device += ((device_used() or 0) - used) / 2**20
        self.host = self.rss() - self.before
        return result

    def texts(self):
        """Digest of what it answers to the same prompts, one at a time."""
        digest = hashlib.sha256()
        for index in range(6):
            rng = random.Random(1000 + index)
            digest.update(self.complete(prompt(rng, [3, 30, 100, 200, 400, 600][index]), 48)["content"].encode())
        return digest.hexdigest()

    def load(self, count):
        """Sends `count` requests from each client. Returns (tokens, seconds)."""
        tokens, failures = [0] * CLIENTS, []

        def client(number):
            try:
                for text, length in requests(number, count):
                    if failures:
                        return
                    tokens[number] += self.complete(text, length)["tokens_predicted"]
            except (OSError, ValueError, KeyError) as error:
                failures.append(error)

        threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
        start = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise RuntimeError(f"a request failed: {failures[0]}")
        return sum(tokens), time.monotonic() - start
