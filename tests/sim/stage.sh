#!/bin/sh
# Puts the simulated libraries where programs find them by their real names.
#   tests/sim/stage.sh TARGET_DIR STAGE_DIR
# TARGET_DIR is where cargo left them, e.g. target/debug. Programs then run
# with LD_LIBRARY_PATH=STAGE_DIR and link with -LSTAGE_DIR -lcudart -lcuda.
set -eu
from=$1
to=$2
mkdir -p "$to"
put() { # file, soname, linker name
    [ -e "$from/$1" ] || return 0
    cp -f "$from/$1" "$to/$2.new"
    mv -f "$to/$2.new" "$to/$2"
    ln -sf "$2" "$to/$3"
}
put libcuda.so libcuda.so.1 libcuda.so
put libcudart13.so libcudart.so.13 libcudart.so
put libcudart12.so libcudart.so.12 libcudart12.so
put libcudart11.so libcudart.so.11.0 libcudart11.so
[ -e "$to/libcudart.so" ] || ln -sf libcudart.so.12 "$to/libcudart.so"
# The HIP runtime comes as an archive: symbol versions need a linker script.
if [ -e "$from/libamdhip64.a" ]; then
    "$(dirname "$0")/hip/link.sh" "$from/libamdhip64.a" "$to/libamdhip64.so.6.new"
    mv -f "$to/libamdhip64.so.6.new" "$to/libamdhip64.so.6"
    ln -sf libamdhip64.so.6 "$to/libamdhip64.so"
fi
