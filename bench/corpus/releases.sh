#!/usr/bin/env bash
# Builds two releases each of lua and sqlite, for profiles of the release before: releases.sh DIR
#
# Sources are those that the crates lua-src and libsqlite3-sys contain. Results: DIR/bin/{lua,sql}-{old,new}.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=$(mkdir -p "$1" && cd "$1" && pwd)
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
  gcc -O2 -fPIE -pie -DSQLITE_THREADSAFE=0 -DSQLITE_OMIT_LOAD_EXTENSION -I"$s" "$here/sql.c" "$s/sqlite3.c" -Wl,-q -lm -o "$bin/$1"
}

[ -f "$bin/lua-old" ] || lua lua-old 544.0.1 5.4.4
[ -f "$bin/lua-new" ] || lua lua-new 546.0.2 5.4.6
[ -f "$bin/sql-old" ] || sql sql-old 0.25.2   # 3.39.2
[ -f "$bin/sql-new" ] || sql sql-new 0.26.0   # 3.41.2
