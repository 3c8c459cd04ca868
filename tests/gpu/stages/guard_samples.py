"""NVIDIA's cuda-samples (https://github.com/NVIDIA/cuda-samples) natively, under the guard and under memcheck: exit status, what
each says of itself, seconds, and the card's memory. guard.py prints the rows.

  CUDA_SAMPLES=folder    of built samples, or of their sources (with Samples/ and Common/ in it), which are compiled then
  GUARD_SAMPLES="vectorAdd scan"   which of them (all of NAMES that are there)
  GUARD_SAMPLE_ROUNDS=N  rounds of each way (3); of several the first does not count
"""
import concurrent.futures
import os
import pathlib
import re
import statistics
import subprocess
import time

import memcheck
from guard_clean import GROUP, GUARDS, findings, minus, ratio, row, said_by_memcheck, said_of, watched
from harness import BUILD, Peak, path_of, there, verdict

# They allocate by each kind of call, use streams, graphs, pools and libraries, and need no display.
NAMES = ("vectorAdd", "matrixMul", "simpleStreams", "asyncAPI", "UnifiedMemoryStreams", "mergeSort", "reduction", "scan", "sortingNetworks",
         "streamOrderedAllocation", "threadFenceReduction", "simpleCudaGraphs", "graphMemoryNodes", "jacobiCudaGraphs", "conjugateGradient",
         "conjugateGradientCudaGraphs", "simpleCUBLAS", "simpleCUFFT", "BlackScholes", "transpose")
ROUNDS = int(os.environ.get("GUARD_SAMPLE_ROUNDS", "3"))
LONGEST, UNDER_MEMCHECK = 40, 60
SAYS = re.compile(r"pass|fail|succe|error|verified|\bok\b|waive", re.IGNORECASE)
# Times, rates and sizes differ from run to run.
NUMBER = re.compile(r"[-+]?\d[\d.]*(e[-+]?\d+)?", re.IGNORECASE)


def compiled(folder):
    """Compiles samples from their sources, all at once; {name: program}."""
    into, home = BUILD / "samples", pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    lib = next((path for path in (home / "lib64", home / "lib") if path.is_dir()), home)
    into.mkdir(parents=True, exist_ok=True)

    def one(source):
        sources = [path for path in sorted(source.iterdir()) if path.suffix in (".cu", ".cpp")]
        text = "".join(path.read_text(errors="replace") for path in sources)
        libraries = [f"-l{name}" for name in ("cublas", "cusparse", "cufft") if f"<{name}" in text or f'"{name}' in text]
        command = ["nvcc", "-O2", "-std=c++17", "-arch=native", "--extended-lambda", "-w", f"-I{folder / 'Common'}", f"-I{source}", "-Xcompiler", "-fopenmp",
                   "-o", into / source.name, *sources, *libraries, "-Xlinker", f"-rpath={lib}"]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)
        if done.returncode:
            print(f"skip {GROUP}/sample/{source.name} not built: {(done.stderr.strip() or done.stdout.strip())[-150:]}".replace("\n", " "), flush=True)
            return None
        return source.name, into / source.name

    found = [source for source in sorted((folder / "Samples").glob("*/*")) if source.name in NAMES]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 2) as all_at_once:
        return dict(filter(None, all_at_once.map(one, found)))


def said(stdout):
    """What a sample says of how it went, without numbers."""
    return [NUMBER.sub("#", line.strip())[:200] for line in stdout.splitlines() if SAYS.search(line)]


def sample(name, program, until):
    """Rows of one sample, and whether all was as it has to be."""
    tag, seconds, mib, runs = f"guard-sample-{name}", {}, {}, {}
    for number in range(ROUNDS):
        ways = (None, *GUARDS)
        for guard in ways if number % 2 else reversed(ways):
            env = {"GPUMEM_GUARD": guard} if guard else {}
            runs[guard], mib[guard] = watched(tag, f"{guard or 'native'}-{number}", [program], preload=guard is not None, env=env, timeout=LONGEST,
                                              cwd=program.parent)
            seconds.setdefault(guard, []).extend([runs[guard].seconds] if number or ROUNDS == 1 else [])
        if number and until.left() < 5:
            break
    native = runs[None]
    if native.status != 0:
        print(f"skip {GROUP}/sample/{name} natively status {native.status}: {(native.stderr or native.stdout).strip()[-120:]}".replace("\n", " "), flush=True)
        return [], True
    (checked, errors), memcheck_mib = watched_memcheck(tag, program)
    middle = statistics.median(seconds[None])
    rows, good = [], True
    for guard in GUARDS:
        done = runs[guard]
        found, slower = findings(done.ledger), ratio(seconds[guard], seconds[None])
        problems = [] if done.status == 0 else [f"status {done.status}: {done.stderr.strip()[-150:]}"]
        problems += [] if found == [] else [f"findings in a clean program: {found}"]
        problems += [] if said(done.stdout) == said(native.stdout) else [f"says {said(done.stdout)[-1:]}, natively {said(native.stdout)[-1:]}"]
        rows.append(row(f"cuda-samples {name}", guard, said_of(found), slower, said_by_memcheck(errors), checked and checked.seconds / middle,
                        f"{middle:.2f} s", (mib[None], minus(mib[guard], mib[None]), checked and minus(memcheck_mib, mib[None]))))
        good &= verdict(GROUP, f"sample/{name}/{guard}", problems, f"{slower:.2f} x native ({middle:.2f} s), says {str(said(native.stdout)[-1:])[:60]}; memcheck "
                        f"{said_by_memcheck(errors)}, status {checked and checked.status}, {checked.seconds if checked else 0:.1f} s",
                        seconds={str(way): of for way, of in seconds.items()}, mib={str(way): of for way, of in mib.items()},
                        memcheck=checked and {"status": checked.status, "seconds": checked.seconds, "errors": errors, "mib": memcheck_mib,
                                              "says": said(checked.stdout)[-1:]})
    return rows, good


def watched_memcheck(tag, program):
    with Peak() as peak:
        found = memcheck.check(tag, [program], timeout=UNDER_MEMCHECK, clean=True)
    return found, peak.mib


def samples(until):
    """Rows of all samples that are there."""
    is_there = there(GROUP, "samples", "CUDA_SAMPLES")
    if not is_there:
        return [], is_there is None
    folder, chosen, start = path_of("CUDA_SAMPLES"), os.environ.get("GUARD_SAMPLES", "").split(), time.monotonic()
    if (folder / "Samples").is_dir():
        programs = compiled(folder)
        print(f"     {GROUP}/samples {len(programs)} compiled in {time.monotonic() - start:.0f} s", flush=True)
    else:
        programs = {name: folder / name for name in NAMES if os.access(folder / name, os.X_OK)}
    programs = {name: program for name, program in programs.items() if not chosen or name in chosen}
    if not programs:
        return [], verdict(GROUP, "samples", [f"none of {', '.join(chosen or NAMES)} is in {folder}"])
    rows, good = [], True
    for at, (name, program) in enumerate(programs.items()):
        if until.skips(f"sample/{name}", 10):
            continue
        more, ok = sample(name, program, until.share(max(10, until.left() / (len(programs) - at))))
        rows, good = rows + more, good & ok
    return rows, good
