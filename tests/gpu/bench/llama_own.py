"""What the shim itself takes of a token in llama-server: at most 1 % of its time.

    LLAMA_SERVER=… LLAMA_MODEL=… llama_own.py      OWN_ROUNDS=6 OWN_SECONDS=4

Tokens a second of two servers differ by a fifth natively, so they are told and not judged. What is judged is made
of what can be measured:

- how often a token calls each function of the runtime, counted from outside (tokens.c);
- for calls that pass through: that count times what the shim adds to one (cost.c against nullcuda.c: a driver that
  does nothing, so that the time is the shim's alone);
- for calls that the graph cache answers (instantiate, update, destroy, captures): the difference of the time in
  them, preloaded less native, from outside; what the cache saves is not counted for it.
"""
import json
import os
import signal
import statistics
import sys
import time

from done import row
from harness import BUILD, OUT, SO, WORK, need, record, run, verdict
from llama_server import Server

GROUP = "llama-own"
ROUNDS, SECONDS = int(os.environ.get("OWN_ROUNDS", "6")), float(os.environ.get("OWN_SECONDS", "4"))
MOST = 0.01
# What the shim adds to a call as cost.c measures it: all that gives the device work is counted by the same code.
SUBMITS = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cudaMemcpyAsync", "cudaMemcpy2DAsync", "cudaMemsetAsync",
           "cudaEventRecord", "cudaStreamWaitEvent")
PASSES = {**dict.fromkeys(SUBMITS, "cuLaunchKernel"), "cudaStreamSynchronize": "cuStreamSynchronize",
          "cudaGraphLaunch": "cuGraphLaunch, resident"}
ANSWERED = ("cudaGraphInstantiate", "cudaGraphExecUpdate", "cudaGraphExecDestroy", "cudaGraphDestroy",
            "cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaMalloc", "cudaFree")


def server(mode):
    """A server with the counter in front."""
    out = WORK / f"own-{mode}.jsonl"
    out.unlink(missing_ok=True)
    tokens = str(BUILD / "libtokens.so")
    env = {"TOKENS_OUT": str(out), "LD_PRELOAD": f"{tokens}:{SO}" if mode == "preloaded" else tokens}
    return Server(f"own-{mode}", mode == "preloaded", env), out


def added_ns():
    """What the shim adds to calls of a driver that does nothing: {name: ns}"""
    added = {}
    for arguments in (["calls"], ["graphs", "350"]):
        done = run(f"{GROUP}-cost", arguments[0], [BUILD / "cost", *arguments], preload=True, env={"LD_LIBRARY_PATH": str(BUILD / "null")})
        for figure in map(json.loads, filter(lambda line: line.startswith("{"), done.stdout.splitlines())):
            added.setdefault(figure["cost"], figure["added_ns"])
    return added


def measured(server, out, each):
    """One block of requests: (tokens, seconds, {function: (calls, ns)})."""
    server.process.send_signal(signal.SIGUSR2)
    time.sleep(0.05)
    tokens, seconds = server.load(each)
    server.process.send_signal(signal.SIGUSR2)
    time.sleep(0.1)
    return tokens, seconds, {name: tuple(of) for name, of in json.loads(out.read_text().splitlines()[-1]).items()}


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    need(GROUP, "server", "LLAMA_SERVER", "LLAMA_MODEL")
    servers = {mode: server(mode) for mode in ("native", "preloaded")}
    blocks = {mode: [] for mode in servers}
    try:
        for running, _ in servers.values():
            running.ready()
            running.load(2)
        tokens, seconds = servers["native"][0].load(4)
        each = max(1, round(4 * SECONDS / seconds))
        for turn in range(ROUNDS):
            for mode in list(servers) if turn % 2 == 0 else reversed(servers):
                blocks[mode].append(measured(*servers[mode], each))
    finally:
        for running, _ in servers.values():
            running.stop()
    per_token = {}
    for mode, of in blocks.items():
        names = of[0][2]
        per_token[mode] = {name: (statistics.median(b[2][name][0] / b[0] for b in of),
                                  statistics.median(b[2][name][1] / b[0] for b in of)) for name in names}
    added = added_ns()
    missing = sorted(set(PASSES.values()) - set(added))
    through = {name: per_token["preloaded"][name][0] * added.get(driver, 0.0) for name, driver in PASSES.items()}
    answered = {name: max(0.0, per_token["preloaded"][name][1] - per_token["native"][name][1]) for name in ANSWERED}
    own = sum(through.values()) + sum(answered.values())
    token_ns = statistics.median(b[1] / b[0] * 1e9 for b in blocks["native"])
    speeds = {mode: sorted(b[0] / b[1] for b in of) for mode, of in blocks.items()}
    share = own / token_ns
    calls = sum(of[0] for of in per_token["preloaded"].values())
    text = (f"{own / 1e3:.2f} of {token_ns / 1e3:.0f} µs a token: {share:.2%} ({calls:.0f} calls; "
            + ", ".join(f"{mode} {statistics.median(of):.0f} [{of[0]:.0f} … {of[-1]:.0f}]" for mode, of in speeds.items()) + " tokens/s)")
    problems = [f"{share:.2%} of a token"] if share > MOST else []
    problems += [f"no figure of {', '.join(missing)}"] if missing else []
    record({"group": GROUP, "name": "figures", "through_ns": through, "answered_ns": answered, "per_token": per_token, "added_ns": added})
    row("llama-own", "–", text, not problems)
    top = sorted({**through, **answered}.items(), key=lambda of: -of[1])[:5]
    sys.exit(0 if verdict(GROUP, "share", problems, text + "; most: " + ", ".join(f"{n} {ns:.0f} ns" for n, ns in top)) else 1)


main()
