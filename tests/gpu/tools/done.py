"""What the graph cache and the pool are to reach, and what was measured: one row a figure.

    done.py [--pool | --graphs | --costs | --published] RESULTS.jsonl...  the tables of docs/performance.md and, of programs that
                                                                   people run, docs/tested-programs.md, from what stages
                                                                   recorded; of several results of one row the last

A stage calls `row` with what it measured; it prints the row as Markdown and records it.
"""
import json
import pathlib
import sys

# key: what, to reach
TABLE = {
    "graphs-200": ("200 graphs × 1000 nodes of one topology, cap 16: host / device growth",
                   "≤ 330 MB with the program's own graphs kept, ≤ 130 MB with them folded / ≤ 40 MiB"),
    "graphs-10000": ("10 000 such graphs, cap 64, graphs destroyed after instantiate: host / device growth",
                     "≤ 1.2 GB / ≤ 200 MiB, all launch correctly"),
    "source-llama": ("source kept per node, llama.cpp", "≤ 60 B"),
    "source-torch": ("source kept per node, PyTorch", "≤ 60 B"),
    "instantiate": ("instantiate of a known class, 1000 nodes / until its first launch returns", "≤ 0.8 ms / ≤ 1.3 ms"),
    "resident": ("launch of a resident exec, 1000 nodes, host call", "≤ +50 ns"),
    "churn": ("ggml v0.9.11, 1000 keys × 400 nodes × 4 computes, cap 16: host / device growth, time per compute",
              "≤ 1650 MiB with the program's own graphs kept, ≤ 450 MiB with them folded / ≤ 60 MiB, ≤ 1.6 ms"),
    "torch-replay": ("round-robin replay of 200 PyTorch graphs, cap 32: time each; host, device growth",
                     "≤ 1.05 × native; host ≤ 40 %, device ≤ 60 % of native's"),
    "torch-host": ("the same at default caps: host time per replay", "≤ 1.02 × native"),
    "llama-dense": ("llama-server, four clients, dense: tokens/s; growth of RSS", "≥ 0.99 × native; ≤ graphs off + 64 MiB"),
    "llama-moe": ("llama-server, four clients, MoE: tokens/s; growth of RSS", "≥ 0.99 × native; ≤ graphs off + 64 MiB"),
    "llama-cpumoe": ("llama-server, four clients, experts on the CPU: tokens/s; growth of RSS",
                     "≥ 1.03 × native; ≤ graphs off + 64 MiB"),
    "llama-own": ("llama-server, four clients, dense: the shim's own time a token", "≤ 1 % of a token"),
    "never-evicts": ("the demo that never evicts, 3 slots, second half of its run: host / device growth", "flat after warm-up"),
    "torch-compile": ("torch.compile `mode=\"reduce-overhead\"` over 100 sizes: host / device growth", "no more, same results"),
    "flat-demo": ("the demo, four slots, eight minutes beside a native one: memory",
                  "host, and device without idle blocks, ≤ native + 4 MiB + 2 %; later half no steeper"),
    "flat-llama": ("llama-server, four clients, all lengths, eight minutes beside a native one: memory", "the same"),
    "flat-torch": ("PyTorch, training and graphs of changing shapes, eight minutes beside a native one: memory", "the same"),
    "sd": ("stable-diffusion.cpp, SD 1.5 shapes, 50 images: host / device growth an image; seconds an image",
           "flat from the third image on, ≤ 1.05 × native, the same bytes where native repeats itself"),
    "sd-old": ("the same, an older build", "the same"),
    "servers-today": ("llama-server of today, four clients, shapes that change: memory; tokens/s of a request",
                      "≤ native + 4 MiB + 2 %; flat in the later half; the same texts"),
    "servers-old": ("llama-server whose cache never evicts: the same", "the same"),
    "servers-ik": ("ik_llama.cpp's server: the same", "the same"),
    "rpc": ("llama.cpp's rpc-server, four clients over it, shapes that change: its memory; tokens/s of a request", "the same"),
    "today-perplexity": ("llama-perplexity on random text", "the same numbers"),
    "today-bench": ("llama-batched-bench, many batch sizes: tokens/s", "the same rows, ≥ 0.97 × native"),
    "today-state": ("llama.cpp, state saved and restored", "the same texts"),
    "torch-train": ("PyTorch, training with changing lengths: memory; ms a step", "the same losses, ≤ native + 4 MiB + 2 %"),
    "torch-shapes": ("torch.compile `reduce-overhead` over 100 shapes, each compiled: memory; seconds a shape",
                     "the same results, ≤ native + 4 MiB + 2 %"),
    "torch-ddp": ("PyTorch, DDP over two GPUs by NCCL: memory; ms a step", "the same losses, ≤ native + 4 MiB + 2 % a process"),
    "torch-infer": ("PyTorch, inference with a CUDA graph a batch size: memory; ms a replay", "the same results, ≤ native + 4 MiB + 2 %"),
    "models": ("PyTorch, models of 0.5 to 6 GiB loaded and dropped in turn: device memory after each drop; seconds a load",
               "≤ native + 4 MiB + 2 % without idle blocks, and with them after 20 s"),
    "two-gpus": ("two GPUs, NCCL all-reduce inside graphs", "same results, no hang, bounded"),
    "pool-pair": ("malloc + free, 1 thread, 64 KiB–4 MiB mixed, recording on, stacks off: cuMemAlloc / cudaMalloc", "≤ 0.06 / ≤ 0.15 µs"),
    "pool-threads": ("the same, 16 threads: pairs a second in all", "≥ 60 M"),
    "pool-stacks": ("the same, 1 thread, with stacks of 32 frames", "≤ +0.25 µs"),
    "pool-miss": ("first allocation of a new size", "≤ 1.03 × native"),
    "pool-torch": ("PyTorch forward, 24 layers, its own cache off: deferred, strict", "deferred ≤ 1.06 × its own cache (3.6 of 3.4 ms), strict < native"),
    "pool-random": ("RMM's random allocations, 100 000 of up to 64 MiB: time; peak reserved / peak requested", "≥ 5 × faster at ≤ 1.25"),
    "pool-back": ("device memory after a burst of 32 GiB freed, device idle", "all back within 15 s"),
    "pool-press": ("llama.cpp without VMM, `-fa off`, 32k prefill, `press`: peak of live device memory; prefill speed", "≤ 3 GiB, ≥ 0.95 × native"),
    "pool-spill": ("the same under GPUMEM_LIMIT=4GiB, `spill`", "finishes"),
    "pool-report": ("the same, `report`", "names the site"),
    "pool-oom": ("the four combinations of GGML_CUDA_POOL_USE_MANAGED and GGML_CUDA_ALLOC_FALLBACK_MANAGED on it under a quota", "as the table says"),
    "pool-swap": ("free 20 GiB, allocate 20 GiB of the same sizes", "≥ 20 × faster"),
    "pool-llama": ("llama-server over cudaMalloc, four clients, pool on: tokens/s", "≥ 0.99 × native"),
    "pool-peer": ("two GPUs, memory freed under the other's kernel: does the free wait", "as natively, contents right"),
}


