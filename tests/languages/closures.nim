import std/[tables, strutils, sequtils, algorithm]
type
  Shape = ref object of RootObj
  Circle = ref object of Shape
    r: int
  Square = ref object of Shape
    s: int
method area(x: Shape): int {.base.} = 0
method area(x: Circle): int = 3 * x.r * x.r
method area(x: Square): int = x.s * x.s
iterator count(n: int): int {.closure.} =
  var i = 0
  while i < n:
    yield i
    inc i
proc risky(i: int): int =
  if i mod 7 == 3: raise newException(ValueError, "bad " & $i)
  case i mod 6
  of 0: i
  of 1: i * 2
  of 2: i xor 3
  of 3: -i
  of 4: i div 2
  else: 99
var t = initTable[string, int]()
var total = 0
for i in 0 ..< 300:
  let s: Shape = if i mod 2 == 0: Circle(r: i) else: Square(s: i)
  total += s.area
  try: total += risky(i)
  except ValueError as e: total += e.msg.len
  finally: total += 1
  t[$(i mod 13)] = t.getOrDefault($(i mod 13)) + i
let f = proc (x: int): int = x + total mod 5
echo toSeq(count(5)).map(f), " ", total
var k = toSeq(t.keys)
k.sort(proc (a, b: string): int = cmp(t[a], t[b]))
echo k.join(","), " ", "abc".toUpperAscii
