#!/bin/sh
# Builds each kernels/NAME.ptx from kernels/NAME.cu with clang alone; `-o DIRECTORY`
# writes elsewhere. The first two lines record what a file was built from and by.
set -eu
cd "$(dirname "$0")"
out=.
[ "${1-}" = "-o" ] && out=$2
clang=${CLANG:-clang}
for source in *.cu; do
    # sm_75 is the oldest architecture that CUDA 13 still takes; PTX runs on newer ones.
    body=$("$clang" -x cuda --cuda-device-only --cuda-gpu-arch=sm_75 -nocudainc -nocudalib \
        -Wno-unknown-cuda-version -S -O2 -o - "$source")
    {
        echo "// source-sha256: $(sha256sum <"$source" | cut -d' ' -f1)"
        echo "// clang-major: $(echo __clang_major__ | "$clang" -E -P -x c -)"
        echo "$body"
    } >"$out/${source%.cu}.ptx.tmp"
    mv "$out/${source%.cu}.ptx.tmp" "$out/${source%.cu}.ptx"
done
