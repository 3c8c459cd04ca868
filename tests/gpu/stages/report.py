"""Recordings, reports and snapshots of programs that people run: a PyTorch training step, and llama-server under load.

    report.py [torch | llama]...      REPORT_SECONDS=20 LLAMA_SERVER=… LLAMA_MODEL=…

What a user types is typed here while the program works: `gpumem record PID`, `gpumem report`, `gpumem export` to a snapshot of
PyTorch's kind. The pages stay in OUT, to be looked at.

Held to: the recording has the seconds that it was asked for; the page names functions of the program, for PyTorch native
ones and lines of Python; PyTorch's own reader (torch.cuda._memory_viz) opens the snapshot and sums up to the bytes that
the ledger of the same process has live.
"""
import json
import os
import pickle
import re
import subprocess
import sys
import threading

from harness import CLI, HERE, OUT, Held, need, verdict

GROUP = "report"
SECONDS = float(os.environ.get("REPORT_SECONDS", "20"))
# Names of functions that the page has to have.
NATIVE = {"torch": ("at::", "steps guard_steps.py"), "llama": ("ggml_cuda",)}


def typed(folder, *words, timeout=120):
    """What gpumem says; RuntimeError with its last words where it fails."""
    env = {**os.environ, "GPUMEM_DIR": str(folder / "ledgers")}
    done = subprocess.run([CLI, *map(str, words)], capture_output=True, text=True, timeout=timeout, env=env)
    if done.returncode:
        raise RuntimeError(f"gpumem {' '.join(map(str, words))}: status {done.returncode}: {done.stderr.strip()[-200:]}")
    return done.stdout


def snapshot(folder, pid, path):
    """Bytes of a snapshot, as PyTorch's own reader sums them up; None without PyTorch."""
    typed(folder, "export", pid, "-o", path)
    try:
        from torch.cuda import _memory_viz
    except ImportError:
        return None
    data = pickle.loads(path.read_bytes())
    # They raise on what they cannot read.
    for view in (_memory_viz.segsum, _memory_viz.segment_plot, _memory_viz.trace_plot):
        view(data)
    return sum(segment["allocated_size"] for segment in data["segments"])


def looked_at(name, folder, pid, work):
    """Records a process while `work(over)` keeps it busy until the event `over` is set; returns what is wrong, and what is told."""
    over, failed = threading.Event(), []

    def busy():
        try:
            work(over)
        except (RuntimeError, OSError, ValueError) as error:
            failed.append(f"its work failed: {error}")

    worker = threading.Thread(target=busy)
    worker.start()
    recording, page, pickled = OUT / f"report-{name}.rec.gz", OUT / f"report-{name}.html", OUT / f"report-{name}.pickle"
    try:
        typed(folder, "record", pid, "-o", recording, "--for", f"{SECONDS:.0f}", timeout=SECONDS + 120)
    finally:
        over.set()
        worker.join()
    # Nothing comes or goes now: the ledger and the snapshot speak of the same.
    typed(folder, "report", recording, "-o", page)
    summed, problems = snapshot(folder, pid, pickled), failed
    stats = json.loads(typed(folder, "stats", pid, "--json"))
    live = sum(kind["live_bytes"] for kind in stats["kinds"] if kind["space"] in ("device", "managed"))
    if summed is not None and summed != live:
        problems.append(f"the snapshot has {summed} bytes, the ledger {live}")
    text = page.read_text()
    problems += [f"the page does not name {wanted}" for wanted in NATIVE[name] if wanted not in text]
    looks = re.search(r"([0-9]+) looks", text)
    pickled.unlink()
    return problems, (f"{SECONDS:.0f} s, recording {recording.stat().st_size / 1024:.1f} KiB, page {page.stat().st_size / 1024:.0f} KiB, "
                      f"{looks.group(0) if looks else '? looks'}, snapshot of {live / 2**20:.0f} MiB" + ("" if summed is not None else ", which nobody read"))


def torch():
    if subprocess.run([sys.executable, "-c", "import torch"], capture_output=True).returncode:
        print(f"skip {GROUP}/torch no PyTorch")
        return True
    program = Held(GROUP, "torch", [sys.executable, HERE / "programs/py" / "guard_steps.py"], preload=True, env={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"})
    try:
        program.ask("steps 3", 180)

        def work(over):
            while not over.is_set():
                program.ask("steps 10")

        return verdict(GROUP, "torch", *looked_at("torch", program.folder, program.process.pid, work))
    except (RuntimeError, OSError, KeyError, ValueError, subprocess.TimeoutExpired) as error:
        return verdict(GROUP, "torch", [str(error)[:280]])
    finally:
        program.stop()


def llama():
    need(GROUP, "llama", "LLAMA_SERVER", "LLAMA_MODEL")
    from llama_server import Server
    server = Server("report", True)
    try:
        server.ready()

        def work(over):
            while not over.is_set():
                server.load(2)

        return verdict(GROUP, "llama", *looked_at("llama", server.folder, server.process.pid, work))
    except (RuntimeError, OSError, KeyError, ValueError, subprocess.TimeoutExpired) as error:
        return verdict(GROUP, "llama", [str(error)[:280]])
    finally:
        server.stop()


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    results = [{"torch": torch, "llama": llama}[name]() for name in sys.argv[1:] or ("torch", "llama")]
    sys.exit(0 if all(results) else 1)


main()
