"""What refers to device memory, and what happens to a reader: references.cpp natively and preloaded.

    references.py [words | load | unmap | trim]...

Decides nothing but that the preloaded program gets the native answers. What it tells is what a search for memory that
nothing refers to can be built on; docs/decisions/ says what came out.
"""
import json
import sys

from harness import BUILD, run, verdict

GROUP = "references"
ANSWERS = {"load": ["waited"], "unmap": ["unmap", "reader"], "trim": ["trim", "reader"]}


def one(what):
    said = {}
    for mode in ("native", "preloaded"):
        done = run(f"references-{what}", mode, [BUILD / "references", what], preload=mode == "preloaded", timeout=60)
        line = next((line for line in done.stdout.splitlines() if line.startswith("{")), None)
        if done.status or not line:
            return verdict(GROUP, what, [f"{mode}: status {done.status}: {done.stderr.strip()[-200:]}"])
        said[mode] = json.loads(line)
    answers = [[of[name] for name in ANSWERS.get(what, [])] for of in said.values()]
    problems = ["other answers than natively"] if answers[0] != answers[1] else []
    return verdict(GROUP, what, problems, f"native {json.dumps(said['native'])}, preloaded {json.dumps(said['preloaded'])}")


if __name__ == "__main__":
    sys.exit(0 if all([one(what) for what in sys.argv[1:] or ["words", *ANSWERS]]) else 1)
