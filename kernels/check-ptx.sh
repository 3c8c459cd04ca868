#!/bin/sh
# Fails when gpumem.ptx does not belong to gpumem.cu. The recorded hash is
# checked everywhere; where the clang that built it is at hand (the same major
# version: another one writes other code), the file is built again and compared.
set -eu
cd "$(dirname "$0")"
want=$(sha256sum <gpumem.cu | cut -d' ' -f1)
have=$(sed -n '1s|^// source-sha256: ||p' gpumem.ptx)
if [ "$want" != "$have" ]; then
    echo "check-ptx: gpumem.ptx was built from another gpumem.cu; run kernels/build-ptx.sh" >&2
    exit 1
fi
clang=${CLANG:-clang}
built_by=$(sed -n '2s|^// clang-major: ||p' gpumem.ptx)
here=$(echo __clang_major__ | "$clang" -E -P -x c - 2>/dev/null || echo none)
if [ "$here" != "$built_by" ]; then
    echo "check-ptx: source hash matches; not rebuilt (built by clang $built_by, here: $here)"
    exit 0
fi
tmp=$(mktemp)
trap 'rm -f "$tmp"' EXIT
./build-ptx.sh -o "$tmp"
if ! cmp -s "$tmp" gpumem.ptx; then
    echo "check-ptx: building gpumem.cu again gives another gpumem.ptx; run kernels/build-ptx.sh" >&2
    diff "$tmp" gpumem.ptx | head -20 >&2
    exit 1
fi
echo "check-ptx: source hash matches and clang $here gives the same file"
