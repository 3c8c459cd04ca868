#!/bin/sh
# Builds gpumem for aarch64 and runs its tests under qemu, in a Debian 12 for arm64.
#
#   tests/aarch64.sh ROOT [ARGUMENT...]
#
# ROOT is a folder for that Debian, made on first use (600 MiB). ARGUMENTs go to `cargo nextest run`: -E 'binary(hip)' runs
# one file; without any, all tests run. Then each file has a line: passed, failed, parts that were skipped (which are
# counted among the passed), and the last line is the sum. JOBS=N: how many tests run at once (1 for each processor).
# TEST_PATIENCE=N: tests wait N times as long for a program as they do natively (10). QEMU_PAGESIZE=65536: pages as large as
# that, as programs are told; memory is still protected by the pages of this machine.
# QEMU=FILE: a qemu other than the qemu-aarch64-static on PATH; of 10.0 more tests pass than of 7.2.
# BUILT=1: nothing is built, what the last call built is run: also on another machine, where the repository and ROOT have
# been copied to the same places. That machine needs no Rust.
# Needs Linux on x86-64, root, debootstrap, binfmt_misc, qemu-aarch64-static, python3; and to build: rustup's target
# aarch64-unknown-linux-gnu, aarch64-linux-gnu-gcc, cargo-nextest.
# qemu shows no weak order of memory: that the atomics are right on Arm is not shown here.
set -eu
[ $# -ge 1 ] || { sed -n '4,19s/^# \{0,1\}//p' "$0"; exit 2; }
[ "$(id -u)" = 0 ] || { echo "aarch64.sh: only root can register qemu, and make and enter a root" >&2; exit 2; }
repository=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
root=$(cd "$1" && pwd)
shift
triple=aarch64-unknown-linux-gnu
built=$repository/target/aarch64
name=gpumem-aarch64
qemu=${QEMU:-$(command -v qemu-aarch64-static)} || { echo "aarch64.sh: there is no qemu-aarch64-static" >&2; exit 2; }

in_root() { chroot "$root" env -i HOME=/root PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"; }

# Whatever happens, nothing of this stays mounted or registered.
leave() {
    for at in "$repository" dev proc sys; do umount -R "$root/$at" 2>/dev/null || :; done
    [ ! -e "/proc/sys/fs/binfmt_misc/$name" ] || echo -1 >"/proc/sys/fs/binfmt_misc/$name"
}
trap leave EXIT
trap 'exit 1' INT TERM
leave
[ -e /proc/sys/fs/binfmt_misc/register ] || mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
head='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
# F: the kernel opens qemu now, so that it is found in every root.
printf '%s' ":$name:M::$head:$mask:$qemu:F" >/proc/sys/fs/binfmt_misc/register

# Tests compile C programs. The compilers run natively, for the sake of time. Apt does not take them beside arm64's own
# packages: what they need of any architecture counts as arm64's. So they are only unpacked.
if ! [ -x "$root/usr/bin/aarch64-linux-gnu-g++" ]; then
    debootstrap --arch=arm64 --variant=minbase --include=make,python3,procps,util-linux,file bookworm "$root"
    in_root dpkg --add-architecture amd64
    # shellcheck disable=SC2016 # The words are the inner shell's.
    in_root sh -euc 'apt-get update
        apt-get install -y --no-install-recommends libbinutils:amd64 libgmp10:amd64 libisl23:amd64 libjansson4:amd64 \
            libmpc3:amd64 libmpfr6:amd64 libstdc++6:amd64 libzstd1:amd64 zlib1g:amd64
        mkdir -p /root/cross && cd /root/cross
        for tool in cpp cpp-12 gcc gcc-12 g++ g++-12 binutils; do apt-get download $tool-aarch64-linux-gnu:amd64; done
        apt-get download gcc-12-aarch64-linux-gnu-base:amd64 libc6-dev-arm64-cross libc6-arm64-cross linux-libc-dev-arm64-cross \
            libgcc-12-dev-arm64-cross libgcc-s1-arm64-cross libstdc++-12-dev-arm64-cross libstdc++6-arm64-cross \
            libgomp1-arm64-cross libasan8-arm64-cross libtsan2-arm64-cross libubsan1-arm64-cross
        for package in *.deb; do dpkg -x "$package" /; done
        for tool in ar g++ gcc ld nm objcopy objdump readelf strip; do ln -s "/usr/bin/aarch64-linux-gnu-$tool" "/usr/local/bin/$tool"; done
        ln -s gcc /usr/local/bin/cc
        ln -s g++ /usr/local/bin/c++
        apt-get clean && rm -r /root/cross'
fi

if [ -z "${BUILT:-}" ]; then
    cross() {
        # Optimised, since qemu has less to translate then. Assertions stay.
        (cd "$repository" && CARGO_TARGET_DIR=$built CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=line-tables-only \
            CARGO_PROFILE_DEV_OPT_LEVEL=1 CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
            CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc AR_aarch64_unknown_linux_gnu=aarch64-linux-gnu-ar cargo "$@")
    }
    cross build --locked --workspace --target $triple
    cross nextest list --locked --workspace --target $triple --list-type binaries-only --message-format json >"$built/binaries.json"
    cross metadata --locked --format-version 1 >"$built/metadata.json"
    cp "$(command -v cargo-nextest)" "$built/"
fi

mkdir -p "$root/$repository"
mount --bind "$repository" "$root/$repository"
for at in dev sys; do mount --rbind /$at "$root/$at" && mount --make-rslave "$root/$at"; done
mount -t proc proc "$root/proc"
rm -f "$built/junit.xml"
# Tests make up what happened a quarter of an hour ago: the clock begins a day ago, however young the machine is.
unshare --time --monotonic 86400 --boottime 86400 chroot "$root" env -i HOME=/root \
    PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin TEST_PATIENCE="${TEST_PATIENCE:-10}" ${QEMU_PAGESIZE:+QEMU_PAGESIZE=$QEMU_PAGESIZE} \
    sh -c 'cd "$1" && shift && exec "$@"' sh "$repository" "$built/cargo-nextest" nextest run --no-fail-fast \
    --binaries-metadata "$built/binaries.json" --cargo-metadata "$built/metadata.json" --config-file tests/aarch64.toml \
    --test-threads "${JOBS:-$(nproc)}" "$@" </dev/null || :
python3 "$repository/tests/aarch64.py" "$built/junit.xml"
