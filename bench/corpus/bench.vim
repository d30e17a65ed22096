" An editor's work without a terminal: text, registers, substitution, search, sorting, undo, and its language.
" N=500 vim -u NONE -i NONE -n -es -S bench.vim
let n = str2nr(empty($N) ? '500' : $N)

function Gcd(a, b)
  let [a, b] = [a:a, a:b]
  while b
    let [a, b] = [b, a % b]
  endwhile
  return a
endfunction

function Fields(line)
  let seen = {}
  for word in split(a:line, '\W\+')
    let seen[word] = get(seen, word, 0) + 1
  endfor
  return len(seen) . ':' . join(sort(keys(seen)), ',')
endfunction

for i in range(1, n)
  call append('$', printf('item_%d = call%d(%s, "text %x", [%d, %d]); // %s', i, Gcd(i * 7919 % 1009, 360), repeat('a', i % 13), i * 31, i % 7, i % 11, i % 3 ? 'keep' : 'drop'))
endfor
1delete
let counts = map(getline(1, '$'), 'Fields(v:val)')
silent %s/\v<item_(\d+)> \= (call\d+)/\2 <- item[\1]/
silent g/drop$/s/"\(text\) \(\x\+\)"/\=toupper(submatch(2)) . submatch(1)/
silent g/\v\[(\d), \1\]/m0
silent v/aaa/normal! A tail
silent %normal! wdwPf(ci(none
silent sort n /item\[/
let found = 0
call cursor(1, 1)
while search('\vcall(\d)\1?>.{-}keep', 'W')
  let found += 1
endwhile
silent 1,$-1g/keep/normal! ddp
silent undo
set shiftwidth=2 cindent
silent %normal! >>
silent normal! gg=G
let text = join(map(filter(getline(1, '$'), 'v:val =~# "tail"'), 'substitute(v:val, "\\s\\+", " ", "g")'), "\n")
let total = 0
for i in range(n * 4)
  if i % 3 == 0 || (i > 10 && i % 5 == 1)
    let total += i * 2 - strlen(string(i))
  elseif counts[i % n] =~ '^1'
    let total -= 1
  endif
endfor
call writefile([found . ' ' . len(text) . ' ' . total . ' ' . line('$') . ' ' . getline(n / 2)], '/dev/stdout')
qall!
