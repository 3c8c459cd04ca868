"""llama.cpp over cudaMalloc (GGML_CUDA_NO_VMM, `-fa off`): a long prefill whose workspaces strand, and what a quota does to it.

    pool_llama.py LLAMA_BATCHED_BENCH MODEL.gguf stranded | oom        STRANDED_PAIRS=3 STRANDED_PREFILL=32768

The model is wide in attention and small otherwise: `make_gguf.py --embd 1024 --heads 32 --kv-heads 8
--head-dim 128 --layers 4 --ff 1024`.

  stranded  natively and with GPUMEM_STRANDED=press by turns: peak of live device memory (the ledger's; the
            card's as NVML has it) and speed of the prefill; once with report, and once with spill in 4 GiB
  oom       under a quota (OOM_LIMIT=4GiB), the four combinations of the variables of llama.cpp's pull request
            22158: what ends how, and where the memory was
"""
import os
import pathlib
import re
import statistics
import sys
import time

from done import row
from harness import Peak, inspect, record, run, verdict
from stats import Ledger

GROUP = "pool-llama"
BENCH, MODEL = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
PAIRS = int(os.environ.get("STRANDED_PAIRS", "3"))
PREFILL = int(os.environ.get("STRANDED_PREFILL", "32768"))
LIMIT = os.environ.get("OOM_LIMIT", "4GiB")
ARGUMENTS = ["-m", MODEL, "-ngl", "99", "-fa", "off", "-fit", "off", "-c", PREFILL + 512, "-b", "2048", "-ub", "512",
             "-npp", PREFILL, "-ntg", "16", "-npl", "1"]
# What a failed run says of its end: ggml names the call, the allocation or the abort.
FAILED = re.compile(r"out of memory|failed to allocate|GGML_ASSERT|CUDA error|ggml_abort|cudaMalloc failed|failed to (?:create|load|decode|find)", re.I)


class Outcome:
    """One run: whether it finished, its speeds, peaks in GiB, and what the ledger holds."""

    def __init__(self, name, env=None):
        with Peak() as peak:
            done = run(GROUP, name, [BENCH, *ARGUMENTS], preload=env is not None, env=env, timeout=45, cwd=BENCH.parent)
        rows = [line.split("|") for line in done.stdout.splitlines() if re.match(r"\|\s*\d", line)]
        self.finished = done.status == 0
        self.prefill = float(rows[-1][6]) if rows else None  # the program's log may lose its last line as it ends
        self.seconds, self.status = done.seconds, done.status
        self.card = (peak.mib or 0) / 1024
        said = [line.strip() for line in (done.stderr + "\n" + done.stdout).splitlines() if FAILED.search(line)]
        self.why = "" if self.finished else (said[-1] if said else f"status {done.status}")[:110]
        self.live = self.pool = self.path = None
        self.problems = []
        if env is not None:
            self.path, ledger = done.ledger, Ledger(done.ledger)
            self.pool, self.problems = ledger.pool(), [f"{name}: {text}" for text in ledger.trouble()]
            self.live = self.pool["peak_mib"] / 1024
            self.spilled = self.pool.get("spilled_bytes", 0) / 2**30
            if ledger.interception != "complete":
                self.problems.append(f"{name}: interception {ledger.interception} ({ledger.reason})")
        record({"group": GROUP, "name": name, "finished": self.finished, "status": self.status, "prefill": self.prefill,
                "seconds": self.seconds, "card_gib": self.card, "live_gib": self.live, "pool": self.pool, "why": self.why})
        text = f"prefill {self.prefill or 0:.0f} tokens/s" if self.finished else f"ends with {self.why!r}"
        print(f"     {GROUP}/{name}: {text}, card +{self.card:.2f} GiB" + (f", live {self.live:.2f} GiB, {self.pool}" if self.pool else "")
              + f", {self.seconds:.1f} s", flush=True)


