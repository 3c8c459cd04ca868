"""Where memory lies decides which sum it is in, and whether a limit applies: physical memory and pools of the device, of the
host and of managed memory (tests/programs/clients/locations.c), and PyTorch with expandable segments and with cudaMallocAsync.

    locations.py

Each program runs natively and preloaded, those of the host and of managed memory under GPUMEM_LIMIT, too.
"""
import importlib.util
import json
import sys

from harness import BUILD, HERE, inspect, run, verdict

GROUP = "locations"
MIB = 1 << 20
# Of each case: MiB on the device, on the host, managed; allocations; and limits that must not touch it.
CASES = {
    "hostnuma": ((0, 258, 0, 2), ("", "256MiB")),
    "pools": ((0, 512, 512, 2), ("", "256MiB")),
    "device_pools": ((56, 0, 0, 3), ("",)),
    "segments": ((128, 0, 0, 64), ("",)),
    "exported": ((240, 0, 0, 30), ("",)),
}
bad = []


def check(name, problems, detail=""):
    if not verdict(GROUP, name, problems, detail):
        bad.append(name)


def live_of(ledger):
    live = inspect("stats", ledger)["live"]
    return tuple(live[memory] // MIB for memory in ("device", "host", "managed")) + (live["count"],), live["unknown"]


def totals_of(ledger):
    """Bytes ever allocated, and how often, over all stacks."""
    rows = inspect("allocs", ledger, "--by", "stack")["rows"]
    return sum(row.get("total_bytes") or 0 for row in rows) // MIB, sum(row.get("total_allocs") or 0 for row in rows)


def case(name, expected, limits):
    program = [BUILD / "locations", name]
    native = run(GROUP, f"{name}-native", program)
    for limit in limits:
        env = {"GPUMEM_LIMIT": limit} if limit else {}
        ran = run(GROUP, f"{name}-{limit or 'plain'}", program, preload=True, env=env)
        problems = []
        if (ran.status, ran.stdout) != (native.status, native.stdout) or native.status != 0:
            problems.append(f"natively {native.status} {native.stderr.strip()[-120:]}, preloaded {ran.status} {ran.stderr.strip()[-120:]}")
        elif ran.ledger is None:
            problems.append("no ledger")
        else:
            live, unknown = live_of(ran.ledger)
            if live != expected or unknown:
                problems.append(f"live {live} and {unknown} B unknown, expected {expected}")
            # Of stacks that hold something: the one that `pools` frees again is not among them.
            totals = sum(expected[:3]), expected[3]
            if totals_of(ran.ledger) != totals:
                problems.append(f"total {totals_of(ran.ledger)} MiB and times, expected {totals}")
        check(f"{name}{' under ' + limit if limit else ''}", problems, f"{expected} MiB device, host, managed; count")


def beyond():
    ran = run(GROUP, "beyond", [BUILD / "locations", "beyond"], preload=True, env={"GPUMEM_LIMIT": "256MiB"})
    check("beyond the limit", [] if ran.stdout.startswith("2 2 2\n") else [f"{ran.stdout[:40]!r} {ran.stderr.strip()[-120:]}"],
          "512 MiB of the device are refused: physical, from a pool, in stream order")


def torch(name, conf, kind):
    program, env = [sys.executable, HERE / "programs/py" / "torch_segments.py"], {"PYTORCH_CUDA_ALLOC_CONF": conf}
    native = run(GROUP, f"torch-{name}-native", program, env=env)
    ran = run(GROUP, f"torch-{name}", program, preload=True, env=env)
    if ran.status != 0 or native.status != 0 or ran.ledger is None:
        return check(f"torch {name}", [f"natively {native.status}, preloaded {ran.status}: {ran.stderr.strip()[-160:]}"])
    said, problems = json.loads(ran.stdout), []
    stats = inspect("stats", ran.ledger)
    live = stats["live"]["device"]
    rows = [row for row in stats["kinds"] if row["kind"] == kind and row["space"] == "device"]
    held, made = sum(row["live_bytes"] for row in rows), sum(row["alloc_bytes"] for row in rows)
    if not said["live"] <= held <= live <= said["reserved"] + 64 * MIB:
        problems.append(f"{held >> 20} MiB of {kind}, {live >> 20} MiB live, PyTorch has reserved {said['reserved'] >> 20}")
    total, _ = totals_of(ran.ledger)
    if total > (made >> 20) + 64:
        problems.append(f"total {total} MiB, {made >> 20} MiB were made")
    check(f"torch {name}", problems, f"{live >> 20} MiB live, {total} MiB in total, {said['reserved'] >> 20} MiB reserved")


def main():
    for name, (expected, limits) in CASES.items():
        case(name, expected, limits)
    beyond()
    if importlib.util.find_spec("torch"):
        torch("expandable_segments", "expandable_segments:True", "vmm-physical")
        torch("cudaMallocAsync", "backend:cudaMallocAsync", "async")
    else:
        print(f"skip {GROUP}/torch PyTorch is not installed", flush=True)
    return 1 if bad else 0


sys.exit(main())
