"""200 PyTorch CUDA graphs of a 24-layer forward, each of another batch size, replayed by turns.

    graphs_round_robin.py [--graphs 200] [--layers 24]       commands on standard input: see answers.py

  ready      loads, and runs every size once eagerly
  capture    captures all, replays and checks each; how host and device memory grew by it
  round      replays all by turns once: time each
  calls      replays the next few, one at a time: host time of the call
  end        checks all again; how host memory grew; the digest of all results
"""
import argparse
import gc
import itertools
import os
import statistics
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
import torch

import answers
import digest
import layers

CALLS = 25


def memory():
    """{host, anonymous host, device} in MiB; the device's is the whole card's."""
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        lines = {line.split(":")[0]: line.split()[1] for line in file if ":" in line and line.split()[1].isdigit()}
    left, total = torch.cuda.mem_get_info()
    return {"host_mib": int(lines["Rss"]) / 1024, "anonymous_mib": int(lines["Anonymous"]) / 1024, "device_mib": (total - left) / 2**20}


def grown(before):
    return {name: value - before[name] for name, value in memory().items()}


class Graphs:
    def __init__(self, count, depth):
        torch.manual_seed(0)
        self.model = layers.stack(depth)
        self.inputs = [torch.randn(1 + i, layers.WIDTH).cuda() for i in range(count)]
        self.captured, self.wrong = [], 0
        self.turns = itertools.cycle(range(count))

    def ready(self):
        self.side = torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(self.side):  # every size once: what libraries load and reserve for it is there
            self.want = [self.model(x).clone() for x in self.inputs]
        torch.cuda.synchronize()
        gc.freeze()  # some versions of PyTorch collect garbage before each capture
        return {}

    def check(self):
        """Replays each; all share one pool, in which every output has a place of its own for as long as it lives."""
        for (graph, y), expected in zip(self.captured, self.want):
            graph.replay()
            result = y.clone()
            self.wrong += not torch.allclose(result, expected, rtol=1e-3, atol=1e-3)
            digest.add(result.cpu())

    def capture(self):
        # One and the same core for all processes that take turns, from here on: a launch takes twice as long where
        # the memory of its exec is another processor's.
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        self.before = memory()
        pool, start = torch.cuda.graph_pool_handle(), time.perf_counter()
        for x in self.inputs:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=self.side):
                y = self.model(x)
            self.captured.append((graph, y))
        torch.cuda.synchronize()
        made = time.perf_counter() - start
        self.check()
        self.round()
        for _ in range(0, len(self.captured), CALLS):
            self.calls()
        return {"capture_s": made, **grown(self.before)}

    def round(self):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for graph, _ in self.captured:
            graph.replay()
        torch.cuda.synchronize()
        return {"replay_us": (time.perf_counter() - start) / len(self.captured) * 1e6}

    def calls(self):
        hosts = []
        for turn in itertools.islice(self.turns, CALLS):
            graph, _ = self.captured[turn]
            start = time.perf_counter()
            graph.replay()
            hosts.append(time.perf_counter() - start)
            torch.cuda.synchronize()
        return {"host_us": statistics.median(hosts) * 1e6}

    def end(self):
        self.check()
        more = grown(self.before)
        return {"host_mib": more["host_mib"], "wrong": self.wrong, "checked": 2 * len(self.captured), "digest": digest.hexdigest()}


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--graphs", type=int, default=200)
    arguments.add_argument("--layers", type=int, default=24)
    k = arguments.parse_args()
    with torch.no_grad():
        graphs = Graphs(k.graphs, k.layers)
        answers.serve({name: getattr(graphs, name) for name in ("ready", "capture", "round", "calls", "end")})


main()
