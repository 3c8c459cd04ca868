"""llama.cpp of today, its other programs, natively and preloaded: perplexity, many batch sizes, state saved and restored.

    LLAMA_BIN=/folder/of/llama.cpp/programs LLAMA_MODEL=… today.py [perplexity | bench | state]...
        TODAY_PAIRS=3 TODAY_CHUNKS=24 TODAY_BATCHES=1,2,3,4,6,8,12,16,24,32 TODAY_ARGS="-fa off"

  perplexity   llama-perplexity on random text: every number that it prints must be the same
  bench        llama-batched-bench over many batch sizes, native and preloaded by turns: the same rows, the tokens a
               second of each, and the median of their ratios
  state        llama-server with --slot-save-path: a prompt is answered, its state saved, erased, restored, and the text
               goes on; all texts and counts the same, and the same bytes in the saved state where two native
               runs save the same. llama.cpp's own test of it is run too, where it lies in the folder.
"""
import hashlib
import json
import os
import random
import re
import shlex
import sys

from done import row
from harness import OUT, WORK, beside, need, path_of, run, verdict
from llama_server import Server, prompt
from memory import ledgers_in, quartiles, quartiles_text, trouble_of
from stats import Ledger

GROUP = "llama-today"
FOLDER, MODEL = path_of("LLAMA_BIN"), path_of("LLAMA_MODEL")
PAIRS, CHUNKS = int(os.environ.get("TODAY_PAIRS", "3")), int(os.environ.get("TODAY_CHUNKS", "24"))
BATCHES = os.environ.get("TODAY_BATCHES", "1,2,3,4,6,8,12,16,24,32")
ARGUMENTS = shlex.split(os.environ.get("TODAY_ARGS", "-fa off"))
MODES = {"native": False, "preloaded": True}
LEAST = 0.97
CONTEXT = 512
STATE_TESTS = ("test-save-load-state", "llama-save-load-state")


def one(name, mode, program, arguments, timeout=280):
    """A run of a program of the folder; RuntimeError when it fails."""
    path = FOLDER / program
    done = run(f"{GROUP}-{name}", mode, [path, "-m", MODEL, "-ngl", "99", *arguments], preload=MODES[mode.split("-")[0]],
               env=beside(path), timeout=timeout, cwd=WORK)
    if done.status != 0:
        raise RuntimeError(f"{mode}: status {done.status}: {(done.stderr.strip() or done.stdout.strip())[-250:]}")
    return done


def trouble(done, mode):
    return [f"{mode}: {text}" for text in trouble_of([Ledger(done.ledger)])] if done.ledger else [f"{mode}: no ledger was left"]


def perplexity():
    text = WORK / "random.txt"
    text.write_text(prompt(random.Random(5), 2 * CONTEXT * CHUNKS))
    numbers, seconds, problems = {}, {}, []
    for mode in MODES:
        done = one("perplexity", mode, "llama-perplexity", ["-f", text.resolve(), "-c", CONTEXT, "--chunks", CHUNKS, "-t", "4", *ARGUMENTS])
        both = done.stdout + done.stderr
        numbers[mode] = re.findall(r"\[\d+\]\d+\.\d+", both) + re.findall(r"Final estimate: PPL = .*", both)
        seconds[mode] = done.seconds
        if MODES[mode]:
            problems += trouble(done, mode)
    if len(numbers["native"]) < 2:
        problems.append(f"natively only {len(numbers['native'])} numbers were printed")
    if numbers["native"] != numbers["preloaded"]:
        problems.append("other numbers than natively")
    last = {mode: (found or ["nothing"])[-1] for mode, found in numbers.items()}
    row("today-perplexity", f"{last['native']}; {seconds['native']:.1f} s", f"{last['preloaded']}; {seconds['preloaded']:.1f} s", not problems)
    return verdict(GROUP, "perplexity", problems, f"{len(numbers['native'])} numbers, {last}")


def rows_of(text):
    """{(prompt, generated, batch): (tokens/s of the prompt, generating, in all)} of llama-batched-bench's table."""
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 10 and cells[0].isdigit():
            found[tuple(int(cell) for cell in cells[:3])] = tuple(float(cells[i]) for i in (5, 7, 9))
    return found


