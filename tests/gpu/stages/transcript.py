"""What a new user types to find what grows, each command printed with its answer, and the line that says that it is flat.

    transcript.py [c | c-graphs | torch | torch-segments | torch-graphs | llama | old]...

As docs/guides/examples.md has it, with real programs: two or three commands each, no dump made before.

c               a C program (leak.c) that keeps a block of each request: its line is named
c-graphs        it keeps a graph of each request: `doctor` names the bound, and pasted it makes the memory flat
torch           PyTorch (py/keeps.py) under `gpumem run --tensors` keeps an activation of each step and what the backward pass made:
                the line of `forward` is named, and no line of Python is blamed for what was made on the backward pass's thread
torch-segments  the same under its own allocator: what grows is called a segment of it
torch-graphs    it keeps a CUDA graph of each step, backward pass included: as c-graphs
llama, old      LLAMA_SERVER, and LLAMA_OLD_SERVER (LLAMA_OLD_MODEL), with LLAMA_MODEL: as c-graphs, by four clients. forgets.c has it
                keep each of its graphs

What flat means is in fix.py; FIX_SECONDS (20) say how long it is looked at. Samples are taken every 100 ms, so that seconds do.
"""
import shlex
import signal
import subprocess
import sys

import fix
from harness import BUILD, HERE, OUT, SO, WORK, verdict

GROUP = "transcript"
INTERVAL = {"GPUMEM_GROWTH_INTERVAL": "100ms", "GPUMEM_LIB": SO}
GRAPHS_GROW = "--graph-cache 65536 --graph-cache-bytes 0 --graph-idle 0"
# Lines of an answer that are printed; all of them are in OUT.
SHOWN = 30


def starts(name, line):
    """The program that a user starts so, and the user."""
    user = fix.Typed(WORK / f"{GROUP}-{name}")
    (user.folder / "ledgers").mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(user.folder / "stdout", "wb") as out, open(user.folder / "stderr", "wb") as err:
        process = subprocess.Popen(["sh", "-c", f"exec {line}"], stdin=subprocess.PIPE, stdout=out, stderr=err,
                                   env=user.environment() | INTERVAL, start_new_session=True)
    user.text.append(f"$ {line}\n")
    return process, user


def prints(user):
    for said in user.text:
        lines = said.rstrip("\n").split("\n")
        print("\n".join(f"    {line}" for line in lines[:SHOWN]), flush=True)
        if len(lines) > SHOWN:
            print(f"    … {len(lines) - SHOWN} lines more", flush=True)


def growing(said):
    """Of what grows steadily: who it is."""
    blocks = [block for block in said.split("\n\n") if block.startswith("grows steadily")]
    whos = [line.split(None, 1)[1] for block in blocks for line in block.splitlines() if line.strip().startswith("who ")]
    return whos


def found(name, line, right, wrong=lambda whos: [], more=lambda user, said: []):
    """Types `gpumem leaks` until what grows is right; then what is wrong with it, and with what is typed next."""
    process, user = starts(name, line)
    problems, detail = [], ""
    try:
        said = user.until(f"gpumem leaks {process.pid}", lambda said: right(said, growing(said)))
        whos = growing(said)
        problems, detail = wrong(whos) + more(user, said), "; ".join(whos)
        if process.poll() is not None:
            problems.append(f"the program ended with {process.returncode}")
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        errors = (user.folder / "stderr").read_text(errors="replace").strip()[-120:]
        problems = [str(error)[-280:], errors]
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()
        (OUT / f"{GROUP}-{name}.txt").write_text("\n".join(user.text))
    prints(user)
    return verdict(GROUP, name, problems, detail)


def cured(name, line, wanted, threads=1):
    """Types what `doctor` prints, and holds what comes then to be flat."""
    process, user = starts(name, line)
    held = fix.cure(name, process, user, wanted, threads, GROUP)
    prints(user)
    return held


def stacks(wanted):
    """Types the command behind the first `next`, and looks for these words in what it says."""
    def typed(user, said):
        line = next(line.split(None, 1)[1] for line in said.splitlines() if line.strip().startswith("next "))
        answer = user(line)
        return [f"{line} has no {word}" for word in wanted if word not in answer]
    return typed


def leak():
    return shlex.quote(str(BUILD / "leak"))


def built(name):
    if not (BUILD / "leak").exists():
        print(f"skip {GROUP}/{name} no C compiler", flush=True)
        return False
    return True


def c():
    right = lambda said, whos: any("remember" in who for who in whos)
    wrong = lambda whos: [f"{who} does not grow" for who in whos if "remember" not in who]
    return not built("c") or found("c", f"gpumem run -- {leak()}", right, wrong, stacks(["remember", "main"]))


def c_graphs():
    return not built("c-graphs") or cured("c-graphs", f"gpumem run {GRAPHS_GROW} -- {leak()} graphs", "remember_graph")


def has_torch(name):
    if subprocess.run([sys.executable, "-c", "import torch"], capture_output=True).returncode:
        print(f"skip {GROUP}/{name} no PyTorch", flush=True)
        return False
    return True


def keeps(options, what):
    return f"gpumem run {options}-- {shlex.quote(sys.executable)} {shlex.quote(str(HERE / 'programs/py' / 'keeps.py'))} {what} 600"


def torch():
    forward, python = lambda who: "forward" in who and "keeps.py" in who, lambda who: ".py" in who
    right = lambda said, whos: any(map(forward, whos)) and not all(map(python, whos))
    wrong = lambda whos: [f"{who} is blamed" for who in whos if python(who) and not forward(who)]
    return not has_torch("torch") or found("torch", keeps("--tensors ", "tensors"), right, wrong, stacks(["keeps.py"]))


def torch_segments():
    right = lambda said, whos: "a segment of PyTorch's own allocator" in said and bool(whos)
    return not has_torch("torch-segments") or found("torch-segments", keeps("", "tensors"), right)


def torch_graphs():
    return not has_torch("torch-graphs") or cured("torch-graphs", keeps(GRAPHS_GROW + " ", "graphs"), "keeps.py")


def llama():
    return fix.llama("llama", group=GROUP, says=prints)


def old():
    return fix.llama("old", "LLAMA_OLD_SERVER", ("LLAMA_OLD_MODEL", "LLAMA_MODEL"), GROUP, prints)


PROGRAMS = {"c": c, "c-graphs": c_graphs, "torch": torch, "torch-segments": torch_segments, "torch-graphs": torch_graphs,
            "llama": llama, "old": old}


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    sys.exit(0 if all([PROGRAMS[name]() for name in sys.argv[1:] or PROGRAMS]) else 1)


if __name__ == "__main__":
    main()
