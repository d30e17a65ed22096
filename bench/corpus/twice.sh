#!/usr/bin/env bash
# A compiler launcher: twice.sh SPLIT COMPILER ARGUMENT...    compiles a file once, and generates its code twice.
#
# The object file is where the arguments say; a second one, whose debug information is in a .dwo file beside it, has the
# same place below the folder SPLIT. The compiler is clang. What is no compilation to an object file is passed on as it is.
set -euo pipefail
split=$1; shift
out='' is_compilation=''
for ((i = 1; i < $#; i++)); do
  [ "${!i}" != -o ] || { at=$((i + 1)); out=${!at}; }
  [ "${!i}" != -c ] || is_compilation=yes
done
if [ -z "$is_compilation" ] || [[ $out != *.o ]]; then exec "$@"; fi
object=$(realpath -m --relative-to="$PWD" "$out"); apart=$split/${object%.o}; mkdir -p "$(dirname "$apart")"
code=("${out%.o}.bc"); arguments=("$@"); arguments[at - 1]=${code[0]}
"${arguments[@]}" -emit-llvm
generate=("$1" -O2 -fPIC -ffunction-sections -fdata-sections -Xclang -disable-llvm-passes -c "${code[0]}")
"${generate[@]}" -o "$out"
"${generate[@]}" -Xclang -split-dwarf-file -Xclang "$apart.dwo" -Xclang -split-dwarf-output -Xclang "$apart.dwo" -o "$apart.o"
rm "${code[0]}"
