#!/usr/bin/env python3
"""Writes src/known.rs: what the headers of CUDA's releases say of the driver's functions and numbers.

    python3 shim/abi/headers.py DIRECTORY...

Each DIRECTORY holds cuda.h, the headers cudaGL.h and the like, and the cuda*Typedefs.h of one release, as the wheel nvidia-cuda-runtime (for CUDA 12
nvidia-cuda-runtime-cu12) from PyPI carries them under include/. Give all releases at once, 12.4 and later. Only names,
numbers and the release in which each appeared are written. With --check nothing is written: the exit code is 1 where
the file is another.
"""

import re
import sys
from pathlib import Path

OUT = Path(__file__).parent / "src" / "known.rs"

# What is taken of cuda.h: constant, its documentation, the enumeration, what is left out of its names.
LISTS = [
    ("NODE_KINDS", "Kinds of nodes.", "CUgraphNodeType_enum", "CU_GRAPH_NODE_TYPE_"),
    ("LAUNCH_ATTRIBUTES", "Attributes of launches, kernel nodes and streams.", "CUlaunchAttributeID_enum", "CU_LAUNCH_ATTRIBUTE_"),
    ("FUNCTION_ATTRIBUTES", "Attributes of functions.", "CUfunction_attribute_enum", "CU_FUNC_ATTRIBUTE_"),
    ("POINTER_ATTRIBUTES", "Attributes of pointers.", "CUpointer_attribute_enum", "CU_POINTER_ATTRIBUTE_"),
    ("INSTANTIATE_FLAGS", "Flags of instantiate.", "CUgraphInstantiate_flags_enum", "CUDA_GRAPH_INSTANTIATE_FLAG_"),
    ("EDGE_TYPES", "Types of edges.", "CUgraphDependencyType_enum", "CU_GRAPH_DEPENDENCY_TYPE_"),
]
PORTS = ("EDGE_PORTS", "Ports of a kernel node that edges leave by.", "CU_GRAPH_KERNEL_NODE_PORT_")


def bare(text):
    """A header without its comments."""
    return re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.S)


def enumeration(text, name, prefix):
    """Names and numbers of an enumeration."""
    found = re.search(r"enum\s+%s\s*\{(.*?)\}" % name, text, re.S)
    body = found.group(1) if found else ""
    rows = re.findall(r"\b%s(\w+)\s*=\s*(0x[0-9a-fA-F]+|\d+)" % prefix, body)
    return {row: int(number, 0) for row, number in rows}


def release(directory):
    """Version, functions with the versions of their forms, exported names, and lists of one release."""
    text = bare((directory / "cuda.h").read_text(errors="replace"))
    version = int(re.search(r"#\s*define\s+CUDA_VERSION\s+(\d+)", text).group(1))
    functions, forms = {}, {}
    for header in sorted(directory.glob("cuda*Typedefs.h")):
        for base, since in re.findall(r"\bPFN_(cu[A-Z]\w*?)_v(\d+)(?:_pt[ds][sz])?\)", bare(header.read_text(errors="replace"))):
            functions.setdefault(base, set()).add(int(since))
    # `_v2` and the like count the forms that are exported.
    for header in sorted(directory.glob("cuda*.h")):
        for base, form in re.findall(r"\b(cu[A-Z]\w*?)_v(\d+)(?:_pt[ds][sz])?\b", bare(header.read_text(errors="replace"))):
            if base in functions and int(form) < 100:
                forms[base] = max(forms.get(base, 1), int(form))
    lists = {const: enumeration(text, enum, prefix) for const, _, enum, prefix in LISTS}
    ports = re.findall(r"#\s*define\s+%s(\w+)\s+(\d+)" % PORTS[2], text)
    lists[PORTS[0]] = {name: int(number) for name, number in ports}
    return version, functions, forms, lists


def table(directories):
    """The text of known.rs."""
    releases = sorted((release(Path(directory)) for directory in directories), key=lambda one: one[0])
    functions, forms, lists = {}, {}, {}
    for version, ours, numbers, of_release in releases:
        for base, since in ours.items():
            functions.setdefault(base, set()).update(since)
        for base, number in numbers.items():
            forms[base] = max(forms.get(base, 1), number)
        for const, rows in of_release.items():
            for name, number in rows.items():
                lists.setdefault(const, {}).setdefault((number, name), version)
    missing = [row[0] for row in LISTS + [PORTS] if row[0] not in lists]
    if missing:
        sys.exit(f"these headers have nothing of {', '.join(missing)}")
    versions = [one[0] for one in releases]
    out = [
        "//! What is known of the CUDA driver: made by `headers.py` from the headers of its releases, not by hand.",
        "",
        "/// The releases whose headers were read, as `CUDA_VERSION` says it.",
        f"pub const RELEASES: &[u32] = &{versions};",
        "",
        "/// Functions by the name that `cuGetProcAddress` takes: the versions from which it gives another form, where",
        "/// the headers say so, and the number of the newest form that is exported (`_v2`: 2).",
        "#[rustfmt::skip]",
        "pub const FUNCTIONS: &[(&str, &[u32], u32)] = &[",
    ]
    for base in sorted(functions):
        out.append(f'    ("{base}", &{sorted(functions[base])}, {forms.get(base, 1)}),')
    out.append("];")
    for const, doc in [row[:2] for row in LISTS] + [PORTS[:2]]:
        out += ["", f"/// {doc} Name, number, the first of [`RELEASES`] that has it.", "#[rustfmt::skip]"]
        out.append(f"pub const {const}: &[(&str, u32, u32)] = &[")
        out += [f'    ("{name}", {number}, {since}),' for (number, name), since in sorted(lists[const].items())]
        out.append("];")
    return "\n".join(out) + "\n"


def main(arguments):
    check = "--check" in arguments
    directories = [argument for argument in arguments if argument != "--check"]
    if not directories:
        sys.exit(__doc__)
    made = table(directories)
    if check:
        sys.exit(0 if OUT.read_text() == made else f"{OUT} is not what these headers say")
    OUT.write_text(made)


if __name__ == "__main__":
    main(sys.argv[1:])
