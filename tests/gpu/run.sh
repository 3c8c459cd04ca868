#!/usr/bin/env bash
# What gpumem claims, on a real NVIDIA GPU: `make test-gpu` calls this.
#
#   tests/gpu/run.sh [STAGE...]
#
# Stages that hold something to its native behaviour: programs observe conformance differ pooler (the
# default, with cost and llama); waits: allocation, trim and decay beside a kernel that the host ends; references:
# which words of a process equal an address of device memory, and what a kernel sees whose memory goes; guard: planted
# bugs and clean programs under GPUMEM_GUARD, beside compute-sanitizer's memcheck, in one table (guard.py says more); scan: what is
# said of lost pointers, how fast memory is read, and what programs lose that are searched (scan.py; SCAN="lost speed torch
# loop" and GUARD="bugs clean steps server samples random" choose parts); fix: the cure that doctor
# prints for graphs that grow, pasted (fix.py); transcript: what a new user types to find what grows in a C program, in PyTorch
# and in llama-server, each command printed with its answer (transcript.py; it needs no CUDA toolkit); report: recordings, pages and snapshots of PyTorch and llama-server
# (report.py); flat: memory over eight
# minutes, native and preloaded side by side; starts: how often calls answer an error that stays, native and preloaded starts in
# equal numbers (starts.py); group: processes that share a limit, as clients of MPS and around a
# checkpoint, too; wheel: pip installs it beside PyTorch, a program runs by `python -m gpumem run`, and pip removes it
# (WHEEL=file: which one); locations: in which sum memory of the device, of
# the host and of managed memory is, and PyTorch with expandable segments and with cudaMallocAsync; sums: the parts of a process's
# device memory add up to NVML's count, alone and beside neighbours (sums.py; SUMS="cublas jax" chooses programs); park: programs whose device
# memory is moved to host memory and back between their steps (park.py; PARK="torch 12" chooses programs and sizes in GiB); share: programs that
# take turns on a card that cannot hold them (share.py; SHARE_SECONDS=600); integrated: whose memory the device's is, for owners of a GH200, a DGX Spark or a Jetson; it prints
# a block to send (it needs no CUDA toolkit; INTEGRATED_MIB=512). Stages that measure the graph cache: graphs
# manygraphs never-evicts churn replay compile two-gpus llama llama-own; the pool: pool-pair pool-swap pool-back
# pool-torch pool-random pool-stranded pool-oom (`pool` stands for these) and, on two GPUs, pool-peer. `bench`
# stands for all that measures. Programs that people run, from builds of theirs: sd servers rpc llama-today torch-train
# torch-compile torch-ddp torch-infer models (`published` stands for these; docs/tested-programs.md says what each needs).
#
#   KIT=dir         holds libgpumem.so, gpumem and, if wanted, conformance, differ, pooler, poolbench
#                                                                            (default: target/release)
#   OUT=dir         results.jsonl, logs, what people would see               (default: target/gpu-results)
#   WORK=dir        scratch, emptied at the start: its own for each of several run.sh at once  (default: BUILD/work)
#   AT_ONCE=1       all stages at the same time
#   BUILD=dir       what is compiled here, as far as the stages need it      (default: target/gpu-build)
#   CUDA_HOME=dir   the CUDA toolkit: nvcc and CUPTI                         (default: nvcc's, /usr/local/cuda)
#   GPUMEM_EARLIER_SO=file               an earlier libgpumem.so, which start, cost, replay, llama, pool-pair, pool-torch, pool-random
#                                        and the steps of guard run by turns with the present one
#   LLAMA_SERVER=file LLAMA_MODEL=file   an existing llama-server and a model for the stages llama, flat, fix, guard and transcript
#   CUDA_SAMPLES=dir                     NVIDIA's cuda-samples, built or their sources, for the stage guard
#   FIX_SECONDS=20 FIX_PROGRAMS="demo torch llama"      for the stage fix
#   TRANSCRIPTS="c c-graphs torch torch-segments torch-graphs llama old"   for the stage transcript; old is LLAMA_OLD_SERVER
#   FLAT_SECONDS=480 FLAT_PROGRAMS="demo llama torch"   for the stage flat
#   LLAMA_BENCH=file STRANDED_MODEL=file for pool-stranded and pool-oom: see pool_llama.py
#   GRAPHCHURN=file                      a program over ggml for the stage churn: see churn.py
#   DIFFER_SEEDS=A..B DIFFER_SECONDS=S   seeds for the stage differ, and how long at most (120), half of it at DIFFER_CAPS
#                                        (1,2,8), half at the default bounds;
#   POOLER_SEEDS=A..B POOLER_SECONDS=S   for pooler likewise (60); beside other stages on a card of its own, by CUDA_VISIBLE_DEVICES
#
# Prints one line a check, `ok|FAIL name detail`; the status is 0 if none failed. What graph cache and pool
# are held to is printed as rows of a table, and all of them again at the end ($OUT/done.md). A stage that
# cannot run here says `skip` and why; one whose variable names a file that is not there has failed. Python packages that are missing skip their programs.
set -u
cd "$(dirname "$0")/../.."
root=$PWD
KIT=${KIT:-$root/target/release}
export OUT=${OUT:-$root/target/gpu-results} BUILD=${BUILD:-$root/target/gpu-build}
export GPUMEM_SO=${GPUMEM_SO:-$KIT/libgpumem.so} GPUMEM_CLI=${GPUMEM_CLI:-$KIT/gpumem}
export WORK=${WORK:-$BUILD/work}
PYTHON=${PYTHON:-python3}
here=tests/gpu
pool="pool-pair pool-swap pool-back pool-torch pool-random pool-stranded pool-oom"
stages=
for name in ${*:-programs observe conformance differ pooler cost llama}; do
    case $name in
    bench) stages="$stages cost start graphs manygraphs never-evicts churn replay compile two-gpus llama llama-own $pool pool-peer" ;;
    pool) stages="$stages $pool" ;;
    published) stages="$stages sd servers rpc llama-today torch-train torch-compile torch-ddp torch-infer models" ;;
    *) stages="$stages $name" ;;
    esac
