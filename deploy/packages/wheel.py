"""Builds the wheel of gpumem: its two binaries, and a module of Python.

    python3 wheel.py --version 1.2.3 --arch x86_64 --binaries DIR --out DIR

DIR has libgpumem.so, gpumem and THIRD-PARTY-LICENSES, and may have what `gpumem selftest` runs. The same input gives the same bytes:
every file is dated by SOURCE_DATE_EPOCH. What a wheel is: https://packaging.python.org/specifications/binary-distribution-format
"""

import argparse
import base64
import hashlib
import os
import stat
import sys
import time
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# Not gpumem: PyPI has another project of that name, and an upgrade would bring that one.
NAME = "libgpumem"
LICENCES = ("LICENSE-APACHE", "LICENSE-MIT")
# Of the crates that the binaries are linked to.
THIRD_PARTY = "THIRD-PARTY-LICENSES"
SELFTEST = ("conformance", "differ")


def files(binaries, metadata, version, tag):
    """Each file of the wheel: its name, its bytes, and whether it can be executed."""
    module = HERE / "python" / "gpumem"
    for source in sorted(module.glob("*.py")):
        yield f"gpumem/{source.name}", source.read_bytes(), False
    yield "gpumem/bin/gpumem", (binaries / "gpumem").read_bytes(), True
    yield "gpumem/lib/libgpumem.so", (binaries / "libgpumem.so").read_bytes(), False
    for name in SELFTEST:
        if (binaries / name).is_file():
            yield f"gpumem/libexec/gpumem/gpumem-{name}", (binaries / name).read_bytes(), True
    described = (HERE / "python" / "METADATA").read_text(encoding="utf-8")
    about = (HERE / "python" / "README.md").read_text(encoding="utf-8")
    yield f"{metadata}/METADATA", f"{described.replace('@NAME@', NAME).replace('@VERSION@', version)}\n{about}".encode(), False
    wheel = f"Wheel-Version: 1.0\nGenerator: gpumem ({version})\nRoot-Is-Purelib: false\nTag: {tag}\n"
    yield f"{metadata}/WHEEL", wheel.encode(), False
    yield f"{metadata}/entry_points.txt", b"[console_scripts]\ngpumem = gpumem.__main__:cli\n", False
    for name in LICENCES:
        yield f"{metadata}/licenses/{name}", (ROOT / name).read_bytes(), False
    yield f"{metadata}/licenses/{THIRD_PARTY}", (binaries / THIRD_PARTY).read_bytes(), False


def entry(name, executable, date):
    info = zipfile.ZipInfo(name, date)
    info.create_system = 3
    info.external_attr = (stat.S_IFREG | (0o755 if executable else 0o644)) << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    return info


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--version", required=True)
    parser.add_argument("--arch", choices=("x86_64", "aarch64"), default="x86_64")
    parser.add_argument("--glibc", default="2.28", help="the oldest glibc that the binaries run on")
    parser.add_argument("--binaries", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--fast", action="store_true", help="larger, and made sooner: for tests")
    given = parser.parse_args()
    tag = f"py3-none-manylinux_{given.glibc.replace('.', '_')}_{given.arch}"
    name = f"{NAME}-{given.version}"
    metadata = f"{name}.dist-info"
    # A zip file knows no date before 1980.
    date = time.gmtime(max(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), 315532800))[:6]
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / f"{name}-{tag}.whl"
    records = []
    level = 1 if given.fast else 9
    with zipfile.ZipFile(path, "w") as archive:
        for name, data, executable in files(given.binaries, metadata, given.version, tag):
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            records.append(f"{name},sha256={digest},{len(data)}")
            archive.writestr(entry(name, executable, date), data, compresslevel=level)
        records.append(f"{metadata}/RECORD,,")
        archive.writestr(entry(f"{metadata}/RECORD", False, date), "\n".join(records) + "\n")
    print(path)


if __name__ == "__main__":
    sys.exit(main())