# The costs that a user feels. docs/performance.md has the same goals; a test compares them.
GOALS = json.loads((pathlib.Path(__file__).resolve().parent.parent / "goals.json").read_text(encoding="utf-8"))
TABLE.update({key: tuple("; ".join(goal[name]) for name in ("what", "goal")) for key, goal in GOALS.items()})

PUBLISHED = ("sd", "sd-old", "servers-today", "servers-old", "servers-ik", "rpc", "today-perplexity", "today-bench", "today-state",
             "torch-train", "torch-shapes", "torch-ddp", "torch-infer", "models")


def table_of(key):
    """The table that a row belongs to."""
    return "--costs" if key in GOALS else "--pool" if key.startswith("pool-") else "--published" if key in PUBLISHED else "--graphs"


def line(key, native, reached, ok):
    what, target = TABLE[key]
    return f"| {what} | {native} | {reached} | {target} | {'yes' if ok else '**no**'} |"


def cost_row(key, native, figures, text=None, ok=True, earlier=None):
    """Prints and records a row of the costs, which is reached if no figure is above its goal. `earlier`: an earlier library's
    figures, measured by turns with these."""
    goals = GOALS[key]["most"]
    assert len(goals) == len(figures), key
    listed = lambda figures: "; ".join("–" if figure is None else f"{figure:.3g}" for figure in figures)
    text = (text or listed(figures)) + (f" (earlier library {listed(earlier)})" if earlier else "")
    return row(key, native, text, ok and all(figure is not None and figure <= goal for figure, goal in zip(figures, goals)))


def row(key, native, reached, ok):
    """Prints and records one row: native's figure, ours, and whether the target is reached."""
    from harness import record
    record({"group": "done", "name": key, "native": native, "reached": reached, "ok": bool(ok)})
    print(line(key, native, reached, ok), flush=True)
    return bool(ok)


def main():
    found, only, paths = {}, "", sys.argv[1:]
    if paths and paths[0].startswith("--"):
        only, *paths = paths
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for text in file:
                result = json.loads(text)
                if result.get("group") == "done":
                    found[result["name"]] = result
    print("| | native | with gpumem | to reach | reached |\n|---|---|---|---|---|")
    for key, (what, target) in TABLE.items():
        if only and only != table_of(key):
            continue
        seen = found.get(key)
        print(line(key, seen["native"], seen["reached"], seen["ok"]) if seen else f"| {what} | | not measured | {target} | |")


if __name__ == "__main__":
    main()
