#!/usr/bin/env python3
"""Writes src/known_hip.txt: what headers and libraries of ROCm's releases say of the HIP runtime.

    python3 shim/abi/hip_headers.py INCLUDE:LIBRARY...

Each INCLUDE is the folder that holds hip/hip_runtime_api.h of one release, each LIBRARY that release's libamdhip64.so.N:
Debian has both, in libamdhip64-dev and libamdhip64-N, which need not be installed (`dpkg -x`). Only names and numbers
are written. Needs a C compiler and nm. With --check nothing is written: the exit code is 1, and the lines that differ
are shown, where these releases say something else than the file says of them.

Lines of the file, each with the releases that it holds for:
    release 5.2 symbols 409          a release, and how many symbols its library exports
    fn hipMalloc hip_4.2 8,8 : 5.2   a function: the version that its symbol has, or -, and the sizes of its arguments,
                                     or - where no header declares it
    size hipMemsetParams 48 : 5.2    a structure, bytes
    field hipMemsetParams.dst 0 8 : 5.2
    value hipErrorNotSupported 801 : 5.2
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

OUT = Path(__file__).parent / "src" / "known_hip.txt"
INCLUDES = "#define __HIP_PLATFORM_AMD__ 1\n#define __HIP_PLATFORM_HCC__ 1\n#include <stdbool.h>\n#include <hip/hip_runtime_api.h>\n"

# What the shim, the simulator or the conformance suite declare themselves.
STRUCTS = """hipExtent hipPitchedPtr hipChannelFormatDesc hipIpcMemHandle_t HIP_ARRAY_DESCRIPTOR HIP_ARRAY3D_DESCRIPTOR
    HIP_MEMCPY3D hipMemcpy3DParms hipMemsetParams hipKernelNodeParams hipHostNodeParams hipGraphInstantiateParams
    hipMemAllocNodeParams hipMemcpyNodeParams hipGraphNodeParams hipBatchMemOpNodeParams hipStreamBatchMemOpParams
    hipPointerAttribute_t hipMemLocation hipMemAccessDesc hipMemPoolProps hipMemAllocationProp hipUUID
    hipExternalMemoryHandleDesc hipExternalMemoryBufferDesc dim3""".split()
# Beginnings of the names of values that are used.
VALUES = re.compile(
    r"hipSuccess|hipError[A-Z]|hipGraphNodeType|hipStreamCapture|hipMemcpy[A-Z]\w*To|hipMemoryType|hipGraphExecUpdate"
    r"|hipDeviceAttribute(ConcurrentManagedAccess|Integrated|ManagedMemory)$|hipMemAllocationType|hipMemHandleType|hipMemLocationType"
    r"|hipGraphInstantiate|HIP_AD_FORMAT_|hipChannelFormatKind|hipMemAccessFlags|HIP_GET_PROC_ADDRESS|hipStreamMemOp"
    r"|hipDriverEntryPoint|hipStreamWrite|hipStreamWait"
)
MACROS = """hipEventDisableTiming hipStreamNonBlocking hipHostMallocMapped hipHostMallocPortable hipMemAttachGlobal
    hipStreamPerThread hipStreamLegacy hipEnablePerThreadDefaultStream hipIpcMemLazyEnablePeerAccess""".split()


def run(*command, text=None):
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


def pieces(text):
    """Parts between commas that stand in no bracket."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def declarator(part):
    """The name that a declaration gives, without what follows it."""
    found = re.search(r"\(\s*\*\s*(\w+)\s*\)|(\w+)\s*(?:\[[^\]]*\]\s*)*$", part)
    return next(group for group in found.groups() if group)


def functions(source):
    """Each function that is declared, with its parameters."""
    found = {}
    for name, arguments in re.findall(r"\b[\w*]+[\s*]+((?:__)?hip[A-Z]\w*)\s*\(((?:[^(){}]|\([^()]*\))*)\)\s*;", source):
        parts = [] if arguments.strip() in ("", "void") else pieces(arguments)
        found.setdefault(name, parts)
    return found