done

fail() { echo "FAIL $*"; failed=1; }
failed=0
for file in "$GPUMEM_SO" "$GPUMEM_CLI"; do
    [ -f "$file" ] || { echo "FAIL setup $file is missing: run \`make\` first, or set KIT"; exit 1; }
done
case $GPUMEM_SO in /*) ;; *) GPUMEM_SO=$root/$GPUMEM_SO ;; esac
case $GPUMEM_CLI in /*) ;; *) GPUMEM_CLI=$root/$GPUMEM_CLI ;; esac
mkdir -p "$OUT" "$BUILD" && rm -rf "$WORK" && mkdir -p "$WORK"
: >"$OUT/results.jsonl"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | head -1 ||
    echo "note nvidia-smi does not answer"

# ---- the toolkit
nvcc=$(readlink -f "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")
for dir in "${CUDA_HOME:-}" "${nvcc%/bin/nvcc}" /usr/local/cuda /usr/local/cuda-*; do
    [ -x "$dir/bin/nvcc" ] && [ -f "$dir/include/cuda_runtime.h" ] && CUDA_HOME=$dir && break
done
if [ -n "${CUDA_HOME:-}" ]; then
    export CUDA_HOME PATH=$CUDA_HOME/bin:$PATH
    lib=$CUDA_HOME/lib64
    [ -d "$lib" ] || lib=$CUDA_HOME/lib
else
    for name in $stages; do
        [ "$name" = transcript ] || [ "$name" = integrated ] || { echo "FAIL setup no CUDA toolkit: set CUDA_HOME"; exit 1; }
    done
    CUDA_HOME= lib=
fi
first() { for f in "$@"; do [ -e "$f" ] && { echo "$f"; return; }; done; }
site=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' 2>/dev/null)
cupti_h=$(first "$CUDA_HOME"/extras/CUPTI/include/cupti.h "$CUDA_HOME"/include/cupti.h "$site"/nvidia/cu13/include/cupti.h)
cupti_so=$(first "$CUDA_HOME"/extras/CUPTI/lib64/libcupti.so.[0-9]* "$lib"/libcupti.so.[0-9]* "$site"/nvidia/cu13/lib/libcupti.so.[0-9]*)

# ---- what is compiled: what the stages need and has changed, in parallel; a failure is a line, and its
# programs are skipped
needed() { # stages...
    local stage
    for stage in $stages; do case " $* " in *" $stage "*) return 0 ;; esac; done
    return 1
}
fresh() { # name: nothing is newer than it
    [ -f "$BUILD/.built-$1" ] && [ -z "$(find $here demo/leak.c tests/programs kernels/gpumem.ptx -newer "$BUILD/.built-$1" -type f \
        \( -name '*.c' -o -name '*.cpp' -o -name '*.cu' -o -name '*.h' -o -name '*.S' -o -name '*.ptx' -o -name Makefile \) | head -1)" ]
}
waits=
compile() { # name "stages" command...
    local name=$1 users=$2
    shift 2
    needed $users && ! fresh "$name" || return 0
    (
        "$@" >"$OUT/build-$name.log" 2>&1 && touch "$BUILD/.built-$name" && exit 0
        fail "build/$name $(tail -2 "$OUT/build-$name.log" | tr '\n' ' ' | cut -c1-200)"
        exit 1
    ) & waits="$waits $!"
}
nv() { # name source flags...
    local name=$1 source=$2
    shift 2
    compile "$name" "programs observe guard scan sums" nvcc -O2 -std=c++17 -arch=native -o "$BUILD/$name" "$here/programs/$source" -Xlinker -rpath="$lib" "$@"
}
of_pool() { # name flags...
    local name=$1
    shift
    compile "$name" "pool-pair pool-swap pool-back pool-peer" cc -std=gnu11 -O2 -fno-omit-frame-pointer $here/programs/pool.c -o "$BUILD/$name" "$@" \
        -Wl,-rpath,"$lib" -ldl -lm -lrt -pthread
}
mkdir -p "$BUILD/null"
counting="programs observe"
[ "${LLAMA_COUNTED:-1}" = 1 ] && counting="$counting llama"
compile libcount.so "$counting" cc -O2 -fPIC -shared -I"$CUDA_HOME/include" -I"$(dirname "${cupti_h:-/}")" $here/programs/count.c \
    -o "$BUILD/libcount.so" "$cupti_so" -Wl,-rpath,"$(dirname "${cupti_so:-/}")" -pthread
nv saxpy_static saxpy.cu
nv saxpy_shared saxpy.cu -cudart shared
nv graphs_static graphs.cu
nv graphs_shared graphs.cu -cudart shared
nv gemm gemm.cu -cudart shared -lcublas
compile bugs guard nvcc -O2 -std=c++17 -arch=native -o "$BUILD/bugs" $here/programs/bugs.cu -Xlinker -rpath="$lib"
compile references references g++ -O2 -std=c++17 -I"$CUDA_HOME/include" "$here/programs/references.cpp" -o "$BUILD/references" -L"$lib/stubs" -lcuda -pthread
compile guard guard make -C tests/programs "$BUILD/guard/pool_guard" OUT="$BUILD/guard" CUDART_LIBDIR="$lib" CUDART=libcudart.so \
    CUDA_LIBDIR="$lib/stubs" LINK_CUDA="-L$lib/stubs -lcuda" LIBS="-pthread -ldl -lm -Wl,-rpath,$lib"
compile group group cc -std=gnu11 -O2 -Itests/programs tests/programs/clients/group.c -o "$BUILD/group" -L"$lib/stubs" -lcuda
compile scan scan make -C tests/programs "$BUILD/scan/lost" OUT="$BUILD/scan" CUDART_LIBDIR="$lib" CUDART=libcudart.so \
    CUDA_LIBDIR="$lib/stubs" LINK_CUDA="-L$lib/stubs -lcuda" LIBS="-pthread -ldl -lm -Wl,-rpath,$lib"
command -v cc >/dev/null || ! needed transcript || echo "note no C compiler: the stage transcript goes without its C program"
! command -v cc >/dev/null || compile leak transcript cc -std=gnu11 -O1 -g -fno-omit-frame-pointer demo/leak.c -o "$BUILD/leak" -ldl
! command -v cc >/dev/null || compile libforgets.so "fix transcript" cc -std=gnu11 -O2 -fPIC -shared $here/programs/forgets.c -o "$BUILD/libforgets.so"
compile locations locations cc -std=gnu11 -O2 -Itests/programs tests/programs/clients/locations.c -o "$BUILD/locations" -L"$lib/stubs" -lcuda
compile read scan cc -std=gnu11 -O2 $here/programs/read.c -o "$BUILD/read" -ldl
compile local sums nvcc -O2 -std=c++17 -arch=native -o "$BUILD/local" $here/programs/local.cu -Xlinker -rpath="$lib"
compile neighbour sums cc -std=gnu11 -O2 -I"$CUDA_HOME/include" $here/programs/neighbour.c -o "$BUILD/neighbour" -L"$lib/stubs" -lcuda
compile spin waits nvcc -O2 -std=c++17 -arch=native -o "$BUILD/spin" "$here/programs/spin.cu" -Xlinker -rpath="$lib"
compile nullcuda "cost llama-own" cc -O2 -fPIC -shared -Wl,-soname,libcuda.so.1 $here/programs/nullcuda.c -o "$BUILD/null/libcuda.so.1"
compile cost "cost llama-own" cc -std=gnu11 -O2 -fno-omit-frame-pointer $here/programs/cost.c -o "$BUILD/cost" -ldl
compile cost_nofp cost cc -std=gnu11 -O2 -fomit-frame-pointer $here/programs/cost.c -o "$BUILD/cost_nofp" -ldl
compile programs "programs observe graphs manygraphs never-evicts flat fix scan sums" make -k -j8 -C tests/programs gpu OUT="$BUILD/programs" \
    CUDA_HOME="$CUDA_HOME" LIBS="-pthread -ldl -lm -Wl,-rpath,$lib"
compile libtokens.so llama-own cc -std=gnu11 -O2 -fPIC -shared -I"$CUDA_HOME/include" $here/programs/tokens.c -o "$BUILD/libtokens.so" -ldl
of_pool pool_driver
of_pool pool_shared -DRUNTIME -L"$lib" -lcudart
of_pool pool_static -DRUNTIME "$lib/libcudart_static.a"
for pid in $waits; do wait "$pid" || failed=1; done

# ---- the stages; output of each is kept
running=
stage() { # name command...
    if [ -n "${AT_ONCE:-}" ]; then
        one_stage "$@" & running="$running $!"
    else
        one_stage "$@" || failed=1
    fi
}
one_stage() { # name command...
    local name=$1
    shift
    echo "== $name"
    "$@" 2>&1 | tee "$OUT/$name.log"
    return "${PIPESTATUS[0]}"
}
with_cuda() { # command...: it finds the toolkit's libraries, where there is one
    [ -n "$lib" ] || { "$@"; return; }
    LD_LIBRARY_PATH=$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$@"
}
conformance() {
    [ -x "$KIT/conformance" ] || { echo "skip conformance $KIT/conformance is not there"; return 0; }
    local bad=0 mode
    for mode in native preloaded; do
        local preload=
        [ $mode = preloaded ] && preload=$GPUMEM_SO
        mkdir -p -m 700 "$WORK/conformance-$mode"
        if timeout 300 env LD_PRELOAD="$preload" GPUMEM_POOL_FILL=zero GPUMEM_DIR="$WORK/conformance-$mode" "$KIT/conformance" >"$OUT/conformance-$mode.log" 2>&1; then
            echo "ok   conformance/$mode $(tail -1 "$OUT/conformance-$mode.log" | cut -c1-150)"
        else
            echo "FAIL conformance/$mode $(tail -1 "$OUT/conformance-$mode.log" | cut -c1-200)"
            grep -iE '^ *(fail|failed|panicked)' "$OUT/conformance-$mode.log" | head -20 | sed "s|^|     conformance/$mode |" | cut -c1-250
            bad=1
        fi
    done
    return $bad
}
differ() {
    [ -x "$KIT/differ" ] || { echo "skip differ $KIT/differ is not there"; return 0; }
    local bad=0 bounds caps seconds=$((${DIFFER_SECONDS:-120} / 2)) first last
    IFS=. read -r first _ last <<<"${DIFFER_SEEDS:-0..1000000}"
    for bounds in small default; do
        caps=${DIFFER_CAPS-1,2,8}
        [ $bounds = default ] && caps= && first=$((first + (last - first) / 2))
        mkdir -p -m 700 "$WORK/differ-$bounds"
        if GPUMEM_DIR="$WORK/differ-$bounds" timeout $((seconds + 240)) "$KIT/differ" hunt --lib "$GPUMEM_SO" --seeds "$first..$last" \
            --seconds $seconds --caps "$caps" --out "$OUT" >"$OUT/differ-$bounds.log" 2>&1; then
            echo "ok   differ/$bounds $(tail -1 "$OUT/differ-$bounds.log" | cut -c1-250)"
        else
            echo "FAIL differ/$bounds status $?: $(grep programs, "$OUT/differ-$bounds.log" | tail -1 || tail -3 "$OUT/differ-$bounds.log" | tr '\n' ' ' | cut -c1-300)"
            bad=1
        fi
    done
    return $bad
}
pooler() {
    [ -x "$KIT/pooler" ] || { echo "skip pooler $KIT/pooler is not there"; return 0; }
    mkdir -p -m 700 "$WORK/pooler"
    # Making a difference small takes a minute more, and so does a program that stands still.
    if GPUMEM_DIR="$WORK/pooler" timeout $((${POOLER_SECONDS:-60} + 120)) "$KIT/pooler" hunt --lib "$GPUMEM_SO" --seeds "${POOLER_SEEDS:-0..1000000}" \
        --seconds "${POOLER_SECONDS:-60}" --out "$OUT" >"$OUT/pooler-hunt.log" 2>&1; then
        echo "ok   pooler/hunt $(tail -1 "$OUT/pooler-hunt.log" | cut -c1-150)"
    else
        echo "FAIL pooler/hunt status $?: $(tail -3 "$OUT/pooler-hunt.log" | tr '\n' ' ' | cut -c1-300)"
        return 1
    fi
}
has() { # stage variable...: what they name is there; 1: a stage that cannot run, 2: one that was meant to
    local stage=$1 name unset=
    shift
    for name; do [ -n "${!name:-}" ] || unset="$unset${unset:+ and }$name"; done
    [ -z "$unset" ] || { echo "skip $stage set $unset"; return 1; }
    for name; do [ -e "${!name}" ] || { echo "FAIL $stage $name: ${!name} is not there"; return 2; }; done
}
stranded() { # stage
    has "pool-$1" LLAMA_BENCH STRANDED_MODEL || return $(($? - 1))
    with_cuda "$PYTHON" $here/stage.py pool_llama "$LLAMA_BENCH" "$STRANDED_MODEL" "$1"
}
devices() { # whose memory an allocation is, whichever way a program changes the device
    local cudart mode bad=0 said
    for cudart in shared static; do
        nvcc -O1 -x c -cudart $cudart -o "$BUILD/devices_$cudart" $here/programs/devices.c -lcuda -Xlinker -rpath="$lib" || { bad=1; continue; }
        for mode in strict deferred; do
            mkdir -p -m 700 "$WORK/devices"
            if said=$(GPUMEM_FREE=$mode GPUMEM_DIR="$WORK/devices" LD_PRELOAD="$GPUMEM_SO" timeout 60 "$BUILD/devices_$cudart" 2>&1); then
                echo "ok   devices/$cudart/$mode $(echo "$said" | tail -1)"
            else
                echo "FAIL devices/$cudart/$mode $(echo "$said" | tail -3 | tr '\n' ' ' | cut -c1-250)"; bad=1
            fi
        done
    done
    return $bad
}
churn() {
    has churn GRAPHCHURN || return $(($? - 1))
    with_cuda "$PYTHON" $here/stage.py churn "$GRAPHCHURN"
}
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
for name in $stages; do
    case $name in
    programs) stage programs "$PYTHON" $here/stage.py run ;;
    observe) stage observe "$PYTHON" $here/stage.py observe ;;
    cost) stage cost "$PYTHON" $here/stage.py cost ;;
    start) stage start "$PYTHON" $here/stage.py start_gpu ;;
    conformance) stage conformance conformance ;;
    differ) stage differ differ ;;
    graphs) stage graphs "$PYTHON" $here/stage.py graphmem 200 ;;
    manygraphs) stage manygraphs "$PYTHON" $here/stage.py graphmem 10000 ;;
    never-evicts) stage never-evicts "$PYTHON" $here/stage.py never_evicts ;;
    churn) stage churn churn ;;
    replay) stage replay "$PYTHON" $here/stage.py torch_graphs replay ;;
    compile) stage compile "$PYTHON" $here/stage.py torch_graphs compile ;;
    two-gpus) stage two-gpus "$PYTHON" $here/stage.py two_gpus; stage devices devices ;;
    llama) stage llama with_cuda "$PYTHON" $here/stage.py llama ;;
    llama-own) stage llama-own with_cuda "$PYTHON" $here/stage.py llama_own ;;
    waits) stage waits "$PYTHON" $here/stage.py waits ;;
    references) stage references "$PYTHON" $here/stage.py references ;;
    guard) stage guard "$PYTHON" $here/stage.py guard ${GUARD:-} ;;
    group) stage group "$PYTHON" $here/stage.py group ;;
    park) stage park with_cuda "$PYTHON" $here/stage.py park ${PARK:-} ;;
    share) stage share with_cuda "$PYTHON" $here/stage.py share ${SHARE:-} ;;
    sums) stage sums with_cuda "$PYTHON" $here/stage.py sums ${SUMS:-} ;;
    locations) stage locations "$PYTHON" $here/stage.py locations ;;
    integrated) stage integrated "$PYTHON" $here/stage.py integrated ;;
    wheel) stage wheel "$PYTHON" $here/stage.py wheel ${WHEEL:-} ;;
    scan) stage scan "$PYTHON" $here/stage.py scan ${SCAN:-} ;;
    fix) stage fix with_cuda "$PYTHON" $here/stage.py fix ${FIX_PROGRAMS:-} ;;
    transcript) stage transcript with_cuda "$PYTHON" $here/stage.py transcript ${TRANSCRIPTS:-} ;;
    report) stage report with_cuda "$PYTHON" $here/stage.py report ${REPORT:-} ;;
    starts) stage starts env KIT="$KIT" "$PYTHON" $here/stage.py starts ;;
    flat) stage flat env LD_LIBRARY_PATH="$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$PYTHON" $here/stage.py flat ${FLAT_PROGRAMS:-} ;;
    pooler) stage pooler pooler ;;
    pool-pair | pool-swap | pool-back | pool-peer) stage "$name" "$PYTHON" $here/stage.py pool "${name#pool-}" ;;
    pool-torch) stage "$name" "$PYTHON" $here/stage.py pool_torch ;;
    pool-random) stage "$name" env LD_LIBRARY_PATH="$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$PYTHON" $here/stage.py pool_random ;;
    sd) stage sd with_cuda "$PYTHON" $here/stage.py sd ${SD_PROGRAMS:-} ;;
    servers) stage servers with_cuda "$PYTHON" $here/stage.py servers ${SERVERS:-} ;;
    rpc) stage rpc with_cuda "$PYTHON" $here/stage.py rpc ;;
    llama-today) stage llama-today with_cuda "$PYTHON" $here/stage.py today ${TODAY:-} ;;
    torch-train | torch-compile | torch-ddp | torch-infer) stage "$name" "$PYTHON" $here/stage.py torch_programs "${name#torch-}" ;;
    models) stage models "$PYTHON" $here/stage.py models ;;
    pool-stranded | pool-oom) stage "$name" stranded "${name#pool-}" ;;
    *) fail "setup no stage $name" ;;
    esac
done
for pid in $running; do wait "$pid" || failed=1; done
if grep -q '"group": "done"' "$OUT/results.jsonl"; then
    "$PYTHON" $here/tools/done.py "$OUT/results.jsonl" >"$OUT/done.md"
    echo "== what graph cache and pool are held to"
    grep -v 'not measured' "$OUT/done.md"
fi
[ $failed = 0 ] && echo "test-gpu: all ok" || echo "test-gpu: something failed (see $OUT)"
exit $failed
