"""`python -m gpumem`: the program `gpumem`, whose `run` takes a script of Python; and `kernelspec`, for Jupyter."""

import os
import sys

from . import CLI


def run_words(words):
    """What `gpumem run` is given for `python -m gpumem run WORDS`.

    The first word that is no option begins a command line of Python: a script, -m MODULE or -c CODE. Options of
    `gpumem run` before it are written with `=`. Behind `--` stands a command of any kind.
    """
    for at, word in enumerate(words):
        if word == "--":
            return words
        if word in ("-", "-m", "-c") or not word.startswith("-"):
            return [*words[:at], "--", sys.executable, *words[at:]]
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
