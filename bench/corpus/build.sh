#!/usr/bin/env bash
# Builds real programs, linked with relocations kept, to measure and test on.
#
#   build.sh DIR [target ...]     targets: sqlite lua exc redis rg gawk cppcheck bash perl vim tclsh tcc clang aarch64 aarch64-clang variants debug debug-large debug-clang   (default: sqlite lua exc)
#
# Sources come from Debian source packages (needs root once, for the source list) and crates.io. Results go to DIR/bin.
# Needs: gcc, g++, make; rg needs cargo; clang needs lld-19 clang-19 llvm-19-dev libclang-19-dev libpolly-19-dev
# libzstd-dev and 4 GiB of disk;
# aarch64 needs gcc-aarch64-linux-gnu g++-aarch64-linux-gnu, aarch64-clang these and clang-19 lld-19; variants, debug and debug-large need clang-19 lld-19;
# debug-clang what clang needs, clang-tools-19, cmake and ninja-build, 12 GiB of disk and two hours of a processor.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=$(mkdir -p "$1" && cd "$1" && pwd); shift
bin=$dir/bin src=$dir/src; mkdir -p "$bin/aarch64" "$src"
Q=-Wl,-q

source_of() {   # source_of PACKAGE: unpacks the Debian source package once, prints its folder
  local d; d=$(find "$src" -maxdepth 1 -type d -name "$1-*" | head -1)
  if [ -z "$d" ]; then
    if ! grep -rqs '^Types: deb-src\|^deb-src ' /etc/apt/sources.list /etc/apt/sources.list.d; then
      if [ -f /etc/apt/sources.list.d/debian.sources ]; then
        sed 's/^Types: deb$/Types: deb-src/' /etc/apt/sources.list.d/debian.sources > /etc/apt/sources.list.d/deb-src.sources
      else sed 's/^deb /deb-src /' /etc/apt/sources.list > /etc/apt/sources.list.d/deb-src.list; fi
      apt-get update -qq
    fi
    (cd "$src" && apt-get source -qq --download-only "$1" >&2 && dpkg-source --no-check --skip-patches -x "$(ls -t "$1"_*.dsc | head -1)" >&2)
    d=$(find "$src" -maxdepth 1 -type d -name "$1-*" | head -1)
  fi
  echo "$d"
}
sqlite_src() {  # amalgamation in $src/sqlite
  [ -f "$src/sqlite/sqlite3.c" ] && return
  local s; s=$(source_of sqlite3); command -v tclsh >/dev/null || apt-get install -y -qq tcl >&2
  mkdir -p "$src/sqlite"; (cd "$src/sqlite" && "$s/configure" --disable-tcl >/dev/null && make -s sqlite3.c shell.c >/dev/null)
}
SQF="-DSQLITE_THREADSAFE=0 -DSQLITE_OMIT_LOAD_EXTENSION -DSQLITE_ENABLE_MATH_FUNCTIONS -DSQLITE_ENABLE_FTS5 -DSQLITE_ENABLE_RTREE"
sqlite_with() { local out=$1; shift; "$@" $SQF -I"$src/sqlite" "$src/sqlite/shell.c" "$src/sqlite/sqlite3.c" -lm -o "$out"; }
COPIES=${COPIES:-24}
copies() {      # copies FOLDER OUT: $COPIES times the program whose objects are in the folder, one after another in one process
  local w; w=$(mktemp -d); ld -r -o "$w/all.o" "$1"/*.o
  nm -g --defined-only "$w/all.o" | awk '{ print $3 }' | sort -u > "$w/names"
  { for k in $(seq "$COPIES"); do echo "int main_$k(int, char **);"; done
    echo 'int main(int c, char **v) { int r = 0;'
    for k in $(seq "$COPIES"); do echo "r |= main_$k(c, v);"; done
    echo 'return r; }'; } > "$w/main.c"
  for k in $(seq "$COPIES"); do
    awk -v k="$k" '{ print $1, $1 "_" k }' "$w/names" > "$w/names.$k"
    objcopy --redefine-syms="$w/names.$k" "$w/all.o" "$w/$k.o"
  done
  clang-19 -O2 -g -gdwarf-5 -fPIE -c "$w/main.c" -o "$w/main.o"
  "${link[@]}" "$w"/main.o $(seq -f "$w/%g.o" "$COPIES") -o "$2"; rm -r "$w"
}
clang_inputs() { # clang_inputs CLANG: two preprocessed files of clang, which it compiles
  local f s; s=$(source_of llvm-toolchain-19)
  for f in SemaOverload SemaTemplate; do
    [ -f "$dir/$f.ii" ] || "$1" -resource-dir "$(clang-19 -print-resource-dir)" $(llvm-config-19 --cppflags) -std=c++17 -fno-rtti -fno-exceptions -I"$s/clang/lib/Sema" -E "$s/clang/lib/Sema/$f.cpp" -o "$dir/$f.ii"
  done
}
lua_with() { local out=$1; shift; "$@" $(ls "$(source_of lua5.4)"/src/*.c | grep -v luac.c) -lm -ldl -o "$out"; }

for t in ${*:-sqlite lua exc}; do case $t in
  sqlite) sqlite_src
    sqlite_with "$bin/sqlite-pie" gcc -O2 -fPIE -pie $Q
    sqlite_with "$bin/sqlite-nopie" gcc -O2 -fno-pie -no-pie $Q ;;
  variants) sqlite_src
    sqlite_with "$bin/sqlite-static" gcc -O2 -fno-pie -no-pie -static $Q
    sqlite_with "$bin/sqlite-g" gcc -O2 -g -fPIE -pie $Q
    sqlite_with "$bin/sqlite-norelocs" gcc -O2 -fPIE -pie
    sqlite_with "$bin/sqlite-clang" clang-19 -O2 -fPIE -pie -fuse-ld=lld $Q
    strip -o "$bin/sqlite-stripped" "$bin/sqlite-norelocs"
    gcc -O2 -fPIC -shared $SQF "$src/sqlite/sqlite3.c" $Q -Wl,-soname,libsqlite3corpus.so -lm -o "$bin/libsqlite3corpus.so"
    gcc -O2 -fPIE -pie $SQF -I"$src/sqlite" "$src/sqlite/shell.c" $Q -L"$bin" -lsqlite3corpus -Wl,-rpath,'$ORIGIN' -lm -o "$bin/sqlite-dyn"
    lua_with "$bin/lua-static" gcc -O2 -fno-pie -no-pie -static -DLUA_USE_POSIX $Q
    lua_with "$bin/lua-clang" clang-19 -O2 -fPIE -pie -fuse-ld=lld -DLUA_USE_LINUX $Q
    clang++-19 -O2 -fPIE -pie -fuse-ld=lld $Q "$here/exc.cpp" -o "$bin/exc-clang"
    g++ -O2 -static $Q "$here/exc.cpp" -o "$bin/exc-static" ;;
  lua)  # its interpreter loop is a computed goto
    lua_with "$bin/lua" gcc -O2 -fPIE -pie -DLUA_USE_LINUX $Q ;;
  exc)  # C++ exceptions through many frames, cleanups, rethrow, virtual calls, a switch
    g++ -O2 -fPIE -pie $Q "$here/exc.cpp" -o "$bin/exc" ;;
  redis)
    s=$(source_of redis); [ -d "$src/redis-build" ] || cp -a "$s" "$src/redis-build"
    make -s -C "$src/redis-build" -j"$(nproc)" MALLOC=libc OPTIMIZATION=-O2 CFLAGS=-fPIE LDFLAGS="-pie $Q" DEBUG="" >/dev/null
    cp "$src"/redis-build/src/redis-{server,benchmark,cli} "$bin/" ;;
  rg)
    RUSTFLAGS="-C link-arg=$Q -C debuginfo=0" CARGO_TARGET_DIR=$src/rg-target cargo install -q ripgrep --version 14.1.1 --locked --root "$src/rg" && cp "$src/rg/bin/rg" "$bin/rg" ;;
  gawk)
    s=$(source_of gawk); [ -d "$src/gawk-build" ] || cp -a "$s" "$src/gawk-build"
    (cd "$src/gawk-build" && touch aclocal.m4 && sleep 1 && touch configure configh.in Makefile.in */Makefile.in && ./configure -q --disable-nls --disable-extensions --without-readline --without-mpfr CFLAGS="-O2 -fPIE" LDFLAGS="-pie $Q" >/dev/null && make -s -C support >/dev/null && make -s gawk >/dev/null)
    cp "$src/gawk-build/gawk" "$bin/" ;;
  bash|perl|vim)  # the newer of the two releases that releases.sh builds
    declare -A release=([bash]=5.2.15 [perl]=5.36.0 [vim]=9.0); "$here/releases.sh" "$dir" "$t-${release[$t]}" ;;
  tclsh)
    s=$(source_of tcl8.6); (cd "$s/unix" && ./configure -q --disable-shared CFLAGS="-O2 -fPIE" LDFLAGS="-pie $Q" >/dev/null && make -s -j"$(nproc)" tclsh >/dev/null); cp "$s/unix/tclsh" "$bin/" ;;
  tcc)  # it compiles sqlite
    sqlite_src; s=$(source_of tcc); (cd "$s" && ./configure >/dev/null && gcc -O2 -fPIE -pie $Q -DONE_SOURCE=1 -I. tcc.c -lm -ldl -lpthread -o "$bin/tcc") ;;
  cppcheck)  # C++: virtual calls, standard containers and strings
    s=$(source_of cppcheck); [ -d "$src/cppcheck-build" ] || cp -a "$s" "$src/cppcheck-build"
    make -s -C "$src/cppcheck-build" -j"$(nproc)" CXXFLAGS="-O2 -fPIE -DNDEBUG" LDFLAGS="-pie $Q" MATCHCOMPILER=yes FILESDIR="$src/cppcheck-build" cppcheck >/dev/null
    cp "$src/cppcheck-build/cppcheck" "$bin/" ;;
  clang)  # clang 19 from Debian's static archives: 260 MB, 58 MB of text
    s=$(source_of llvm-toolchain-19)/clang/tools/driver; o=$src/clang-build; mkdir -p "$o"; cfg=llvm-config-19; lib=$($cfg --libdir)
    cat > "$o/main.cpp" <<'X'
