//! The programs and libraries, and what each is run on.
//!
//! A workload is a script for `sh`, run in an empty folder, with the file that is measured in its place below `$ROOT`,
//! where its packages were unpacked. `$INPUT` is a folder that `prepare` filled once. What a script prints is compared
//! between all states of the file, so it prints nothing that changes from run to run: no times, no process numbers.
//! Libraries below `$ROOT` are found first (`LD_LIBRARY_PATH`), unless the file is the C library itself.

/// What is measured.
#[derive(Debug)]
pub struct Entry {
    /// As given to `cargo xtask debian`.
    pub name: &'static str,
    /// Packages; the first has the file.
    pub packages: &'static [&'static str],
    /// The file in its package.
    pub file: &'static str,
    /// What it is run on, in a few words.
    pub what: &'static str,
    /// Fills `$INPUT`.
    pub prepare: &'static str,
    /// The workload.
    pub work: &'static str,
    /// A word of the refusal that is right for this file.
    pub refused: Option<&'static str>,
}

const fn entry(
    name: &'static str,
    packages: &'static [&'static str],
    file: &'static str,
    what: &'static str,
    scripts: (&'static str, &'static str),
) -> Entry {
    Entry {
        name,
        packages,
        file,
        what,
        prepare: scripts.0,
        work: scripts.1,
        refused: None,
    }
}

/// A text of some megabytes, the same each time.
const TEXT: &str = "seq 1 60000 | awk '{print \"line\", $1, ($1*7919)%10007, \"word\" ($1*31)%997, \"the quick brown fox\"}' > text\n";