def bench():
    largest = max(int(batch) for batch in BATCHES.split(","))
    arguments = ["-c", largest * 256, "-b", "2048", "-ub", "512", "-npp", "128", "-ntg", "64", "-npl", BATCHES, *ARGUMENTS]
    tables, problems = {mode: [] for mode in MODES}, []
    for pair in range(PAIRS):
        for mode in MODES if pair % 2 == 0 else reversed(MODES):
            done = one("bench", f"{mode}-{pair}", "llama-batched-bench", arguments)
            tables[mode].append(rows_of(done.stdout))
            if MODES[mode]:
                problems += trouble(done, mode)
    rows = [sorted(table) for of in tables.values() for table in of]
    if not rows[0] or any(keys != rows[0] for keys in rows):
        problems.append(f"rows differ: {[len(keys) for keys in rows]}")
        return verdict(GROUP, "bench", problems)
    texts = {mode: [] for mode in MODES}
    for key in rows[0]:
        for mode in MODES:
            texts[mode].append(f"{key[2]}: {quartiles([table[key][1] for table in tables[mode]])[1]:.0f}")
    ratios = [b[key][1] / a[key][1] for a, b in zip(tables["native"], tables["preloaded"]) for key in rows[0]]
    whole = [b[key][2] / a[key][2] for a, b in zip(tables["native"], tables["preloaded"]) for key in rows[0]]
    middle = quartiles(whole)[1]
    if middle < LEAST:
        problems.append(f"ratio {middle:.3f} < {LEAST}")
    row("today-bench", f"generating, by batch: {', '.join(texts['native'])} tokens/s",
        f"{', '.join(texts['preloaded'])}; {quartiles_text(ratios, 3)} × generating, {quartiles_text(whole, 3)} × in all", not problems)
    return verdict(GROUP, "bench", sorted(set(problems)), f"{len(rows[0])} batch sizes, {PAIRS} pairs")


def post(server, path, body):
    return json.load(server.get(path, body))


def saved(mode, preload):
    """What one server answers before and after its state was saved, erased and restored."""
    folder = (WORK / f"{GROUP}-state" / mode).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    program = FOLDER / "llama-server"
    server = Server(f"{GROUP}-{mode}", preload, program=program, model=MODEL, more=("--slot-save-path", f"{folder}/"))
    text = prompt(random.Random(9), 300)

    def answer():
        """The prompt and its continuation, in slot 0 and with what the slot holds of them."""
        said = post(server, "/completion", {"prompt": text, "n_predict": 64, "ignore_eos": True, "cache_prompt": True,
                                            "temperature": 0, "seed": 1, "id_slot": 0})
        return said["content"]

    try:
        server.ready()
        first = answer()
        save = post(server, "/slots/0?action=save", {"filename": "state.bin"})
        post(server, "/slots/0?action=erase", {"unused": True})
        restore = post(server, "/slots/0?action=restore", {"filename": "state.bin"})
        second = answer()
        problems = trouble_of(ledgers_in(server.folder)) if preload else []
    finally:
        server.stop()
    digest = hashlib.sha256((folder / "state.bin").read_bytes()).hexdigest()
    return {"texts": [first, second], "saved": save.get("n_saved"), "written": save.get("n_written"),
            "restored": restore.get("n_restored"), "digest": digest}, problems


def state():
    problems, notes = [], []
    for program in STATE_TESTS:
        if (FOLDER / program).exists():
            for mode in MODES:
                done = one(program, mode, program, ["-n", "16"])
            problems += trouble(done, program)
            notes.append(f"{program} passes")
    if not (FOLDER / "llama-server").exists():
        if not notes:
            print(f"skip {GROUP}/state neither llama-server nor {' nor '.join(STATE_TESTS)} is in {FOLDER}", flush=True)
            return True
        row("today-state", "; ".join(notes), "the same" if not problems else "; ".join(problems)[:100], not problems)
        return verdict(GROUP, "state", problems, "; ".join(notes))
    native, _ = saved("native", False)
    again, _ = saved("again", False)
    preloaded, wrong = saved("preloaded", True)
    problems += wrong
    for name in ("texts", "saved", "written", "restored"):
        if native[name] != preloaded[name]:
            problems.append(f"{name}: {preloaded[name]}, natively {native[name]}"[:120])
    if not native["saved"]:
        problems.append("natively nothing was saved")
    bytes_told = "two native runs save other bytes"
    if native["digest"] == again["digest"]:
        bytes_told = "the same bytes"
        if preloaded["digest"] != native["digest"]:
            problems.append("the saved state has other bytes than natively")
    notes.append(f"{native['saved']} tokens, {native['written']} bytes saved and restored, {bytes_told}")
    row("today-state", "; ".join(notes), "the same" if not problems else "; ".join(problems)[:100], not problems)
    return verdict(GROUP, "state", problems, "; ".join(notes))


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    need(GROUP, "programs", "LLAMA_BIN", "LLAMA_MODEL")
    results = []
    for name in sys.argv[1:] or ["perplexity", "bench", "state"]:
        program = {"perplexity": "llama-perplexity", "bench": "llama-batched-bench"}.get(name)
        if program and not (FOLDER / program).exists():
            print(f"skip {GROUP}/{name} {FOLDER / program} is not there", flush=True)
            continue
        try:
            results.append({"perplexity": perplexity, "bench": bench, "state": state}[name]())
        except (RuntimeError, OSError, ValueError, KeyError) as error:
            results.append(verdict(GROUP, name, [f"{type(error).__name__}: {error}"[:300]]))
    sys.exit(0 if all(results) else 1)


main()
