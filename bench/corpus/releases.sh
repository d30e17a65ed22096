#!/usr/bin/env bash
# Builds two releases each of lua, sqlite and redis, for profiles of the release before: releases.sh DIR [lua] [sqlite] [redis]   (default: all)
#
# Sources are those that the crates lua-src and libsqlite3-sys contain, and redis of two releases of Debian. Results: DIR/bin/{lua,sql,redis}-{old,new}, and what puts
# load on redis.
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
lua() {     # lua OUT CRATE RELEASE
  local s; s=$(crate lua-src "$2")/lua-$3
  gcc -O2 -fPIE -pie -DLUA_USE_LINUX -Wl,-q -I"$s" "$here/run_lua.c" "$s"/*.c -lm -ldl -o "$bin/$1"
}
sql() {     # sql OUT CRATE
  local s; s=$(crate libsqlite3-sys "$2")/sqlite3
  gcc -O2 -fPIE -pie -DSQLITE_THREADSAFE=0 -DSQLITE_OMIT_LOAD_EXTENSION -DSQLITE_ENABLE_MATH_FUNCTIONS -DSQLITE_ENABLE_FTS5 -DSQLITE_ENABLE_RTREE -I"$s" "$here/sql.c" "$s/sqlite3.c" -Wl,-q -lm -o "$bin/$1"
}

redis() {   # redis OUT SUITE: as it is in a release of Debian, whose lists are kept apart from the system's
  local out=$1 suite=$2 a=$src/redis-$2
  if [ ! -d "$a/source" ]; then
    mkdir -p "$a/lists/partial" "$a/archives/partial"
    local from; from=$({ cat /etc/apt/sources.list.d/*.sources /etc/apt/sources.list 2>/dev/null || true; } | sed -En 's/^URIs: *([^ ]*).*/\1/p; s/^deb (\[[^]]*\] )?([^ ]*).*/\2/p' | sed 1q)
    echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $from $suite main" > "$a/sources.list"
    local apt=(apt-get -qq -o "Dir::Etc::SourceList=$a/sources.list" -o Dir::Etc::SourceParts=/dev/null -o "Dir::State::Lists=$a/lists" -o "Dir::Cache=$a")
    (cd "$a" && "${apt[@]}" update && "${apt[@]}" source --download-only redis && dpkg-source --no-check --skip-patches -x redis_*.dsc source) >&2
  fi
  make -s -C "$a/source" -j"$(nproc)" MALLOC=libc OPTIMIZATION=-O2 CFLAGS=-fPIE LDFLAGS="-pie -Wl,-q" DEBUG="" USE_SYSTEMD=no >/dev/null
  cp "$a/source/src/redis-server" "$bin/$out"
}

for t in ${*:-lua sqlite redis}; do case $t in
  lua)
    [ -f "$bin/lua-old" ] || lua lua-old 544.0.1 5.4.4
    [ -f "$bin/lua-new" ] || lua lua-new 546.0.2 5.4.6 ;;
  sqlite)
    [ -f "$bin/sql-old" ] || sql sql-old 0.25.2   # 3.39.2
    [ -f "$bin/sql-new" ] || sql sql-new 0.26.0 ;;   # 3.41.2
  redis)
    [ -f "$bin/redis-old" ] || redis redis-old bullseye   # 6.0.16
    [ -f "$bin/redis-new" ] || { redis redis-new bookworm && cp "$src"/redis-bookworm/source/src/redis-{benchmark,cli} "$bin/"; } ;;   # 7.0.15
  *) echo "releases.sh: no program '$t'" >&2; exit 2 ;;
esac; done
