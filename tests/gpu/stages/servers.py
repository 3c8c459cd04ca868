"""Servers whose cache of CUDA graphs evicts or never does: four clients, shapes that change, native and preloaded side by side.

    LLAMA_SERVER=… LLAMA_OLD_SERVER=… IK_SERVER=… LLAMA_MODEL=… servers.py [today | old | ik]...     all at once
        SERVERS_SECONDS=480 LLAMA_ARGS="-fa off -t 4" LLAMA_OLD_MODEL=… IK_MODEL=… IK_ARGS="…"

`today` is a llama-server of now, `old` one from before its cache evicted, `ik` that of ik_llama.cpp. Each client sends
requests of ever new lengths, every request to the native and to the preloaded server at the same time, and the
next when both have answered. For a sixth of the time one client works alone, so that small batches have their graphs too.

Each second of both servers: anonymous resident memory (RssAnon) and device memory (NVML, without the pool's idle
blocks). Held to: the same texts for prompts sent one at a time, before the load and, where they are the same natively, after
it (texts of requests that run beside others depend on which ones: how many are alike is told); the rules of memory of
side_by_side.py.
"""
import concurrent.futures
import os
import shlex
import sys

from harness import OUT, path_of, there
from llama_server import ARGUMENTS, Server
from side_by_side import MODES, judged, tried

GROUP = "servers"
SECONDS = float(os.environ.get("SERVERS_SECONDS", "480"))
# name: variables of the program, of the model; more options
SERVERS = {
    "today": ("LLAMA_SERVER", "LLAMA_MODEL", ()),
    "old": ("LLAMA_OLD_SERVER", ("LLAMA_OLD_MODEL", "LLAMA_MODEL"), ()),
    "ik": ("IK_SERVER", ("IK_MODEL", "LLAMA_MODEL"), shlex.split(os.environ.get("IK_ARGS", ""))),
}


def one(name):
    program, model, more = SERVERS[name]
    model = path_of(*([model] if isinstance(model, str) else model))
    servers = {mode: Server(f"{GROUP}-{name}-{mode}", preload, program=path_of(program), model=model, more=more) for mode, preload in MODES.items()}
    return tried(GROUP, name, f"servers-{name}", servers, servers, SECONDS)


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    found = {name: there(GROUP, name, *SERVERS[name][:2]) for name in sys.argv[1:] or SERVERS}
    named = [name for name, is_there in found.items() if is_there]
    print(f"     {GROUP}: {', '.join(named) or 'none'} for {SECONDS:.0f} s, all at once, with {' '.join(ARGUMENTS)}", flush=True)
    with concurrent.futures.ThreadPoolExecutor(len(named) or 1) as all_at_once:
        results = list(all_at_once.map(lambda name: judged(GROUP, name, lambda: one(name)), named))
    sys.exit(0 if all(results) and False not in found.values() else 1)


main()
