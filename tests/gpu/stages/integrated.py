"""Whose memory the device's is, and whether gpumem goes by it: for owners of a GH200, a DGX Spark, a Jetson, and of any card
beside which theirs can be read.

    integrated.py

One program (py/machine_memory.py) runs natively, preloaded, and preloaded under GPUMEM_LIMIT. A check a line, and at the end
one block to send.

  INTEGRATED_MIB=512   how much is allocated of each kind
"""
import json
import os
import sys
import time

from harness import CLI, HERE, Held, inspect, run, verdict

GROUP = "integrated"
PROGRAM = HERE / "programs/py" / "machine_memory.py"
MIB = int(os.environ.get("INTEGRATED_MIB", "512"))
LIMIT, LARGE = MIB * 2, MIB * 3
# What the pool keeps at most (docs/pool.md).
SHARE, INTEGRATED_SHARE = 4, 16

bad = []


def check(name, ok, detail):
    if not verdict(GROUP, name, [] if ok else [detail], detail if ok else ""):
        bad.append(name)


ARGUMENTS = [sys.executable, PROGRAM, MIB, LARGE]


def said(mode, **how):
    """What the program said; ends here if it failed."""
    ran = run(GROUP, mode, ARGUMENTS, **how)
    if ran.status != 0:
        check(mode, False, f"status {ran.status}: {ran.stderr.strip()[-200:]}")
        sys.exit(1)
    return json.loads(ran.stdout)


def observed():
    """What the program said preloaded, and what stats said of it. The pool tells once a second what it keeps."""
    program = Held(GROUP, "preloaded", ARGUMENTS, preload=True)
    try:
        answer = program.answer()
        end = time.monotonic() + 60
        while True:
            time.sleep(1.5)
            stats = inspect("stats", program.ledger())
            if kept_by(stats) > 0 or time.monotonic() > end:
                return answer, stats
    finally:
        program.stop()


def kept_by(stats):
    """What the pool keeps: by now what is above its bound has gone back."""
    return max((context["idle_bytes"] for context in stats["pool"]["in_contexts"]), default=0)


def main():
    native = said("native")
    preloaded, stats = observed()
    limited = said("limited", preload=True, env={"GPUMEM_LIMIT": f"{LIMIT}MiB"})
    attributes = native["attributes"]
    # Page tables of the host's are one way to access pageable memory, and managed access at once needs managed memory.
    check("attributes", attributes["100"] <= attributes["88"] and attributes["89"] <= attributes["83"], json.dumps(attributes))
    check("unchanged", preloaded["attributes"] == attributes and preloaded["total"] == native["total"], "the same natively and preloaded")
    check("limit", limited["large"] == 2, f"{LARGE} MiB under a limit of {LIMIT}: {limited['large']}, natively {native['large']}")
    device = stats["devices"][0]
    check("told", device["integrated"] == (attributes["18"] == 1), f"stats says integrated {device['integrated']}, the driver {attributes['18']}")
    share = native["total"] // (INTEGRATED_SHARE if device["integrated"] else SHARE)
    kept = kept_by(stats)
    check("kept", 0 < kept <= share, f"{kept >> 20} MiB, {share >> 20} allowed")
    print("---- send from here")
    print(json.dumps({"gpumem": os.path.basename(CLI), "native": native, "preloaded": preloaded, "limited": limited, "devices": stats["devices"],
                      "kept": kept, "failed": bad}, indent=1, sort_keys=True))
    print("---- to here")
    return 1 if bad else 0


sys.exit(main())
