#!/bin/sh
# Counts instructions, accesses to data and misses of the first caches, of calls through one or several builds of the
# shim and of the same calls past it, against a driver that does nothing. A count does not scatter as a time does: it
# tells whether a change of the source changed what a call costs.
#
#   tests/instructions.sh [LIBGPUMEM.SO...]      (target/release/libgpumem.so)
#
# Each figure is the difference of two runs of tests/gpu/programs/cost.c under valgrind's cachegrind, one of 301 blocks of 100 calls
# and one of 101, for one call of each way: what is done once is in neither. Needs valgrind and a C compiler.
set -eu
cd "$(dirname "$0")/.."
command -v valgrind >/dev/null || { echo "instructions: valgrind is missing" >&2; exit 2; }
[ $# -gt 0 ] || set -- target/release/libgpumem.so
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/null" "$work/ledgers"
${CC:-cc} -O2 -fPIC -shared -Wl,-soname,libcuda.so.1 tests/gpu/programs/nullcuda.c -o "$work/null/libcuda.so.1"
${CC:-cc} -std=gnu11 -O2 -fno-omit-frame-pointer tests/gpu/programs/cost.c -o "$work/cost" -ldl

counted() { # shim, blocks, what...
    shim=$1 blocks=$2
    shift 2
    COST_BLOCKS=$blocks COST_PER_BLOCK=100 LD_LIBRARY_PATH=$work/null LD_PRELOAD=$shim GPUMEM_DIR=$work/ledgers \
        valgrind --tool=cachegrind --cache-sim=yes --cachegrind-out-file=/dev/null "$work/cost" "$@" 2>&1 | tr -d , |
        awk '/I +refs/ {i = $NF} /D +refs/ {d = $4} /I1 +misses/ {a = $NF} /D1 +misses/ {b = $4} END {print i, d, a, b}'
}
for shim; do
    [ -f "$shim" ] || { echo "instructions: $shim is not there" >&2; exit 2; }
    case $shim in /*) ;; *) shim=$PWD/$shim ;; esac
    echo "$shim"
    for what in "pairs 1" "pairs 32" "graphs 1"; do
        # shellcheck disable=SC2086
        few=$(counted "$shim" 101 $what) many=$(counted "$shim" 301 $what)
        echo "$few $many" | awk -v what="$what" '{
            printf "  %-9s %7.0f instructions, %6.0f accesses to data, %6.2f and %5.2f misses (code, data)\n",
                what, ($5 - $1) / 20000, ($6 - $2) / 20000, ($7 - $3) / 20000, ($8 - $4) / 20000}'
    done
done