#include "llvm/ADT/ArrayRef.h"
#include "llvm/Support/InitLLVM.h"
#include "llvm/Support/LLVMDriver.h"
int clang_main(int argc, char **, const llvm::ToolContext &);
int main(int argc, char **argv) { llvm::InitLLVM x(argc, argv); return clang_main(argc, argv, {argv[0], nullptr, false}); }
X
    for f in "$s"/driver.cpp "$s"/cc1_main.cpp "$s"/cc1as_main.cpp "$s"/cc1gen_reproducer_main.cpp "$o/main.cpp"; do
      [ -f "$o/$(basename "$f" .cpp).o" ] || g++ $($cfg --cxxflags) -O2 -fno-rtti -fno-exceptions -fPIC -c "$f" -o "$o/$(basename "$f" .cpp).o"
    done
    cl=$(ls "$lib"/libclang*.a | grep -vE 'clang_rt|Tidy|Daemon|clangd|Pseudo|IncludeCleaner|IncludeFixer|Query|Move|Doc|ChangeNamespace|ReorderFields|ApplyRepl|FindAllSymbols|Interpreter')
    for kind in -no-pie -pie; do
      g++ $kind -fuse-ld=lld -B"$($cfg --bindir)" -Wl,--emit-relocs -Wl,--gc-sections -Wl,--build-id -L"$lib" -o "$bin/clang${kind}" "$o"/*.o \
        -Wl,--start-group $cl -Wl,--end-group $($cfg --link-static --libs all --system-libs) -lpthread -ldl -lm
    done
    clang_inputs "$bin/clang-no-pie" ;;
  debug) sqlite_src; d=$bin/debug; mkdir -p "$d"   # for cargo xtask bench debug; names say compiler and version; ONLY names those that are wanted
    is_there() { [ -f "$d/$1" ] || { [ -n "${ONLY:-}" ] && [[ " $ONLY " != *" $1 "* ]]; }; }
    for v in 4 5; do
      is_there "lua-gcc-$v" || lua_with "$d/lua-gcc-$v" gcc -O2 -g -gdwarf-$v -fPIE -pie -DLUA_USE_LINUX $Q
      is_there "lua-clang-$v" || lua_with "$d/lua-clang-$v" clang-19 -O2 -g -gdwarf-$v -fPIE -pie -fuse-ld=lld -DLUA_USE_LINUX $Q
      is_there "sqlite-gcc-$v" || sqlite_with "$d/sqlite-gcc-$v" gcc -O2 -g -gdwarf-$v -fPIE -pie $Q
      is_there "sqlite-clang-$v" || sqlite_with "$d/sqlite-clang-$v" clang-19 -O2 -g -gdwarf-$v -fPIE -pie -fuse-ld=lld $Q
    done
    is_there lua-clang-5-split || (cd "$d" && lua_with lua-clang-5-split clang-19 -O2 -g -gdwarf-5 -gsplit-dwarf -fPIE -pie -fuse-ld=lld -DLUA_USE_LINUX $Q)
    is_there rg-rustc || {   # the workload reads the sources of Lua and sqlite
      RUSTFLAGS="-C link-arg=$Q -C debuginfo=2" CARGO_TARGET_DIR=$src/rg-target-g cargo install -q ripgrep --version 14.1.1 --locked --root "$src/rg-g"
      source_of lua5.4 > /dev/null; cp "$src/rg-g/bin/rg" "$d/rg-rustc"; }
    is_there postlink-rustc || {
      RUSTFLAGS="-C link-arg=$Q" cargo build -q --manifest-path "$here/../../Cargo.toml" --release -p postlink --config profile.release.debug=2 --target-dir "$src/postlink-g"
      cp "$src/postlink-g/release/postlink" "$d/postlink-rustc"; }
    is_there postlink-rustc-lines || {   # lines and inlined functions
      RUSTFLAGS="-C link-arg=$Q" cargo build -q --manifest-path "$here/../../Cargo.toml" --release -p postlink --config profile.release.debug=1 --target-dir "$src/postlink-g1"
      cp "$src/postlink-g1/release/postlink" "$d/postlink-rustc-lines"; } ;;
  debug-large)  # likewise: C++ as large as clang. The objects of cppcheck are compiled once, and linked once, and many times with other names
    s=$(source_of cppcheck); d=$bin/debug-large o=$src/cppcheck-g; mkdir -p "$d" "$o"
    cpp=(clang++-19 -O2 -g -gdwarf-5 -fPIE -DNDEBUG -std=c++11 "-DFILESDIR=\"$s\"" -I"$s/lib" -I"$s/externals/simplecpp" -I"$s/externals/tinyxml2" -I"$s/externals/picojson")
    for f in "$s"/{lib,cli,externals/simplecpp,externals/tinyxml2}/*.cpp; do
      [ -f "$o/$(basename "$f" .cpp).o" ] || { "${cpp[@]}" -c "$f" -o "$o/part" && mv "$o/part" "$o/$(basename "$f" .cpp).o"; }
    done
    link=(clang++-19 -fuse-ld=lld -pie $Q)
    [ -f "$d/cppcheck-clang-5" ] || "${link[@]}" "$o"/*.o -o "$d/cppcheck-clang-5"
    [ -f "$d/cppcheck-x$COPIES" ] || copies "$o" "$d/cppcheck-x$COPIES" ;;
  debug-clang)  # clang 19 with -g; of LLVM's own libraries, Debian's without. Code of each file is generated twice: the second program has split debug information
    s=$(source_of llvm-toolchain-19); o=$src/clang-g; d=$bin/debug-large; cfg=llvm-config-19; mkdir -p "$d" "$o"
    cmake -G Ninja -S "$s/clang" -B "$o" -DLLVM_DIR="$($cfg --cmakedir)" -DCLANG_TABLEGEN="$($cfg --bindir)/clang-tblgen" -DCMAKE_BUILD_TYPE=None -DCMAKE_C_COMPILER=clang-19 -DCMAKE_CXX_COMPILER=clang++-19 \
      -DCMAKE_CXX_FLAGS="-O2 -g -gdwarf-5 -DNDEBUG -fPIC -fno-rtti" -DCMAKE_CXX_COMPILER_LAUNCHER="$here/twice.sh;$src/clang-g-split" -DLLVM_INCLUDE_TESTS=OFF -DCLANG_INCLUDE_TESTS=OFF \
      -DCLANG_ENABLE_STATIC_ANALYZER=OFF -DCLANG_ENABLE_ARCMT=OFF -DLLVM_LINK_LLVM_DYLIB=OFF -DCLANG_LINK_CLANG_DYLIB=OFF > /dev/null
    ninja -C "$o" clang > /dev/null
    for kind in "" -split; do
      (cd "$o$kind" && find . -name '*.o' | sort > objects)
      (cd "$o$kind" && clang++-19 -pie -fuse-ld=lld $Q -Wl,--gc-sections -Wl,--build-id -o "$d/clang-5$kind" @objects -L"$($cfg --libdir)" $($cfg --link-static --libs all --system-libs) -lpthread -ldl -lm)
    done; clang_inputs "$d/clang-5" ;;
  aarch64) sqlite_src; cc=aarch64-linux-gnu-gcc; a=$bin/aarch64   # run with: qemu-aarch64 -L /usr/aarch64-linux-gnu
    sqlite_with "$a/sqlite-pie" $cc -O2 -fPIE -pie $Q
    sqlite_with "$a/sqlite-static" $cc -O2 -fno-pie -no-pie -static $Q
    # With a fixed seed for its hashes: counts of one run are compared with the trace of another.
    lua_with "$a/lua-seeded" $cc -O2 -fPIE -pie -DLUA_USE_POSIX '-Dluai_makeseed(L)=42' $Q
    lua_with "$a/lua-seeded-static" $cc -O2 -fno-pie -no-pie -static -DLUA_USE_POSIX '-Dluai_makeseed(L)=42' $Q
    aarch64-linux-gnu-g++ -O2 -fPIE -pie $Q "$here/exc.cpp" -o "$a/exc" ;;
  aarch64-clang) sqlite_src; a=$bin/aarch64; with="--target=aarch64-linux-gnu -fuse-ld=lld -O2"
    sqlite_with "$a/sqlite-clang" clang-19 $with -fPIE -pie -mbranch-protection=standard $Q
    clang++-19 $with -static $Q "$here/exc.cpp" -o "$a/exc-clang-static" ;;
  *) echo "build.sh: no target '$t'" >&2; exit 2 ;;
esac; done
ls -l "$bin" "$bin/aarch64"
