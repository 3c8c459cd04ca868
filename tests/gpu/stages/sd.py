"""stable-diffusion.cpp: many images in one process, natively and preloaded side by side.

    SD_CLI=/path/to/sd-cli [SD_CLI_OLD=/path/to/an/older/sd-cli] sd.py [new | old]...        all at once
        SD_IMAGES=50 SD_STEPS=4 SD_SIZE=512 SD_SECONDS=540 SD_MODEL=file.safetensors SD_ARGS="--diffusion-fa"

Without SD_MODEL make_sd.py writes a checkpoint of the real shapes with random weights into $BUILD. The program first
samples a latent for each image and then decodes them all; its log says when each is finished, and memory is
taken then: anonymous resident memory (RssAnon), device memory as NVML says without the pool's idle blocks.
What the program keeps of each decoded image (three floats a pixel) is not counted as growth.

The native program does not repeat itself: of six images two to four had other bytes in a second run (cuBLAS, H200). So it
runs natively twice, one after the other.

Held to: the same bytes in every PNG, where the two native runs agree in all; otherwise how many are alike is told.
Under the preload, from the third image on and in each of the two phases,
no more than 4 MiB + 2 % above what it was at the third; an image takes at most 1.05 of its native time in the
median. Natively: how much each image adds.
"""
import concurrent.futures
import hashlib
import os
import shlex
import subprocess
import sys
import time

from done import row
from harness import BUILD, HERE, OUT, WORK, allowed, beside, path_of, record, there, verdict
from memory import Marked, quartiles, quartiles_text, series, trouble_of

GROUP = "sd"
IMAGES, STEPS, SIZE = (int(os.environ.get(name, value)) for name, value in (("SD_IMAGES", "50"), ("SD_STEPS", "4"), ("SD_SIZE", "512")))
SECONDS = float(os.environ.get("SD_SECONDS", "540"))
ARGUMENTS = shlex.split(os.environ.get("SD_ARGS", ""))
PROGRAMS = {"new": "SD_CLI", "old": "SD_CLI_OLD"}
KEYS = {"new": "sd", "old": "sd-old"}
MODES = {"native": False, "preloaded": True}
FIRST = 2  # the third image: what is made once is there
PHASES = {"sampling": "sampling completed", "decoding": " decoded, taking"}
KEPT_MIB = {"sampling": 0.0, "decoding": SIZE * SIZE * 3 * 4 / 2**20}
SLOWEST = 1.05


def mark(line):
    return next((phase for phase, text in PHASES.items() if text in line), None)


def model():
    """The checkpoint: what SD_MODEL names, or one that is made here."""
    made = path_of("SD_MODEL")
    if made:
        return made
    made = BUILD / "sd15-random.safetensors"
    if not made.exists():
        print(f"     {GROUP}: writing {made.name}", flush=True)
        subprocess.run([sys.executable, HERE / "tools/make_sd.py", made], check=True, timeout=300)
    return made.resolve()


def images_of(name, mode):
    return (WORK / f"{GROUP}-{name}" / mode / "images").resolve()


def started(name, mode, checkpoint):
    program = path_of(PROGRAMS[name])
    folder = images_of(name, mode)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.png"):
        old.unlink()
    argv = [program, "-m", checkpoint, "-p", "a stone bridge over a slow green river", "--seed", "42", "-W", SIZE, "-H", SIZE,
            "--steps", STEPS, "-b", IMAGES, "-o", folder / "image.png", *ARGUMENTS]
    return Marked(f"{GROUP}-{name}", mode, argv, mark, preload=MODES.get(mode, False), env=beside(program), cwd=program.parent)