def stranded():
    press_env = {"GPUMEM_STRANDED": "press", "GPUMEM_STRANDED_RETRIES": "1"}
    runs, start = {"native": [], "press": []}, time.monotonic()
    report = Outcome("report", {"GPUMEM_STRANDED": "report"})
    for pair in range(PAIRS):
        for name in list(runs) if pair % 2 == 0 else reversed(runs):
            runs[name].append(Outcome(f"{name}-{pair}", press_env if name == "press" else None))
    spill = Outcome("spill", {"GPUMEM_STRANDED": "spill", "GPUMEM_LIMIT": "4GiB"})
    problems = [text for outcome in (report, spill, *runs["press"]) for text in outcome.problems]
    native, press = runs["native"], runs["press"]
    for name, outcomes in (("native", native), ("press", press), ("report", [report])):
        problems += [f"{name}: ends with {outcome.why}" for outcome in outcomes if not outcome.finished]
    ratios = [b.prefill / a.prefill for a, b in zip(native, press) if a.prefill and b.prefill]
    ratio = statistics.median(ratios) if ratios else float("nan")
    live, card = max(o.live for o in press), max(o.card for o in press)
    row("pool-press", f"{report.live:.2f} GiB (card {max(o.card for o in native):.2f}), {statistics.median(o.prefill or 0 for o in native):.0f} tokens/s",
        f"{live:.2f} GiB (card {card:.2f}), prefill {ratio:.3f} ×, {press[-1].pool.get('press_refusals', 0)} refusals",
        not problems and live <= 3 and ratio >= 0.95)
    row("pool-spill", f"{report.live:.2f} GiB", f"{'finishes' if spill.finished else 'ends with ' + spill.why}: live {spill.live:.2f} GiB, "
        f"spilled in all {spill.spilled:.2f} GiB, card {spill.card:.2f} GiB, prefill {(spill.prefill or 0) / (native[0].prefill or 1):.3f} ×",
        spill.finished and spill.live <= 4)
    sites = inspect("stats", report.path).get("pool", {}).get("stranded", [])
    first = sites[0] if sites else None
    row("pool-report", "–", f"{first['site']}: {first['bytes'] / 2**30:.2f} GiB in {first['blocks']} blocks" if first else "no site", bool(first))
    if not first:
        problems.append("no site was reported")
    return verdict(GROUP, "stranded", sorted(set(problems)), f"{PAIRS} pairs in {time.monotonic() - start:.0f} s; press {press[-1].pool}; sites {sites[:2]}")


def oom():
    """The combinations; with neither set the program must end as on a card that is as small."""
    found, problems = {}, []
    for managed in ("0", "1"):
        for fallback in ("0", "1"):
            env = {"GPUMEM_LIMIT": LIMIT, "GPUMEM_STRANDED": "off"}
            env.update({"GGML_CUDA_POOL_USE_MANAGED": "1"} if managed == "1" else {})
            env.update({"GGML_CUDA_ALLOC_FALLBACK_MANAGED": "1"} if fallback == "1" else {})
            found[managed, fallback] = Outcome(f"oom-pool{managed}-fallback{fallback}", env)
    for outcome in found.values():
        problems += outcome.problems
    if found["0", "0"].spilled:
        problems.append(f"with neither set {found['0', '0'].spilled:.2f} GiB were spilled")
    if not found["0", "1"].finished or not found["0", "1"].spilled:
        problems.append(f"the fallback alone: finished {found['0', '1'].finished}, spilled {found['0', '1'].spilled:.2f} GiB")
    if not found["1", "0"].spilled:
        problems.append("with the pool managed nothing of it was")
    if not found["1", "1"].finished:
        problems.append("with both set it does not finish")
    print("| GGML_CUDA_POOL_USE_MANAGED | GGML_CUDA_ALLOC_FALLBACK_MANAGED | ends | live on the device | spilled in all | prefill |\n|---|---|---|---|---|---|")
    for (managed, fallback), o in found.items():
        print(f"| {managed} | {fallback} | {'finishes' if o.finished else o.why} | {o.live:.2f} GiB | {o.spilled:.2f} GiB | {o.prefill or 0:.0f} tokens/s |")
    row("pool-oom", "–", f"limit {LIMIT}: " + "; ".join(
        f"{m}{f} {'finishes' if o.finished else 'ends: ' + o.why}, spilled {o.spilled:.2f} GiB" for (m, f), o in found.items()), not problems)
    return verdict(GROUP, "oom", sorted(set(problems)))


def main():
    results = []
    for name in sys.argv[3:]:
        try:
            results.append({"stranded": stranded, "oom": oom}[name]())
        except (RuntimeError, OSError, ValueError, TypeError) as error:
            results.append(verdict(GROUP, name, [str(error)[:250]]))
    sys.exit(0 if all(results) else 1)


main()