/// All of them, in the order of the table.
pub const ALL: &[Entry] = &[
    entry(
        "bash",
        &["bash"],
        "bin/bash",
        "loops, strings, arrays, functions, patterns, subshells",
        (
            "",
            r#""$ROOT/bin/bash" -c '
fib() { local n=$1; if ((n < 2)); then r=$n; return; fi; fib $((n-1)); local a=$r; fib $((n-2)); r=$((r+a)); }
fib 16; echo $r
declare -A seen; for ((i = 0; i < 6000; i++)); do k=k$((i*7919%307)); seen[$k]=$((${seen[$k]:-0}+i)); done
for k in k1 k17 k300; do echo $k ${seen[$k]:-none}; done
s=; for w in {1..1500}; do s+="w$w,"; done; t=${s//,w1/;x}; echo ${#t} ${t:40:30}; IFS=, read -ra parts <<<"$s"; echo ${#parts[@]}
for ((i = 0; i < 3000; i++)); do case $i in *7) ((c++));; [1-3]*) ((d++));; *) [[ $i =~ ^4.*2$ ]] && ((e++));; esac; done; echo $c $d $e
for i in 1 2 3 4 5 6 7 8; do x=$(echo $i; trap "echo end $i" EXIT; (exit 3)); echo $x; done; printf "%05d|%-8s|%x\n" 42 ab 255; exit 7'"#,
        ),
    ),
    entry(
        "perl",
        &["perl-base"],
        "usr/bin/perl",
        "hashes, sorting, regular expressions, closures, sprintf, eval",
        (
            TEXT,
            r#"PERL5LIB="$ROOT/usr/lib/x86_64-linux-gnu/perl-base" "$ROOT/usr/bin/perl" -e '
my (%n, $sum); while (<>) { my @f = split; $n{$f[3]} += $f[2]; $sum += length if /wo.d[0-9]*7\b/; tr/a-z/A-Z/; $n{$1}++ if /(\d{3}) THE/; }
my @k = sort { $n{$b} <=> $n{$a} || $a cmp $b } keys %n; print "$_=$n{$_}\n" for @k[0..9]; print "$sum\n";
my @c = map { my $x = $_; sub { $x += shift } } 1..500; for my $r (1..60) { $_->($r) for @c } print $c[7]->(0), "\n";
my $e = 0; for (1..20000) { eval { die { code => $_ } if $_ % 3 == 0; 1 } or $e += $@->{code}; } print sprintf("%08.3f %s\n", $e / 7, join ",", reverse 1..9); exit 3' "$INPUT/text""#,
        ),
    ),
    entry(
        "python3.11",
        &[
            "python3.11-minimal",
            "libpython3.11-minimal",
            "libpython3.11-stdlib",
        ],
        "usr/bin/python3.11",
        "classes, generators, exceptions, JSON, regular expressions, large numbers",
        (
            "",
            r#"PYTHONHOME="$ROOT/usr" PYTHONHASHSEED=1 PYTHONDONTWRITEBYTECODE=1 "$ROOT/usr/bin/python3.11" -c '
import json, re, sys
class A:
    def __init__(s, x): s.x = x
    def __add__(s, o): return A((s.x * 31 + o.x) % 1000003)
def gen(n):
    for i in range(n): yield i, str(i)
t = A(1)
for i, s in gen(60000): t = t + A(i + len(s))
d = json.loads(json.dumps({str(k): [k, k * 1.5, None, "\u20ac%d" % k] for k in range(9000)}))
w = re.findall(r"(\w)(\d+)\b", " ".join("a%d b%d;" % (i, i * 7) for i in range(9000)))
e = 0
for i in range(40000):
    try:
        if i % 5 == 0: raise KeyError(i)
    except KeyError as x: e += x.args[0]
print(t.x, len(d), d["77"], len(w), e, pow(3, 20000) % 1000007, sorted(set(i * 7919 % 1009 for i in range(30000)))[-3:])
sys.exit(5)'"#,
        ),
    ),
    entry(
        "git",
        &["git"],
        "usr/bin/git",
        "a repository: 60 commits, log, diff, blame, grep, repack, fsck",
        (
            TEXT,
            r#"export GIT_EXEC_PATH="$ROOT/usr/lib/git-core" GIT_CONFIG_NOSYSTEM=1 HOME="$PWD" GIT_PAGER=cat
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b GIT_TEMPLATE_DIR=
git() { "$ROOT/usr/bin/git" "$@"; }
git init -q -b main r; cd r; head -3000 "$INPUT/text" > a; i=0
while [ $i -lt 60 ]; do i=$((i+1)); echo "change $i" >> a; echo $i > f$i; git add . && GIT_AUTHOR_DATE="@$((1600000000+i)) +0000" GIT_COMMITTER_DATE="@$((1600000000+i)) +0000" git commit -q -m "c $i"; done
git log --oneline --stat | tail -5; git diff HEAD~30 | sha1sum; git blame a | tail -2; git grep -c 'word7' | head -2; git repack -adq; git fsck 2>&1 | tail -1; git rev-parse HEAD; git cat-file -p nosuch 2>&1; echo $?"#,
        ),
    ),
    entry(
        "gdb",
        &["gdb"],
        "usr/bin/gdb",
        "functions, types, disassembly of a program, Python in it",
        (
            "printf 'struct s { int a; struct s *n; };\\nint f(int x) { struct s y = { x, 0 }; return y.a + 1; }\\nint main(void) { return f(1); }\\n' > a.c; gcc -g -O1 -o a a.c",
            r#"LC_ALL=C HOME=$PWD "$ROOT/usr/bin/gdb" -nx -q -batch -ex 'info functions ^f' -ex 'ptype struct s' -ex 'disassemble /s f' -ex 'info line main' -ex 'python for i in range(20000): gdb.parse_and_eval(str(i)+"*3")' -ex 'python print(gdb.lookup_type("struct s").fields()[1].name)' -ex 'print nosuch' "$INPUT/a" 2>&1"#,
        ),
    ),
    entry(
        "postgres",
        &["postgresql-15", "postgresql-client-15"],
        "usr/lib/postgresql/15/bin/postgres",
        "a server with four clients: inserts, joins, aggregates, PL/pgSQL",
        (
            "",
            r#"bin="$ROOT/usr/lib/postgresql/15/bin"
as() { if [ "$(id -u)" = 0 ]; then setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; else "$@"; fi; }
[ "$(id -u)" != 0 ] || chown 65534:65534 .
as "$bin/initdb" -D "$PWD/d" -A trust -U u --no-sync --no-locale -E UTF8 >/dev/null 2>err || { cat err; exit 9; }
as "$bin/pg_ctl" -D "$PWD/d" -w -l log -o "-k $PWD -c listen_addresses= -c fsync=off" start >/dev/null || { cat log; exit 9; }
q() { as "$bin/psql" -h "$PWD" -U u -d postgres -qAt "$@"; }
q -c "create table t(a int primary key, b int, c text); insert into t select i, i*7919%1009, md5(i::text) from generate_series(1,40000) i; create index on t(b); analyze t"
for k in 1 2 3 4; do q -o o$k -c "select count(*), sum(x.a), max(y.c) from t x join t y on x.b=y.b where x.a % 4 = $k-1 and y.a < 4000; select b, count(*), string_agg(left(c,1), '' order by a) from t group by b having b < 5 order by b" & w="$w $!"; done; for p in $w; do wait $p; done; cat o1 o2 o3 o4
q -c "do \$\$ declare s bigint := 0; begin for i in 1..60000 loop s := s + i % 7; if i % 30000 = 0 then begin perform 1/0; exception when division_by_zero then s := s + 1; end; end if; end loop; raise notice '%', s; end \$\$" 2>&1
q -c "select nosuch" 2>&1; as "$bin/pg_ctl" -D "$PWD/d" -m fast -w stop >/dev/null; echo $?"#,
        ),
    ),
    entry(
        "rg",
        &["ripgrep"],
        "usr/bin/rg",
        "patterns in a text and in the packages' own files",
        (
            TEXT,
            r#"r() { "$ROOT/usr/bin/rg" --no-config --sort path "$@"; }
r -c 'fox$' "$INPUT"; for p in 'w[o0]rd(7|11)\b' '(?i)LINE [0-9]*77 ' '\b(\d)\d\1\b' '[^a-z]{14,}' 'quick.*9{2}'; do r -N "$p" "$INPUT/text" | cksum; done
r -o -r '$1-$2' '(\d+) (word\d+)' "$INPUT/text" | cksum; r --json 'line 4242 ' "$INPUT/text" | grep -c match; r nosuchword "$INPUT"; echo $?; r '(' "$INPUT" 2>&1; echo $?"#,
        ),
    ),
    entry(
        "cc1",
        &["cpp-12"],
        "usr/lib/gcc/x86_64-linux-gnu/12/cc1",
        "a file of C at -O2",
        (
            r#"i=0; while [ $i -lt 60 ]; do i=$((i+1)); echo "struct s$i { int a[8]; double d; }; static int f$i(struct s$i *p, int n) { int s = 0; for (int i = 0; i < n; i++) { switch (p->a[i & 7] % 9) { case 0: s += i; break; case 1: s ^= 7; break; case 3: s -= $i; break; case 5: p->d *= s; break; default: if (s > n) return s; } } return s; } int g$i(struct s$i *p) { return f$i(p, 100) + f$i(p + 1, $i); }"; done > a.c"#,
            r#""$ROOT/usr/lib/gcc/x86_64-linux-gnu/12/cc1" -quiet -O2 "$INPUT/a.c" -o a.s; echo $?; cksum < a.s; echo 'int x = y;' > b.c; "$ROOT/usr/lib/gcc/x86_64-linux-gnu/12/cc1" -quiet b.c -o b.s 2>&1; echo $?"#,
        ),
    ),
    entry(
        "libsqlite3",
        &["libsqlite3-0", "sqlite3"],
        "usr/lib/x86_64-linux-gnu/libsqlite3.so.0.8.6",
        "inserts, an index, joins, JSON, full text",
        (
            "",
            r#""$ROOT/usr/bin/sqlite3" :memory: 2>&1 <<'X'
create table t(a integer primary key, b int, c text);
with recursive n(i) as (select 1 union all select i+1 from n where i < 60000) insert into t select i, i*7919%1009, printf('%d-%x', i, i*31) from n;
create index tb on t(b); select count(*), sum(x.a) from t x join t y on x.b = y.b where y.a < 900; select b, group_concat(substr(c,1,3)) from t where a < 300 group by b having count(*) > 1 limit 3;
select json_extract(json_group_array(json_object('k', a, 'v', c)), '$[77].v') from t where a < 5000; create virtual table f using fts5(x); insert into f select c || ' word' || (a % 17) from t where a < 5000; select count(*) from f where f match 'word7';
update t set b = b + 1 where a % 3 = 0; delete from t where a % 7 = 0; select sum(b), max(c) from t; select nosuch;
X
echo $?"#,
        ),
    ),
    entry(
        "libcrypto",
        &["libssl3", "openssl"],
        "usr/lib/x86_64-linux-gnu/libcrypto.so.3",
        "digests, ciphers, RSA and EC keys, signatures, certificates",
        (
            // How long it takes to find a key of RSA differs tenfold: it is made beforehand.
            r#"seq 1 60000 | awk '{print "line", $1, ($1*7919)%10007, "word" ($1*31)%997, "the quick brown fox"}' > text
OPENSSL_CONF=/dev/null "$ROOT/usr/bin/openssl" genrsa -out k 2048 2>/dev/null"#,
            r#"export OPENSSL_CONF=/dev/null OPENSSL_MODULES="$ROOT/usr/lib/x86_64-linux-gnu/ossl-modules"
o() { "$ROOT/usr/bin/openssl" "$@"; }
for d in sha256 sha512 sha3-256 blake2b512 md5; do o dgst -$d < "$INPUT/text"; done; for c in aes-256-cbc aes-128-ctr chacha20 camellia-128-cbc; do o enc -$c -K 00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff -iv 000102030405060708090a0b0c0d0e0f < "$INPUT/text" 2>&1 | cksum; done
cp "$INPUT/k" k; o rsa -in k -check -noout 2>&1; echo x > m; o dgst -sha256 -sign k -out s m; o rsa -in k -pubout -out p 2>/dev/null; o dgst -sha256 -verify p -signature s m; o ecparam -name prime256v1 -genkey -noout -out e; o req -new -x509 -key e -subj /CN=x -out c -days 2; o verify -CAfile c c; o x509 -in c -noout -subject; o base64 < "$INPUT/text" | cksum; o x509 -in m 2>/dev/null; echo $?"#,
        ),
    ),
    entry(
        "libc",
        &["libc6"],
        "lib/x86_64-linux-gnu/libc.so.6",
        "sort, awk, sed, tr by its own loader",
        (
            TEXT,
            r#"l() { p=$1; shift; "$ROOT/lib64/ld-linux-x86-64.so.2" --library-path "$ROOT/lib/x86_64-linux-gnu:/lib/x86_64-linux-gnu:/usr/lib/x86_64-linux-gnu" "$(command -v $p)" "$@"; }
export LC_ALL=C; l sort -k3n "$INPUT/text" | cksum; l sort -k4 -u "$INPUT/text" | cksum; l sed -E 's/(word)([0-9]+)/\2\1/;s/o+/0/g' "$INPUT/text" | cksum; l awk '{ n[$4] += $3; s = s + sqrt($3) } END { printf "%d %.6f %s\n", length(n), s, n["word7"] }' "$INPUT/text"; l grep -c -E 'w.*d7[0-9]+ ' "$INPUT/text"; l date -u -d @1700000000 '+%A %d %B %Y'; l ls /nosuch 2>&1; echo $?"#,
        ),
    ),
    entry(
        "libstdc++",
        &["libstdc++6", "groff-base"],
        "usr/lib/x86_64-linux-gnu/libstdc++.so.6.0.30",
        "a C++ program: streams, locales, strings, exceptions",
        (
            r#"cat > a.cpp <<'X'
#include <iostream>
#include <map>
#include <sstream>
#include <iomanip>
#include <stdexcept>
int main() { std::map<std::string, long> m; std::ostringstream o; long caught = 0;
 for (int i = 0; i < 60000; i++) { o.str(""); o << std::setw(9) << i << ' ' << i * 0.37 << ' ' << std::hex << i << std::dec; std::istringstream s(o.str()); int a; double b; std::string c; s >> a >> b >> c; m[c.substr(c.size() / 2)] += a;
  if (i % 20 == 0) try { std::stoi("x" + c); } catch (const std::invalid_argument &e) { caught += e.what()[0]; } }
 for (auto &x : m) if (x.second % 97 == 0) std::cout << x.first << '=' << x.second << '\n'; std::cout << caught << std::endl; return 3; }
X
g++ -O2 -o a a.cpp"#,
            r#""$INPUT/a"; echo $?"#,
        ),
    ),
    entry(
        "libpython3.11",
        &[
            "libpython3.11",
            "libpython3.11-minimal",
            "libpython3.11-stdlib",
        ],
        "usr/lib/x86_64-linux-gnu/libpython3.11.so.1.0",
        "a program that embeds it: classes, generators, JSON, exceptions",
        (
            r#"cat > a.c <<'X'
int Py_BytesMain(int, char **); int main(int n, char **v) { return Py_BytesMain(n, v); }
X
gcc -O1 -o a a.c "$ROOT/usr/lib/x86_64-linux-gnu/libpython3.11.so.1.0" -Wl,--allow-shlib-undefined"#,
            r#"PYTHONHOME="$ROOT/usr" PYTHONHASHSEED=1 PYTHONDONTWRITEBYTECODE=1 "$INPUT/a" -c '
import json
def gen(n):
    for i in range(n): yield i, str(i)
class A:
    def __init__(s, x): s.x = x
    def __lt__(s, o): return s.x < o.x
t = sum(len(s) * i for i, s in gen(90000)); l = sorted(A(i * 7919 % 10007) for i in range(8000)); d = json.loads(json.dumps({str(k): [k] * 3 for k in range(9000)})); e = 0
for i in range(40000):
    try: e += (1, 2)[i % 3]
    except IndexError: e += 5
print(t, l[5].x, len(d), e)'; echo $?"#,
        ),
    ),
    entry(
        "libavcodec",
        &["libavcodec59", "ffmpeg"],
        "usr/lib/x86_64-linux-gnu/libavcodec.so.59.37.100",
        "a film made, coded by four codecs and decoded",
        (
            "",
            r#"f() { "$ROOT/usr/bin/ffmpeg" -hide_banner -loglevel error -bitexact -threads 1 "$@" </dev/null; }
f -f lavfi -i testsrc=size=320x240:rate=25:duration=2 -threads 1 -c:v mpeg4 -flags +bitexact -fflags +bitexact a.avi; f -i a.avi -f framemd5 - | tail -2; f -i a.avi -threads 1 -c:v ffv1 -flags +bitexact b.avi; f -i b.avi -f framemd5 - | tail -1; f -i a.avi -threads 1 -c:v mjpeg -flags +bitexact c.avi; f -i c.avi -f framemd5 - | tail -1
f -f lavfi -i sine=frequency=440:duration=10 -c:a flac -flags +bitexact d.flac; f -i d.flac -c:a aac -flags +bitexact -f adts - | cksum; f -i /dev/null 2>&1 | tail -1; echo $?"#,
        ),
    ),
    entry(
        "libLLVM-19",
        &["libllvm19", "llvm-19"],
        "usr/lib/x86_64-linux-gnu/libLLVM.so.19.1",
        "opt -O2 and llc on a module",
        (
            r#"{ i=0; while [ $i -lt 80 ]; do i=$((i+1)); echo "define i32 @f$i(i32 %n) { entry: br label %l
l: %i = phi i32 [0, %entry], [%j, %l] %s = phi i32 [1, %entry], [%t, %l] %m = mul i32 %s, $i %t = xor i32 %m, %i %j = add i32 %i, 1 %c = icmp slt i32 %j, %n br i1 %c, label %l, label %e
e: ret i32 %t }"; done; } | sed 's/ %\(s\|m\|t\|j\|c\) =/\n%\1 =/g;s/ br i1/\nbr i1/;s/entry: br/entry:\nbr/;s/: %i/:\n%i/;s/: ret/:\nret/;s/{ entry/{\nentry/;s/%t }/%t\n}/' > a.ll"#,
            r#"b="$ROOT/usr/lib/llvm-19/bin"; "$b/opt" -O2 -S "$INPUT/a.ll" -o b.ll; cksum < b.ll; "$b/llc" -O2 b.ll -o b.s; echo $?; cksum < b.s; echo x | "$b/opt" -S 2>&1 | tail -2"#,
        ),
    ),
    entry(
        "busybox",
        &["busybox-static"],
        "bin/busybox",
        "ash, awk, sort, sed, gzip, sha256sum (static)",
        (
            TEXT,
            r#"b="$ROOT/bin/busybox"; $b sort -k3n "$INPUT/text" | $b cksum; $b awk '{n[$4]+=$3} END {for (k in n) if (n[k] % 101 == 0) print k, n[k]}' "$INPUT/text" | $b sort; $b sed -E 's/([a-z]+) ([0-9]+)/\2 \1/' "$INPUT/text" | $b sha256sum; $b gzip -c "$INPUT/text" | $b gunzip -c | $b md5sum
    $b ash -c 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); case $i in *7) c=$((c+i));; esac; done; echo $c'; $b grep -c 'word7[0-9]' "$INPUT/text"; $b ls /nosuch 2>&1; echo $?"#,
        ),
    ),
    entry(
        "fd",
        &["fd-find"],
        "usr/lib/cargo/bin/fd",
        "files below its own packages and /usr/share/doc, by patterns (Rust)",
        (
            "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); d=$((i%40))/$((i%7)); mkdir -p $d; : > $d/f$i.txt; done",
            r#"f() { "$ROOT/usr/lib/cargo/bin/fd" --no-config --color never -j 2 "$@"; }; f --version >/dev/null; f() { "$ROOT/usr/lib/cargo/bin/fd" --color never -j 2 "$@"; }
for p in 'f.*7' '^f1[0-9]+' '[13]\.txt$' '.'; do f "$p" "$INPUT" | sed "s|$INPUT||" | sort | cksum; done; f -e txt -x echo {/.} '' "$INPUT/3" | sort | head -3; f '(' 2>&1 | tail -1; echo $?"#,
        ),
    ),
    entry(
        "cmake",
        &["cmake", "cmake-data"],
        "usr/bin/cmake",
        "a script: lists, strings, expressions, JSON (a large C++ program)",
        (
            r#"cat > a.cmake <<'X'
set(l) 
foreach(i RANGE 1 3000)
  math(EXPR m "${i} * 7919 % 1009")
  list(APPEND l "v${m}")
  string(REGEX REPLACE "([0-9])([0-9])" "\\2-\\1" s "${i}x${m}")
  string(SHA1 h "${s}${h}")
endforeach()
list(SORT l)
list(REMOVE_DUPLICATES l)
list(LENGTH l n)
string(JSON j GET "{\"a\": [1, {\"b\": \"x\"}]}" a 1 b)
message("${n} ${h} ${j}")
function(f n out)
  if(n LESS 2)
    set(${out} ${n} PARENT_SCOPE)
  else()
    math(EXPR a "${n} - 1")
    math(EXPR b "${n} - 2")
    f(${a} x)
    f(${b} y)
    math(EXPR r "${x} + ${y}")
    set(${out} ${r} PARENT_SCOPE)
  endif()
endfunction()
f(15 r)
message("${r}")
message(FATAL_ERROR "the end")
X"#,
            r#"CMAKE_ROOT="$ROOT/usr/share/cmake-3.25" "$ROOT/usr/bin/cmake" -P "$INPUT/a.cmake" 2>&1 | sed "s|$INPUT||"; echo $?"#,
        ),
    ),
    entry(
        "redis",
        &["redis-server", "redis-tools"],
        "usr/bin/redis-check-rdb",
        "a server and clients: 40,000 commands, Lua, a dump",
        (
            "",
            r#"cp "$ROOT/usr/bin/redis-check-rdb" redis-server; ./redis-server --port 0 --unixsocket "$PWD/s" --save '' --daemonize no --loglevel warning >log 2>&1 & p=$!
i=0; while [ ! -S s ] && [ $i -lt 200 ]; do i=$((i+1)); sleep 0.05; done; c() { "$ROOT/usr/bin/redis-cli" -s "$PWD/s" "$@"; }
seq 1 20000 | awk '{print "SET k" $1 " v" $1*7; print "ZADD z " $1*7919%1009 " m" $1}' | c --pipe | tail -1; c get k77; c zrange z 0 3; c dbsize; c eval "local s = 0; for i = 1, 100000 do s = s + i % 7 end; return s" 0; c hset h a 1 b 2; c sort z by nosort limit 0 2; c debug digest 2>&1; c nosuch 2>&1; c config set dir "$PWD" ; c save; test -s dump.rdb; echo $?; c shutdown nosave; wait $p; echo $?"#,
        ),
    ),
    entry(
        "php",
        &["php8.2-cli", "php8.2-common"],
        "usr/bin/php8.2",
        "classes, arrays, exceptions, generators, regular expressions (a language's run-time)",
        (
            "",
            r#""$ROOT/usr/bin/php8.2" -n -r '
interface Shape { function area(): float; } final class Sq implements Shape { function __construct(private float $s) {} function area(): float { return $this->s ** 2; } }
function gen($n) { for ($i = 0; $i < $n; $i++) yield $i => "k" . $i * 7919 % 1009; } $n = []; foreach (gen(90000) as $i => $k) $n[$k] = ($n[$k] ?? 0) + $i; arsort($n); echo key($n), " ", count($n), "\n";
$s = 0; for ($i = 0; $i < 60000; $i++) { try { if ($i % 5 == 0) throw new DomainException((string)$i); $s += (new Sq($i))->area(); } catch (DomainException $e) { $s -= (int)$e->getMessage(); } finally { $s++; } } printf("%.1f\n", $s);
echo preg_match_all("/(\w)(\d+)\b/", implode(" ", array_map(fn($i) => "a$i", range(1, 20000)))), " ", md5(serialize($n)), "\n"; echo strlen(str_repeat(strrev("abc"), 999)), "\n"; exit(4);'; echo $?"#,
        ),
    ),
    entry(
        "sox",
        &["libsox3", "sox"],
        "usr/lib/x86_64-linux-gnu/libsox.so.3.0.0",
        "tones, filters, rates, statistics (multimedia)",
        (
            "",
            r#"s() { "$ROOT/usr/bin/sox" -R -V1 "$@"; }; s -n -r 44100 a.wav synth 6 sine 300-3300 synth 6 square amod 5; s a.wav -r 22050 b.wav rate -h; s b.wav c.wav reverb 40 echo 0.8 0.9 60 0.4; cksum < c.wav; s c.wav -n stat 2>&1 | head -12; s a.wav d.wav tempo 1.3 lowpass 900 compand 0.1,0.3 -60,-40,-10; cksum < d.wav; s nosuch.wav x.wav 2>&1; echo $?"#,
        ),
    ),
    entry(
        "ocamlopt",
        &["ocaml"],
        "usr/bin/ocamlopt.opt",
        "a module to assembly (OCaml)",
        (
            "{ i=0; while [ $i -lt 60 ]; do i=$((i+1)); echo \"type t$i = A of int | B of t$i list | C of string let rec f$i x = match x with A n when n > 3 -> n * $i | A n -> n | B l -> List.fold_left (fun a y -> a + f$i y) 0 l | C s -> String.length s let g$i l = List.sort compare (List.map (fun x -> try f$i x with Not_found -> 0) l)\"; done; } > a.ml",
            r#"cp "$INPUT/a.ml" .; OCAMLLIB="$ROOT/usr/lib/ocaml" "$ROOT/usr/bin/ocamlopt.opt" -S -stop-after emit -dstartup -c a.ml 2>&1; cksum < a.s 2>&1; echo 'let x = 1 + "a"' > b.ml; OCAMLLIB="$ROOT/usr/lib/ocaml" "$ROOT/usr/bin/ocamlopt.opt" -i b.ml 2>&1; echo $?"#,
        ),
    ),
    entry(
        "shellcheck",
        &["shellcheck"],
        "usr/bin/shellcheck",
        "a script of 200 lines (Haskell)",
        (
            "{ i=0; while [ $i -lt 60 ]; do i=$((i+1)); echo \"for f in \\$(ls *.txt); do echo \\$f | grep a$i && rm \\$f/x; [ \\$i == \\\"$i\\\" ] || cd dir$i; done\"; done; } > a.sh",
            r#""$ROOT/usr/bin/shellcheck" -s sh -f gcc "$INPUT/a.sh" | sed "s|$INPUT||" | cksum; "$ROOT/usr/bin/shellcheck" -s sh "$INPUT/a.sh" >/dev/null; echo $?"#,
        ),
    ),
    Entry {
        refused: Some("Go"),
        ..entry(
            "fzf",
            &["fzf"],
            "usr/bin/fzf",
            "a filter (Go)",
            ("", r#"seq 1 3000 | "$ROOT/usr/bin/fzf" -f 77 | cksum"#),
        )
    },
];

/// Looks entries up by name; all if none is named.
pub fn choose(names: &[String]) -> anyhow::Result<Vec<&'static Entry>> {
    if names.is_empty() {
        return Ok(ALL.iter().collect());
    }
    let find = |name: &String| {
        let found = ALL.iter().find(|entry| entry.name == name);
        found.ok_or_else(|| {
            let known: Vec<&str> = ALL.iter().map(|entry| entry.name).collect();
            anyhow::anyhow!("no program '{name}'; there are {}", known.join(", "))
        })
    };
    names.iter().map(find).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_unknown_ones_are_refused() {
        for (i, entry) in ALL.iter().enumerate() {
            assert!(ALL[..i].iter().all(|other| other.name != entry.name));
            assert!(!entry.packages.is_empty() && !entry.file.starts_with('/'));
        }
        let error = choose(&["nosuch".to_owned()]).unwrap_err().to_string();
        assert!(
            error.starts_with("no program 'nosuch'; there are bash, perl"),
            "{error}"
        );
    }
}