def program(source):
    """A program that prints sizes, places and numbers of what the preprocessed headers declare."""
    types, prints = [], []
    for name, parts in sorted(functions(source).items()):
        body = "".join(f"struct {{ {re.sub(r'=.*', '', part)}; }} m{at};" for at, part in enumerate(parts))
        types.append(f"struct of_{name} {{ {body} int end; }};")
        sizes = ", ".join(f"sizeof ((struct of_{name} *)0)->m{at}" for at in range(len(parts)))
        form = ",".join(["%zu"] * len(parts)) or "none"
        prints.append(f'printf("fn {name} {form}\\n"{", " + sizes if sizes else ""});')
    for name in STRUCTS:
        whole = re.search(r"struct\s*(\w*)\s*\{((?:[^{}]|\{[^{}]*\})*)\}\s*%s\s*;" % name, source)
        bare = re.search(r"struct\s+%s\s*\{((?:[^{}]|\{[^{}]*\})*)\}\s*;" % name, source)
        body = whole.group(2) if whole else bare.group(1) if bare else None
        if body is None and not re.search(r"\}\s*%s\s*;|\b%s\s*;" % (name, name), source):
            continue
        of = f"struct {name}" if not whole and bare else name
        prints.append(f'printf("size {name} %zu\\n", sizeof({of}));')
        for line in (body or "").split(";") if "{" not in (body or "") else []:
            parts = pieces(line)
            for part in parts:
                field = declarator(part)
                at = f"({of} *)0"
                prints.append(f'printf("field {name}.{field} %zu %zu\\n", (size_t)&({at})->{field}, sizeof ({at})->{field});')
    for body in re.findall(r"enum\s*\w*\s*\{([^{}]*)\}", source):
        for part in pieces(body):
            name = part.split("=")[0].strip()
            if VALUES.match(name):
                prints.append(f'printf("value {name} %lld\\n", (long long){name});')
    macros = [f'#ifdef {name}\nprintf("value {name} %lld\\n", (long long)(size_t)({name}));\n#endif' for name in MACROS]
    start = INCLUDES + "#include <stdio.h>\n" + "\n".join(types)
    return start + "\nint main(void) {\n" + "\n".join(prints + macros) + "\n}\n"


def release(include, library):
    """Version of a release; its lines, each without the releases."""
    version = (Path(include) / "hip" / "hip_version.h").read_text()
    number = ".".join(re.search(r"#define HIP_VERSION_%s\s+(\d+)" % part, version).group(1) for part in ("MAJOR", "MINOR"))
    compiler = os.environ.get("CC", "cc")
    with tempfile.TemporaryDirectory() as folder:
        source = run(compiler, "-E", "-P", "-xc", f"-I{include}", "-", text=INCLUDES)
        path = Path(folder) / "said"
        run(compiler, "-xc", "-w", f"-I{include}", "-o", path, "-", text=program(source))
        lines = run(path).splitlines()
    exported = dict(re.findall(r"^\S+ \w (\w+)@@?(\w[\w.]*)$", run("nm", "-D", "--defined-only", library), re.M))
    declared = dict(line.split()[1:] for line in lines if line.startswith("fn "))
    rows = [line for line in lines if not line.startswith("fn ")]
    names = {name for name in {**declared, **exported} if re.match(r"(__)?hip[A-Z]", name)}
    rows += [f"fn {name} {exported.get(name, '-')} {declared.get(name, '-')}" for name in names]
    return number, f"release {number} symbols {len(exported)}", sorted(set(rows))


def table(pairs):
    """The lines of known_hip.txt."""
    releases = sorted(release(*pair.rsplit(":", 1)) for pair in pairs)
    rows = {}
    for number, _, lines in releases:
        for line in lines:
            rows.setdefault(line, []).append(number)
    order = {"fn": 0, "size": 1, "field": 2, "value": 3}
    sort = lambda line: (order[line.split()[0]], line)
    return [head for _, head, _ in releases] + [f"{line} : {' '.join(rows[line])}" for line in sorted(rows, key=sort)]


def of_release(lines, number):
    """What a table says of one release."""
    said = set()
    for line in lines:
        what, _, releases = line.partition(" : ")
        if number in releases.split() or what.startswith(f"release {number} "):
            said.add(what)
    return said


def main(arguments):
    check = "--check" in arguments
    pairs = [argument for argument in arguments if argument != "--check"]
    if not pairs:
        sys.exit(__doc__)
    made = table(pairs)
    if not check:
        OUT.write_text("\n".join(made) + "\n")
        return
    known, failed = OUT.read_text().splitlines(), 0
    for number in [line.split()[1] for line in made if line.startswith("release ")]:
        before, now = of_release(known, number), of_release(made, number)
        for sign, lines in (("-", before - now), ("+", now - before)):
            for line in sorted(lines):
                print(f"{number} {sign} {line}")
        failed += before != now
        print(f"hip_headers: {number}: {'differs' if before != now else f'{len(now)} lines as the file has them'}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
