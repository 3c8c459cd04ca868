#!/bin/sh
# Fails when a NAME.ptx does not belong to its NAME.cu. The recorded hash is
# checked everywhere; where the clang that built it is at hand (the same major
# version: another one writes other code), the files are built again and compared.
set -eu
cd "$(dirname "$0")"
for source in *.cu; do
    ptx=${source%.cu}.ptx
    want=$(sha256sum <"$source" | cut -d' ' -f1)
    have=$(sed -n '1s|^// source-sha256: ||p' "$ptx")
    if [ "$want" != "$have" ]; then
        echo "check-ptx: $ptx was built from another $source; run kernels/build-ptx.sh" >&2
        exit 1
    fi
done
clang=${CLANG:-clang}
built_by=$(sed -n '2s|^// clang-major: ||p' ./*.ptx | sort -u | tr '\n' ' ')
here="$(echo __clang_major__ | "$clang" -E -P -x c - 2>/dev/null || echo none) "
if [ "$here" != "$built_by" ]; then
    echo "check-ptx: source hashes match; not rebuilt (built by clang ${built_by% }, here: ${here% })"
    exit 0
fi
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
./build-ptx.sh -o "$tmp"
for source in *.cu; do
    ptx=${source%.cu}.ptx
    if ! cmp -s "$tmp/$ptx" "$ptx"; then
        echo "check-ptx: building $source again gives another $ptx; run kernels/build-ptx.sh" >&2
        diff "$tmp/$ptx" "$ptx" | head -20 >&2
        exit 1
    fi
done
echo "check-ptx: source hashes match and clang ${here% } gives the same files"
