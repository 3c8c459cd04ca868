"""llama-server natively, preloaded and without graphs, by turns, with four parallel clients.

    LLAMA_SERVER=… LLAMA_MODEL=… llama.py   LLAMA_PAIRS=8 LLAMA_SECONDS=3.5 LLAMA_ARGS="-fa off -t 4" LLAMA_COUNTED=1
                                            LLAMA_ALSO="GPUMEM_GRAPH_CACHE=0 GPUMEM_POOL=0"

LLAMA_ROW names the row of the table: dense, moe, cpumoe (experts on the CPU are to be faster by 3 %), or
pool: a build over cudaMalloc.

Servers live for two pairs, since each keeps a speed of its own: a native and a preloaded one start together, answer the same prompts one after
another (temperature 0: the texts must be the same each time), then the same requests from four clients
(tokens a second) by turns, while the other is idle; then the next two start. Every client asks for the same
lengths in an order of its own, so that all end together: one that ends late would have the server for itself.
Few threads (`-t`): the layers are on the GPU, and as many as there are cores get into the clients' way.
One without graphs joins the first time, for its memory. Printed: the median of tokens a second each way,
the median ratio of the pairs, and how host and device memory grew from when the server was ready to the end
of the load. LLAMA_ALSO adds a preloaded server for each of its settings, to tell what a difference comes from.
One more run has the independent counter beside the shim and compares counts at exit.
"""
import json
import os
import statistics
import subprocess
import sys
import time

from done import row
from harness import EARLIER, OUT, inspect, need, record, verdict
from llama_server import Server
from stats import Ledger, differences, of_counter

GROUP = "llama"
PAIRS = int(os.environ.get("LLAMA_PAIRS", "8"))
SECONDS = float(os.environ.get("LLAMA_SECONDS", "3.5"))
ROW = os.environ.get("LLAMA_ROW", "dense")
COUNTED = os.environ.get("LLAMA_COUNTED", "1") == "1"
WARM = 4  # requests a client that tell how many a block has
BLOCKS, OFF = 2, 1  # pairs that two servers live for; how many times one without graphs joins
LEAST = 1.03 if ROW == "cpumoe" else 0.99
MODES = {"native": (False, {}), "preloaded": (True, {}), "off": (False, {"GGML_CUDA_DISABLE_GRAPHS": "1"})}
ALSO = os.environ.get("LLAMA_ALSO", "").split() + ([f"LD_PRELOAD={EARLIER}"] if EARLIER else [])
MODES.update({setting: (True, dict([setting.split("=", 1)])) for setting in ALSO})
TIMED = [mode for mode in MODES if mode != "off"]


def seen(server):
    """What the ledger of a preloaded server says; what people would see goes to $OUT."""
    ledger = server.ledger()
    if not ledger:
        return {}
    read = Ledger(ledger)
    seen = {"interception": read.interception, "reason": read.reason, "counts": read.counts, "trouble": read.trouble(), "cache": read.cache()}
    for view in ("stats", "graphs", "allocs"):
        try:
            (OUT / f"llama-{view}.txt").write_text(inspect(view, ledger, text=True))
        except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
            seen[f"{view}_error"] = str(error)[:160]
    return seen


def generation(number, each, count):
    """One life of a server of each mode: `count` timed blocks of `each` requests a client. {mode: what was seen}"""
    servers = {mode: Server(f"{mode}-{number}", *MODES[mode]) for mode in MODES if mode != "off" or number < OFF}
    speeds, result = {mode: [] for mode in servers}, {}
    try:
        for server in servers.values():
            server.ready()
        texts = {mode: server.alone(server.texts) for mode, server in servers.items()}

        def block(mode):
            tokens, seconds = servers[mode].alone(lambda: servers[mode].load(each))
            speeds[mode].append(tokens / seconds)

        for i in range(count):
            # Neither is ever idle for as long as llama.cpp keeps an unused graph, 10 s.
            for mode in TIMED if (number + i) % 2 == 0 else reversed(TIMED):
                block(mode)
        for i in range(count if "off" in servers else 0):
            block("off")
        for mode, server in servers.items():
            result[mode] = {"speeds": speeds[mode], "texts": texts[mode], "host_mib": server.host, "device_mib": server.device,
                            **(seen(server) if mode == "preloaded" else {})}
    finally:
        for server in servers.values():
            server.end()
        statuses = {mode: server.stop() for mode, server in servers.items()}
    for mode, of in result.items():
        of["status"] = statuses[mode]
        record({"group": GROUP, "name": f"{mode}-{number}", "mode": mode, "row": ROW, **of})
    return result


