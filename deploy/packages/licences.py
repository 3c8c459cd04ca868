"""Prints the licences of all crates that are linked into a release: what binaries have to be handed on with.

    python3 licences.py --target x86_64-unknown-linux-gnu gpumem-shim gpumem-inspector

Equal texts are printed once, behind the names of the crates that are under them.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

NAMES = ("license", "licence", "copying", "notice", "copyright", "unlicense")


def linked(metadata, roots):
    """The packages that the roots are linked to: not those of tests and build scripts, nor macros."""
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    todo = [id for id, package in packages.items() if package["name"] in roots]
    seen = set(todo)
    while todo:
        for dep in nodes[todo.pop()]["deps"]:
            macro = any("proc-macro" in target["kind"] for target in packages[dep["pkg"]]["targets"])
            normal = any(kind["kind"] is None for kind in dep["dep_kinds"])
            if normal and not macro and dep["pkg"] not in seen:
                seen.add(dep["pkg"])
                todo.append(dep["pkg"])
    # Those of this workspace have the licences of gpumem itself.
    return sorted((packages[id] for id in seen if packages[id]["source"]), key=lambda it: (it["name"], it["version"]))


def texts(package):
    folder = Path(package["manifest_path"]).parent
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.name.lower().startswith(NAMES):
            yield path.read_text(encoding="utf-8", errors="replace").strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", required=True)
    parser.add_argument("crates", nargs="+")
    given = parser.parse_args()
    cargo = [os.environ.get("CARGO", "cargo"), "metadata", "--locked", "--format-version", "1"]
    answer = subprocess.run([*cargo, "--filter-platform", given.target], stdout=subprocess.PIPE, check=True).stdout
    packages = linked(json.loads(answer), given.crates)
    by_text = {}
    print("gpumem is linked to Rust's standard library (MIT OR Apache-2.0, https://www.rust-lang.org),")
    print(f"and to these {len(packages)} crates, with the licences that they name:\n")
    for package in packages:
        name = f"{package['name']} {package['version']}"
        print(f"  {name}: {package['license'] or 'see its text'}")
        for text in texts(package):
            by_text.setdefault(text, []).append(name)
    for text, names in by_text.items():
        print(f"\n{'-' * 100}\n{', '.join(names)}\n\n{text}")


if __name__ == "__main__":
    sys.exit(main())
