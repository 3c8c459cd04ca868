#!/bin/sh
# Builds kernels/gpumem.ptx from kernels/gpumem.cu with clang alone; `-o FILE`
# writes elsewhere. The first two lines record what it was built from and by.
set -eu
cd "$(dirname "$0")"
out=gpumem.ptx
[ "${1-}" = "-o" ] && out=$2
clang=${CLANG:-clang}
# sm_75 is the oldest architecture that CUDA 13 still takes; PTX runs on newer ones.
body=$("$clang" -x cuda --cuda-device-only --cuda-gpu-arch=sm_75 -nocudainc -nocudalib \
    -Wno-unknown-cuda-version -S -O2 -o - gpumem.cu)
{
    echo "// source-sha256: $(sha256sum <gpumem.cu | cut -d' ' -f1)"
    echo "// clang-major: $(echo __clang_major__ | "$clang" -E -P -x c -)"
    echo "$body"
} >"$out.tmp"
mv "$out.tmp" "$out"
