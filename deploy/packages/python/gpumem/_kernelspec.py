"""`python -m gpumem kernelspec install`: a kernel for Jupyter that runs this Python under gpumem.

A notebook cannot load gpumem later: its library has to be there before any other. So the kernel is started with it.
"""

import argparse
import json
import os
import sys

KERNEL = ["-m", "gpumem", "run", "-m", "ipykernel_launcher", "-f", "{connection_file}"]


def user_data():
    """Where Jupyter looks for kernels of this user."""
    named = os.environ.get("JUPYTER_DATA_DIR")
    data = os.environ.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local", "share")
    return named or os.path.join(data, "jupyter")


def main(words):
    parser = argparse.ArgumentParser(prog="python -m gpumem kernelspec", description=__doc__)
    install = parser.add_subparsers(required=True, metavar="install").add_parser("install", help="write the kernel")
    install.add_argument("--name", default="gpumem", help="the name of the kernel (gpumem)")
    install.add_argument("--display-name", metavar="TEXT", help="what Jupyter shows: Python 3.x (gpumem)")
    place = install.add_mutually_exclusive_group()
    place.add_argument("--user", action="store_true", help="for this user (where nothing else is said)")
    place.add_argument("--sys-prefix", action="store_true", help="into this environment of Python")
    place.add_argument("--prefix", help="into PREFIX/share/jupyter/kernels")
    given = parser.parse_args(words)
    if not given.name.replace("-", "").replace("_", "").replace(".", "").isalnum() or not given.name.isascii():
        parser.error(f"--name {given.name!r}: letters, digits, -, _ and . are allowed")
    prefix = sys.prefix if given.sys_prefix else given.prefix
    data = os.path.join(prefix, "share", "jupyter") if prefix else user_data()
    folder = os.path.join(data, "kernels", given.name.lower())
    shown = given.display_name or "Python {}.{} (gpumem)".format(*sys.version_info)
    spec = {
        "argv": [sys.executable, *KERNEL],
        "display_name": shown,
        "language": "python",
        "metadata": {"debugger": True},
    }
    try:
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "kernel.json"), "w", encoding="utf-8") as file:
            json.dump(spec, file, indent=1)
            file.write("\n")
    except OSError as error:
        print(f"gpumem: cannot write {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    print(f"kernel {given.name.lower()!r} is in {folder}; Jupyter shows it as {shown!r}")
    return 0
