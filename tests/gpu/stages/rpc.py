"""llama.cpp's rpc-server, which gets each graph at a new address and keeps an exec for each: native and preloaded side by side.

    LLAMA_RPC=/path/to/rpc-server LLAMA_SERVER=… (or LLAMA_BIN=…, the folder that has llama-server) LLAMA_MODEL=… rpc.py
        RPC_SECONDS=480 LLAMA_ARGS="-fa off -t 4"

Two rpc-servers have the GPU, one of them under the preload. Each is asked by a llama-server of its own (`--rpc`), which is
never preloaded and sees no GPU, so that all of the model's layers are where the rpc-server is. Four clients send each request
to both at the same time (side_by_side.py). Memory is that of the rpc-servers, each second.

Of the programs that people run this is the one that is known to grow natively (llama.cpp #20315): by how much it does so in
the later half is told. Preloaded it is held to what servers.py holds servers to: never above native + 4 MiB + 2 %, flat in the
later half, the same texts.
"""
import os
import sys

from harness import OUT, need, path_of
from llama_server import ARGUMENTS, Listening, Server
from side_by_side import MODES, judged, tried

GROUP = "rpc"
SECONDS = float(os.environ.get("RPC_SECONDS", "480"))
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


def client():
    """The llama-server that asks: what LLAMA_SERVER names, else the one in LLAMA_BIN."""
    return path_of("LLAMA_SERVER") or path_of("LLAMA_BIN") / "llama-server"


def one():
    program, model = path_of("LLAMA_RPC"), path_of("LLAMA_MODEL")
    workers = {mode: Listening(f"{GROUP}-{mode}", program, lambda port: ["-H", "127.0.0.1", "-p", port], preload) for mode, preload in MODES.items()}
    try:
        # A client asks for what the rpc-server has when it starts.
        for worker in workers.values():
            worker.ready()
        servers = {mode: Server(f"{GROUP}-client-{mode}", False, NO_GPU, program=client(), model=model, more=("--rpc", f"127.0.0.1:{worker.port}"))
                   for mode, worker in workers.items()}
    except (OSError, RuntimeError):
        for worker in workers.values():
            worker.stop()
        raise
    return tried(GROUP, "server", GROUP, servers, workers, SECONDS)


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    need(GROUP, "server", "LLAMA_RPC", ("LLAMA_SERVER", "LLAMA_BIN"), "LLAMA_MODEL")
    print(f"     {GROUP}: {SECONDS:.0f} s, with {' '.join(ARGUMENTS)}", flush=True)
    sys.exit(0 if judged(GROUP, "server", one) else 1)


main()