def pairs(each):
    """{mode: what each of its servers gave}, of as many servers as PAIRS needs."""
    runs = {mode: [] for mode in MODES}
    for number in range((PAIRS + BLOCKS - 1) // BLOCKS):
        result = generation(number, each, min(BLOCKS, PAIRS - number * BLOCKS))
        for mode, of in result.items():
            runs[mode].append(of)
        print(f"     {GROUP}/{ROW} {number}: " + ", ".join(
            f"{mode} {' '.join(f'{speed:.1f}' for speed in of['speeds'])} tokens/s {of['host_mib']:+.0f} {of['device_mib']:+.0f} MiB"
            for mode, of in result.items()), flush=True)
    return runs


def source():
    """What the cache says of sources where hardly any exec stays."""
    server = Server("source", True, {"GPUMEM_GRAPH_CACHE": "4"})
    try:
        server.ready().texts()
        return (seen(server).get("cache") or {}).get("source_bytes_per_node")
    finally:
        server.stop()


def counted():
    """A shorter run with the counter beside the shim, to its clean end."""
    server = Server("both", True, count=True)
    try:
        server.ready().texts()
        server.load(10)
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
    need(GROUP, "server", "LLAMA_SERVER", "LLAMA_MODEL")
    results, start = [], time.monotonic()
    server = Server("warm-up", False)
    try:
        server.ready().load(2)
        tokens, seconds = server.load(WARM)
    finally:
        server.stop()
    each = max(1, round(WARM * SECONDS / seconds))
    print(f"     {GROUP}/warm-up: {tokens} tokens in {seconds:.1f} s: {each} requests a client", flush=True)
    runs = pairs(each)
    native, preloaded = runs["native"], runs["preloaded"]
    results.append(verdict(GROUP, "texts", [] if len({r["texts"] for r in native + preloaded}) == 1 else
                           [f"native {len({r['texts'] for r in native})} and preloaded {len({r['texts'] for r in preloaded})} kinds of texts"],
                           f"the same of {len(native) + len(preloaded)} servers"))
    wrong = {r.get("reason") or r.get("interception", "no ledger") for r in preloaded if r.get("interception") != "complete"}
    wrong |= {text for r in preloaded for text in r.get("trouble", [])}
    wrong |= {r[k] for r in preloaded for k in r if k.endswith("_error")}
    results.append(verdict(GROUP, "interception", sorted(wrong), f"{len(preloaded)} servers"))
    statuses = {r["status"] for r in native}, {r["status"] for r in preloaded}
    results.append(verdict(GROUP, "status", [] if statuses[0] == statuses[1] else [f"{statuses}"], f"{statuses[0]}"))
    speeds = {mode: [speed for r in of for speed in r["speeds"]] for mode, of in runs.items()}
    middle = {mode: {"tokens_per_second": statistics.median(speeds[mode]), **{k: statistics.median(r[k] for r in of) for k in ("host_mib", "device_mib")}}
              for mode, of in runs.items()}
    of_native = {mode: sorted(b / a for a, b in zip(speeds["native"], speeds[mode])) for mode in TIMED}
    ratios = of_native["preloaded"]
    ratio = statistics.median(ratios)
    for mode in ALSO:
        of_mode = statistics.median(b / a for a, b in zip(speeds[mode], speeds["preloaded"]))
        print(f"     {GROUP}/{mode}: {statistics.median(of_native[mode]):.3f} × [{of_native[mode][0]:.3f} … {of_native[mode][-1]:.3f}]; "
              f"preloaded without it {of_mode:.3f} × that", flush=True)
    texts = {mode: f"{of['tokens_per_second']:.1f} tokens/s, {of['host_mib']:+.0f} / {of['device_mib']:+.0f} MiB" for mode, of in middle.items()}
    problems = [] if ratio >= LEAST else [f"ratio {ratio:.4f} < {LEAST}"]
    if ROW != "pool" and middle["preloaded"]["host_mib"] > middle["off"]["host_mib"] + 64:
        problems.append(f"grew {middle['preloaded']['host_mib']:.0f} MiB, graphs off {middle['off']['host_mib']:.0f}")
    cache = preloaded[-1].get("cache") or {}
    if ROW == "pool":
        row("pool-llama", texts["native"], f"{ratio:.3f} × [{ratios[0]:.3f} … {ratios[-1]:.3f}], {PAIRS} pairs: {texts['preloaded']}", not problems)
    else:
        row(f"llama-{ROW}", f"{texts['native']} (graphs off {texts['off']})",
            f"{ratio:.3f} × [{ratios[0]:.3f} … {ratios[-1]:.3f}], {PAIRS} pairs: {texts['preloaded']}", not problems)
        each = cache.get("source_bytes_per_node") or source()
        row("source-llama", "–", f"{each} B ({ROW})", each is not None and each <= 60)
    results.append(verdict(GROUP, "speed", problems, f"ratio {ratio:.4f}, {PAIRS} pairs in {time.monotonic() - start:.0f} s; {cache}",
                           ratio=ratio, ratios=ratios, median=middle))
    if COUNTED:
        results.append(counted())
    sys.exit(0 if all(results) else 1)


main()
