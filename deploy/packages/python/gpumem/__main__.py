"""`python -m gpumem`: the program `gpumem`, whose `run` takes a script of Python; and `kernelspec`, for Jupyter."""

import os
import re
import subprocess
import sys

from . import CLI

def options():
    """The options of `gpumem run` that take a value.

    The program's own help says it: no other list can be behind.
    """
    try:
        help_text = subprocess.run([CLI, "run", "--help"], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, check=False).stdout
    except OSError:
        # Who becomes the program hears why.
        return set()
    lines = re.findall(r"^ +(?:(-\w), )?(--[\w-]+) <", help_text.decode("utf-8", "replace"), re.MULTILINE)
    return {name for line in lines for name in line if name}


def run_words(words):
    """What `gpumem run` is given for `python -m gpumem run WORDS`.

    The first word that is no option, nor the value of one, begins a command line of Python: a script, -m MODULE or
    -c CODE. Behind `--` stands a command of any kind.
    """
    known, at = None, 0
    while at < len(words):
        word = words[at]
        if word == "--":
            return words
        if word in ("-", "-m", "-c") or not word.startswith("-"):
            return [*words[:at], "--", sys.executable, *words[at:]]
        at += 1
        if "=" in word or at == len(words):
            continue
        known = options() if known is None else known
        if word in known and not words[at].startswith("-"):
            at += 1
    return words


def become(words):
    """Becomes the program `gpumem`."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execv(CLI, [CLI, *words])
    except OSError as error:
        sys.exit(f"gpumem: cannot run {CLI}: {error.strerror}")


def cli():
    """The command `gpumem`: just the program."""
    become(sys.argv[1:])


def main():
    words = sys.argv[1:]
    if words[:1] == ["kernelspec"]:
        from . import _kernelspec

        sys.exit(_kernelspec.main(words[1:]))
    if words[:1] == ["run"]:
        words = ["run", *run_words(words[1:])]
    become(words)


if __name__ == "__main__":
    main()
