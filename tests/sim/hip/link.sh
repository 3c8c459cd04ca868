#!/bin/sh
# Links the simulated HIP runtime as the real one is linked: its SONAME, its
# symbol versions (hip.map), and its own calls of exported names left to the
# loader, so that a preloaded library sees them.
#   tests/sim/hip/link.sh LIBAMDHIP64_A OUTPUT_SO
set -eu
map=$(cd "$(dirname "$0")" && pwd)/hip.map
# Streams may still run when a program closes the library: it stays.
${CC:-cc} -shared -o "$2" \
    -Wl,-soname,libamdhip64.so.6 -Wl,--version-script="$map" -Wl,-z,nodelete -Wl,--gc-sections \
    -Wl,--whole-archive "$1" -Wl,--no-whole-archive -lgcc_s -lpthread -ldl -lm -lc
