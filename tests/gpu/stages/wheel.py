"""The wheel, as a user has it: installed by pip into a virtual environment beside PyTorch, and used there.

    wheel.py [WHEEL]            default: the one in dist/, or one that is made of what KIT holds

Checks, a line each: pip installs it without a registry; the program runs by itself, and the module says nothing; the same
program under `python -m gpumem run` gives the same losses, bit by bit; its tags, its mark and its snapshot are there; the
command `gpumem` of the environment finds it; pip takes all of it away again. WHEEL_PROGRAM=file: another program.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig

from harness import HERE, SO, WORK, verdict

GROUP = "wheel"
ROOT = HERE.parent.parent
PROGRAM = pathlib.Path(os.environ.get("WHEEL_PROGRAM", HERE / "programs/py" / "wheel_torch.py"))
TAGS = ("weights", "batch")

bad = []


def check(name, ok, detail=""):
    """A line for what was seen."""
    detail = str(detail).strip()
    if not verdict(GROUP, name, [] if ok else [detail[-300:] or "no"], detail[:200] if ok else ""):
        bad.append(name)
    return ok


def ran(words, **more):
    """A command of a user who has set nothing of gpumem's."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GPUMEM_") and name not in ("LD_PRELOAD", "PYTHONPATH")}
    env.update(more)
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=300, env=env, cwd=WORK)


def wheel():
    """The wheel: the one that is named, the release's, or one of the library that the other stages run."""
    if len(sys.argv) > 1:
        return pathlib.Path(sys.argv[1]).resolve()
    for made in sorted((ROOT / "dist").glob("libgpumem-*-manylinux_2_28_x86_64.whl")):
        return made
    # What it needs of the C library is not looked at: it is for this machine alone.
    kit, version = WORK / "kit", "0.0.0"
    for line in (ROOT / "Cargo.toml").read_text().splitlines():
        if line.startswith("version = "):
            version = line.split('"')[1]
            break
    kit.mkdir(parents=True, exist_ok=True)
    for name in ("libgpumem.so", "gpumem"):
        shutil.copy(pathlib.Path(SO).parent / name, kit / name)
    (kit / "THIRD-PARTY-LICENSES").write_text("not of a release\n")
    made = ran([sys.executable, ROOT / "deploy/packages/wheel.py", "--version", version, "--binaries", kit, "--out", WORK / "wheel", "--fast"])
    return pathlib.Path(made.stdout.strip().splitlines()[-1])


def environment_beside():
    """A virtual environment that sees the packages of this interpreter's, PyTorch among them."""
    venv = WORK / "venv"
    made = ran([sys.executable, "-m", "venv", "--without-pip", venv])
    python = venv / "bin" / "python"
    if made.returncode == 0:
        site = ran([python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"]).stdout.strip()
        ours = {sysconfig.get_paths()[name] for name in ("purelib", "platlib")}
        lines = "".join(f"import site; site.addsitedir({path!r})\n" for path in sorted(ours))
        pathlib.Path(site, "beside.pth").write_text(lines)
    check("environment", made.returncode == 0, made.stderr or f"Python {sys.version.split()[0]}")
    return venv, python


def told(done):
    """The program's line of JSON; None where there is none."""
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if done.returncode == 0 and lines else None


def look_at(venv, snapshot, told_it):
    """What the environment's own `gpumem` says of the run."""
    gpumem = venv / "bin" / "gpumem"
    answer = ran([gpumem, "--json", "allocs", "--by", "tag", snapshot])
    rows = json.loads(answer.stdout)["rows"] if answer.returncode == 0 else []
    held = {row["key"]: row["bytes"] >> 20 for row in rows}
    check("tags", all(held.get(tag, 0) > 0 for tag in TAGS), f"MiB live: {held}" if held else answer.stderr)
    events = ran([gpumem, "--json", "events", "--kind", "mark", snapshot])
    check("mark", '"half"' in events.stdout, "half" if events.returncode == 0 else events.stderr)
    found = ran([gpumem, "--dir", WORK / "ledgers", "ps"])
    check("command", found.returncode == 0 and str(told_it["pid"]) in found.stdout, found.stdout.splitlines()[-1:] or found.stderr)


def main():
    shutil.rmtree(WORK / "venv", ignore_errors=True)
    venv, python = environment_beside()
    made = wheel()
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    done = ran([*pip, "install", "--no-deps", "--no-index", made])
    if not check("pip-install", done.returncode == 0, done.stderr if done.returncode else f"{made.name}, {made.stat().st_size >> 20} MiB"):
        return 1
    (WORK / "ledgers").mkdir(mode=0o700, exist_ok=True)
    where = {"GPUMEM_DIR": str(WORK / "ledgers")}
    alone = ran([python, PROGRAM, WORK / "alone.gpumem"])
    native = told(alone)
    silent = native and not native["loaded"] and not native["snapshot"] and native["stats"] is None
    check("by-itself", bool(silent), native["version"] if native else alone.stderr or alone.stdout)
    under = ran([python, "-m", "gpumem", "run", PROGRAM, WORK / "saved.gpumem"], **where)
    it = told(under)
    if check("run", bool(it and it["loaded"] and it["snapshot"] and it["stats"]), it["module"] if it else under.stderr or under.stdout):
        same = native is not None and it["losses"] == native["losses"]
        check("same-losses", same, f"{len(it['losses'])} steps, the last loss {float.fromhex(it['losses'][-1])}")
        look_at(venv, WORK / "saved.gpumem", it)
    done = ran([*pip, "uninstall", "-y", "libgpumem"])
    left = [path.name for path in venv.rglob("*gpumem*")]
    check("pip-uninstall", done.returncode == 0 and not left, left or "nothing is left")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
