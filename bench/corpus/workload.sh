#!/usr/bin/env bash
# Runs a corpus program on its workload: workload.sh NAME PROGRAM [DIR]    (NAME: sqlite lua exc redis rg gawk cppcheck clang bash perl vim tclsh tcc)
# Standard output is the program's own, for comparing runs; DIR is the one given to build.sh. RUNNER may hold an
# emulator or a checker, N makes the work longer or shorter.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd); name=$1 prog=$(realpath "$2") dir=${3:-}
case $name in
  sqlite) exec ${RUNNER:-} "$prog" :memory: < <(sed "s/500000/${N:-500000}/" "$here/bench.sql") ;;
  lua)    exec ${RUNNER:-} "$prog" "$here/bench.lua" "${N:-5}" ;;
  exc)    exec ${RUNNER:-} "$prog" "${N:-3000000}" ;;
  rg)     exec ${RUNNER:-} "$prog" -j1 --no-config -c --sort path -e '[a-z]+_[a-z]+\s*=\s*[0-9]+' -e '(\w+)::(\w+)<(\w+)>' -e '(?i)\b\w+\s+\w+\([^)]*\)\s*const\b' "$dir/src/sqlite" "$dir"/src/sqlite3-* "$dir"/src/lua5.4-* ;;
  gawk)   exec ${RUNNER:-} "$prog" -v n="${N:-200000}" 'BEGIN { for (i = 1; i <= n; i++) { k = "k" (i * 7919 % 1009); c[k] += i; s = s substr(k, 2, 1); if (k ~ /^k[0-9]*7$/) t += gsub(/7/, "x", k); u = u < length(k) ? u : split(k, p, "x") } m = asorti(c, d); for (i = 1; i <= m; i += 97) printf "%s %d\n", d[i], c[d[i]]; print length(s), t, u, toupper(substr(s, 1, 20)), sprintf("%08.3f", sqrt(n)) }' ;;
  cppcheck) exec ${RUNNER:-} "$prog" -q --enable=all --output-file=/dev/stdout "$dir"/src/lua5.4-*/src/"${N:-lvm}.c" ;;
  clang)  exec ${RUNNER:-} "$prog" -O2 -std=c++17 -w -fno-rtti -fno-exceptions -c "$dir/SemaOverload.ii" -o /dev/null ;;
  bash)   exec ${RUNNER:-} "$prog" --norc "$here/bench.bash" "${N:-3000}" ;;
  perl)   PERL_HASH_SEED=0 exec ${RUNNER:-} "$prog" "$here/bench.pl" "${N:-30000}" ;;
  vim)    N=${N:-500} exec ${RUNNER:-} "$prog" -u NONE -i NONE -n -es -S "$here/bench.vim" ;;
  tclsh)  TCL_LIBRARY=$(echo "$dir"/src/tcl8.6-*/library) exec ${RUNNER:-} "$prog" "$here/bench.tcl" "${N:-200000}" ;;
  tcc)    d=$(mktemp -d); trap 'rm -rf "$d"' EXIT   # tcc removes the file that it is to write, so it is not given /dev/null
          ${RUNNER:-} "$prog" -nostdinc -I"$(echo "$dir"/src/tcc-*/include)" -I/usr/include/x86_64-linux-gnu -I/usr/include -w -c "$dir/src/sqlite/sqlite3.c" -o "$d/o"
          cksum < "$d/o" ;;
  redis)  d=$(mktemp -d); ${RUNNER:-} "$prog" --port 0 --unixsocket "$d/s" --save '' --appendonly no --dir "$d" --io-threads 1 >/dev/null & pid=$!
          for _ in $(seq 600); do [ -S "$d/s" ] && break; sleep 0.05; done
          "$dir/bin/redis-benchmark" -s "$d/s" -c 20 -r 50000 -q -P 16 -n "${N:-400000}" -t set,get,incr,lpush,rpush,lpop,rpop,sadd,hset,spop,zadd,zpopmin,mset >/dev/null
          # Processor time of the server alone, in ticks of 10 ms, for who wants it.
          if [ -n "${CPU_OUT:-}" ]; then awk '{ print $14 + $15 }' "/proc/$pid/stat" > "$CPU_OUT"; fi
          "$dir/bin/redis-cli" -s "$d/s" shutdown nosave; wait $pid; rm -rf "$d" ;;
  *) echo "workload.sh: no workload '$name'" >&2; exit 2 ;;
esac