def images(name, mode):
    """Digest of each image."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(images_of(name, mode).glob("*.png"))}


def phases(run):
    """{phase: {kind: MiB after each of its images}}, what the program keeps of them left out; {phase: seconds between them}.

    After the last image of a phase the program frees what the phase needed: it may be gone when memory is taken.
    """
    memory, seconds = {}, {}
    for phase in PHASES:
        samples = [s for s in run.samples if s[0] == phase]
        memory[phase] = series(samples[:-1], at=2)
        memory[phase]["host"] = [mib - KEPT_MIB[phase] * i for i, mib in enumerate(memory[phase]["host"], 1)]
        seconds[phase] = [b[1] - a[1] for a, b in zip(samples, samples[1:])]
    return memory, seconds


def each_adds(values):
    """By how many MiB each image after the third raises memory."""
    return (values[-1] - values[FIRST]) / (len(values) - 1 - FIRST) if len(values) > FIRST + 1 else float("nan")


def one(name, checkpoint):
    runs = {mode: started(name, mode, checkpoint) for mode in MODES}
    until, problems = time.monotonic() + SECONDS, []
    for mode, run in runs.items():
        run.wait(until)
        if run.status != 0:
            problems.append(f"{mode}: {'not finished in time' if run.status is None else f'status {run.status}'}: {run.said()}")
    digests = {mode: images(name, mode) for mode in MODES}
    if len(digests["native"]) != IMAGES:
        problems.append(f"natively {len(digests['native'])} images of {IMAGES}")
    again = started(name, "again", checkpoint)
    again.wait(until)
    repeated, same = (sum(other.get(image) == digest for image, digest in digests["native"].items())
                      for other in (images(name, "again"), digests["preloaded"]))
    if again.status != 0:
        problems.append(f"natively once more: {'not finished in time' if again.status is None else f'status {again.status}'}")
    elif repeated == IMAGES != same:
        problems.append(f"{IMAGES - same} images differ from native, which repeats itself")
    problems += trouble_of(runs["preloaded"].ledgers())
    memory, seconds = {}, {}
    for mode, run in runs.items():
        memory[mode], seconds[mode] = phases(run)
    texts, notes = {mode: [] for mode in MODES}, [f"{repeated} images as in a second native run, {same} as under the preload"]
    for phase in PHASES:
        for mode in MODES:
            adds = {kind: each_adds(values) for kind, values in memory[mode][phase].items()}
            texts[mode].append(f"{phase} " + " / ".join(f"{adds[kind]:+.2f}" for kind in adds))
        for kind, values in memory["preloaded"][phase].items():
            later = values[FIRST:]
            if len(later) < 2:
                problems.append(f"{phase}: only {len(values)} images were seen")
            elif max(later) > allowed(later[0]):
                problems.append(f"{phase}, {kind}: {max(later):.1f} MiB, at the third image {later[0]:.1f}")
            if later:
                notes.append(f"{phase} {kind} {later[0]:.0f} to at most {max(later):.0f} MiB")
    if "device" not in memory["native"]["sampling"]:
        notes.append("NVML does not tell device memory by process")
    took = {mode: [sum(pair) for pair in zip(*seconds[mode].values())] for mode in MODES}
    ratio = quartiles(took["preloaded"])[1] / quartiles(took["native"])[1] if took["native"] and took["preloaded"] else float("nan")
    if ratio > SLOWEST:
        problems.append(f"an image takes {ratio:.3f} of its native time")
    launches = sum(ledger.counts.get("launches", 0) for ledger in runs["preloaded"].ledgers())
    made = sum(ledger.counts.get("execs_created", 0) for ledger in runs["preloaded"].ledgers())
    cache = [ledger.cache() for ledger in runs["preloaded"].ledgers()]
    record({"group": GROUP, "name": f"{name}-samples", **{mode: run.samples for mode, run in runs.items()}})
    row(KEYS[name], f"MiB an image, host / device: {', '.join(texts['native'])}; {quartiles_text(took['native'])} s",
        f"{', '.join(texts['preloaded'])}; {quartiles_text(took['preloaded'])} s, {ratio:.3f} ×; "
        f"{made} graphs made, {launches} launches of them; {same} of {IMAGES} images alike, {repeated} of two native runs", not problems)
    return verdict(GROUP, name, problems, f"{IMAGES} images of {SIZE}, {STEPS} steps; {'; '.join(notes)}; {cache}",
                   images=len(digests["native"]), seconds=took)


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    needed = ("SD_MODEL",) if path_of("SD_MODEL") else ()
    found = {name: there(GROUP, name, PROGRAMS[name], *needed) for name in sys.argv[1:] or PROGRAMS}
    named = [name for name, is_there in found.items() if is_there]
    wrong = False in found.values()
    if not named:
        sys.exit(1 if wrong else 0)
    try:
        checkpoint = model()
    except (OSError, subprocess.SubprocessError) as error:
        verdict(GROUP, "model", [str(error)[:250]])
        sys.exit(1)

    def judged(name):
        try:
            return one(name, checkpoint)
        except (OSError, ValueError, KeyError, IndexError) as error:
            return verdict(GROUP, name, [f"{type(error).__name__}: {error}"[:250]])

    with concurrent.futures.ThreadPoolExecutor(len(named)) as all_at_once:
        results = list(all_at_once.map(judged, named))
    sys.exit(0 if all(results) and not wrong else 1)


main()
