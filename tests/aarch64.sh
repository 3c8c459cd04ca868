#!/bin/sh
# Builds gpumem for aarch64 and runs its tests under qemu.
#
#   tests/aarch64.sh ROOT [TEST...]
#   tests/aarch64.sh here [TEST...]
#
# ROOT is a folder for a Debian unstable of its own, made on first use (about 5 GiB with what is built there), with a
# compiler and a standard library for arm64: for where rustup cannot bring that target. `here` takes what this machine has:
# rustup's target aarch64-unknown-linux-gnu, aarch64-linux-gnu-gcc, qemu-aarch64-static and, of arm64, libc6 and libgcc-s1.
# TESTs are files of tests/tests without ".rs", `shim` (its unit tests) or `inspector` (its unit tests and the files of
# inspector/tests); without any, all of that runs. Needs Linux on x86-64, root, binfmt_misc, and for ROOT debootstrap and
# the crates of Cargo.lock already downloaded (cargo fetch). TOOLS=FOLDER names a folder with programs of arm64 (sh, sleep,
# true, python3), which come first on PATH while tests run: this machine's are not for arm64, and their loader says of each
# that the library cannot be preloaded. LIMIT=SECONDS: how long one file may take (1800). TEST_PATIENCE=N: tests wait N
# times as long for a program as they do natively (10). Each file has a line: passed, failed, and the parts that were
# skipped, which are counted among the passed. The last line is the sum.
# qemu shows no weak order of memory: that the atomics are right on Arm is not shown here.
set -eu
[ $# -ge 1 ] || { sed -n '4,20s/^# \{0,1\}//p' "$0"; exit 2; }
[ "$(id -u)" = 0 ] || { echo "aarch64.sh: only root can register qemu, and make and enter a root" >&2; exit 2; }
repository=$(cd "$(dirname "$0")/.." && pwd)
crates=${CARGO_HOME:-$HOME/.cargo}/registry
name=gpumem-aarch64
where=$1
shift
if [ "$where" = here ]; then
    root=
    src=$repository
    built=${CARGO_TARGET_DIR:-$repository/target}/aarch64
    in_root() { env "$@"; }
    for needed in aarch64-linux-gnu-gcc qemu-aarch64-static; do
        command -v "$needed" >/dev/null || { echo "aarch64.sh: there is no $needed" >&2; exit 2; }
    done
    [ -e /lib/ld-linux-aarch64.so.1 ] || { echo "aarch64.sh: there is no libc6 of arm64" >&2; exit 2; }
    qemu=$(command -v qemu-aarch64-static)
else
    mkdir -p "$where"
    root=$(cd "$where" && pwd)
    src=/src built=/target
    in_root() { chroot "$root" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"; }
    qemu=$root/usr/bin/qemu-aarch64
fi

if [ -n "$root" ] && ! [ -x "$qemu" ]; then
    debootstrap --variant=minbase sid "$root"
    in_root dpkg --add-architecture arm64
    in_root apt-get -o Acquire::Check-Valid-Until=false update
    in_root apt-get install -y --no-install-recommends rustc cargo libstd-rust-dev:arm64 make binutils qemu-user python3 \
        gcc libc6-dev gcc-aarch64-linux-gnu libc6-dev:arm64 libgcc-s1:arm64
fi

# Whatever happens, nothing of this stays mounted or registered.
leave() {
    [ ! -e "/proc/sys/fs/binfmt_misc/$name" ] || echo -1 >"/proc/sys/fs/binfmt_misc/$name"
    [ -z "$root" ] || for at in src root/.cargo/registry dev proc; do umount -l "$root/$at" 2>/dev/null || :; done
}
trap leave EXIT
trap 'exit 1' INT TERM
leave
if [ -n "$root" ]; then
    mkdir -p "$root/src" "$root/root/.cargo/registry" "$root/target" "$root/proc" "$root/dev"
    mount --bind "$repository" "$root/src"
    mount --bind "$crates" "$root/root/.cargo/registry"
    mount --rbind /dev "$root/dev"
    mount --make-rslave "$root/dev"
    mount -t proc proc "$root/proc"
fi
[ -e /proc/sys/fs/binfmt_misc/register ] || mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
head='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
# F: the kernel opens qemu now, so that it is found in every root.
printf '%s' ":$name:M::$head:$mask:$qemu:F" >/proc/sys/fs/binfmt_misc/register

triple=aarch64-unknown-linux-gnu
cross() {
    # Optimised, since qemu has less to translate then. Assertions stay.
    in_root CARGO_TARGET_DIR="$built" CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=line-tables-only CARGO_PROFILE_DEV_OPT_LEVEL=1 \
        CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc \
        AR_aarch64_unknown_linux_gnu=aarch64-linux-gnu-ar "$@"
}
cargo() {
    # shellcheck disable=SC2016 # The words are the inner shell's.
    cross sh -c 'cd "$0" && exec cargo "$@"' "$src" "$@"
}
sims=$(sed -n 's/^sims *:= *//p' "$repository/Makefile")
offline=${root:+--offline}
# shellcheck disable=SC2086 # $sims are several words, $offline may be none.
cargo build $offline --locked --target $triple -p gpumem-shim -p gpumem-inspector $sims
[ $# -gt 0 ] || set -- $(cd "$repository/tests/tests" && ls -d *.rs */main.rs | sed 's/\.rs$//; s,/main$,,') shim inspector
# The test programs of a package: a line for each, its source and its file. A program may have a name twice.
programs_of() {
    # shellcheck disable=SC2086 # $offline may be none.
    set -- --no-run $offline --locked --target $triple "$@"
    cargo test "$@" >&2
    cargo test "$@" 2>&1 | sed -n 's/^ *Executable \(unittests \)\{0,1\}\([^ ]*\) (.*\/\(.*\))$/\2 \3/p'
}
passed=0 failed=0 skipped=0
# run FOLDER NAME FILE
run() {
    # C programs are compiled by a compiler that runs natively. What stands still is ended after half an hour.
    said=$(cross timeout "${LIMIT:-1800}" sh -c "cd '$src/$1' && TEST_PATIENCE=${TEST_PATIENCE:-10} PATH='${TOOLS:+$TOOLS:}'\$PATH \
        CC=aarch64-linux-gnu-gcc CXX=aarch64-linux-gnu-g++ exec '$built/$triple/debug/deps/$3' --show-output" 2>&1 </dev/null) || :
    printf '%s\n' "$said" | sed -n 's/^test \(.*\) \.\.\. FAILED$/failed: \1/p'
    result=$(printf '%s\n' "$said" | grep '^test result' || echo 'test result: FAILED. 0 passed; 1 failed')
    parts=$(printf '%s\n' "$said" | grep -c '^skipped:' || :)
    echo "$2: ${result#test result: }; $parts skipped"
    passed=$((passed + $(printf '%s' "$result" | sed 's/.* \([0-9]*\) passed.*/\1/')))
    failed=$((failed + $(printf '%s' "$result" | sed 's/.* \([0-9]*\) failed.*/\1/')))
    skipped=$((skipped + parts))
}
wanted=$(printf '%s\n' "$@" | sed '/^shim$/d; /^inspector$/d; s/^/--test /')
of_tests=
# shellcheck disable=SC2086 # They are several words.
[ -z "$wanted" ] || of_tests=$(programs_of -p gpumem-tests --bins $wanted)
for test in "$@"; do
    case $test in
        shim | inspector)
            list=$(programs_of -p "gpumem-$test")
            while read -r source file; do
                name=${source#tests/}
                run "$test" "$test/${name%.rs}" "$file"
            done <<EOF
$list
EOF
            ;;
        *)
            file=$(printf '%s\n' "$of_tests" | sed -n "s|^tests/$test\(/main\)\{0,1\}\.rs ||p")
            run tests "$test" "$file"
            ;;
    esac
done
echo "aarch64: $passed passed, $failed failed; $skipped parts skipped"
[ "$failed" = 0 ]
