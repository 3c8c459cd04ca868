#!/usr/bin/env python3
"""Counts the lines of Rust that a build contains, by room and folder: without comments, blank lines and tests.

    tests/lines.py [REVISION]         the working tree without a revision

What a `#[cfg(test)]` stands before is a test, also if it is the `mod` line of another file. So is what stands in a folder
or file named `tests`, and `shim/models`, whose crate has tests alone."""
import re
import subprocess
import sys

ROOTS = ["shim", "inspector", "kernels", "demo"]
ONLY_TESTS = "shim/models/"
# A comment, or a literal in which what looks like one is none.
TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/|r(?P<hash>#*)".*?"(?P=hash)|"(?:\\.|[^"\\])*"|'(?:\\[^\n]{1,8}?|[^\\'\n])'""", re.S)
TEST_FILE = re.compile(r"#\[cfg\((?:all\()?test\b[^\]]*\]\s*mod (\w+);")
TEST = re.compile(r"#\[cfg\((?:all\()?test\b[^\]]*\]")


def bare(text):
    """The text with each comment gone and each literal as `0`, on as many lines as it had."""
    def of(found):
        kept = "\n" * found.group().count("\n")
        return kept if found.group().startswith("/") else "0" + kept.replace("\n", "\n0")
    return TOKEN.sub(of, text)


def without_tests(text):
    """The text without the items under `#[cfg(test)]`: each ends with its braces, or with a semicolon before any."""
    out, at = [], 0
    while found := TEST.search(text, at):
        out.append(text[at:found.start()])
        depth, at = 0, found.end()
        while at < len(text):
            depth += {"{": 1, "}": -1, "(": 1, ")": -1, "[": 1, "]": -1}.get(text[at], 0)
            at += 1
            if depth == 0 and text[at - 1] in ";},":
                break
    return "".join(out) + text[at:]


def lines(text):
    return sum(1 for line in without_tests(bare(text)).splitlines() if line.strip())


def git(*args):
    return subprocess.run(["git", *args], check=True, capture_output=True, text=True).stdout


def files(revision):
    """Path and text of each file of the product."""
    which = ["ls-tree", "-r", "--name-only", revision] if revision else ["ls-files", "-co", "--exclude-standard"]
    texts = {}
    for path in git(*which, *ROOTS).splitlines():
        if not path.endswith(".rs") or path.startswith(ONLY_TESTS) or "tests" in path.removesuffix(".rs").split("/"):
            continue
        if revision:
            texts[path] = git("show", f"{revision}:{path}")
        else:
            try:
                texts[path] = open(path, encoding="utf-8").read()
            except FileNotFoundError:
                pass
    tests = {file for path, text in texts.items() for file in test_files(path, text)}
    return {path: text for path, text in texts.items() if path not in tests}


def test_files(path, text):
    """Returns the files that a file declares as modules of tests."""
    folder, name = path.rsplit("/", 1)
    if name not in ("lib.rs", "main.rs", "mod.rs"):
        folder += "/" + name.removesuffix(".rs")
    return [f"{folder}/{module}.rs" for module in TEST_FILE.findall(text)]


def main():
    revision = sys.argv[1] if len(sys.argv) > 1 else None
    by = {}
    for path, text in files(revision).items():
        parts = path.split("/")
        room = "/".join(part for part in parts[:-1] if part != "src")
        if parts[-2] == "src":
            room += "/" + parts[-1].removesuffix(".rs")
        at = "/".join(room.split("/")[:3 if room.startswith("shim/wire") else 2])
        by[at] = by.get(at, 0) + lines(text)
    for room, count in sorted(by.items(), key=lambda pair: -pair[1]):
        print(f"{count:7,}  {room}")
    print(f"{sum(by.values()):7,}  in all")


if __name__ == "__main__":
    main()
