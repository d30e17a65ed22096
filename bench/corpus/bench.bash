# A shell's work without other programs: functions, arrays, expansions, patterns, arithmetic, input and output.
# bash bench.bash [N]
n=${1:-3000}
declare -A counts
list=()

gcd() { local a=$1 b=$2; while ((b)); do ((t = a % b, a = b, b = t)); done; result=$a; }

classify() {
  case $1 in
    *[!0-9]*) kind=word ;;
    *0 | *5) kind=fives ;;
    [0-9]) kind=digit ;;
    *) kind=number ;;
  esac
}

fib() { if (($1 < 2)); then echo "$1"; else local x=$1; echo $(($(fib $((x - 1))) + $(fib $((x - 2))))); fi; }

for ((i = 1; i <= n; i++)); do
  gcd $((i * 7919 % 1009)) 360
  counts[$result]=$((${counts[$result]:-0} + 1))
  classify "$i"; ((counts[$kind]++))
  word="item-$i-${result}"
  list+=("${word//[0-4]/x}")
  if [[ $word =~ ^item-([0-9]+)-([0-9]+)$ && ${BASH_REMATCH[1]} -eq $i ]]; then ((matched++)); fi
  if [ "${word#item-}" != "$word" ] && [ ${#word} -gt 9 ]; then long=$((long + 1)); fi
  printf -v line '%05d:%-12s:%x' "$i" "${word^^}" "$result"
  text+=${line:0:4}
done

while IFS=: read -r a b c; do
  set -- $b
  sum=$((sum + 10#$a)); last=${c%%[[:space:]]*}; words=$((words + $#))
done < <(for w in "${list[@]}"; do echo "${#w}:$w two  three:${w##*-} end"; done)

# Sorts by insertion.
sorted=()
for w in "${list[@]:0:150}"; do
  for ((j = ${#sorted[@]}; j > 0; j--)); do
    [[ ${sorted[j - 1]} > $w ]] || break
    sorted[j]=${sorted[j - 1]}
  done
  sorted[j]=$w
done

for key in "${!counts[@]}"; do echo "$key ${counts[$key]}"; done
trap 'echo bye' EXIT
echo "${sorted[0]} ${sorted[-1]} $sum $words $last $matched $long ${#text} $(fib 7)"
