program classes;
{$mode objfpc}
uses SysUtils;
type
  TF = function(x: longint): longint;
  TM = function(x: longint): longint of object;
  IThing = interface function Name: string; end;
  TBase = class
    v: longint;
    constructor Create(a: longint);
    destructor Destroy; override;
    function Calc(x: longint): longint; virtual;
    class function Make(a: longint): TBase; virtual;
  end;
  TDerived = class(TBase) function Calc(x: longint): longint; override; end;
  TThing = class(TInterfacedObject, IThing) function Name: string; end;
var total: int64 = 0;
constructor TBase.Create(a: longint); begin v := a; end;
destructor TBase.Destroy; begin total := total + v; inherited; end;
function TBase.Calc(x: longint): longint; begin result := x + v; end;
class function TBase.Make(a: longint): TBase; begin result := Self.Create(a); end;
function TDerived.Calc(x: longint): longint; begin result := inherited Calc(x) * 3; end;
function TThing.Name: string; begin result := 'thing' + IntToStr(total mod 7); end;
function sq(x: longint): longint; begin result := x * x; end;
function cube(x: longint): longint; begin result := x * x * x; end;
function nested(n: longint): longint;
  function inner(k: longint): longint; begin if k = 0 then inner := n else inner := inner(k - 1) + 1; end;
begin nested := inner(5); end;
function pick(i: longint): longint;
begin
  case i mod 9 of
    0: pick := 11; 1: pick := 7 * i; 2: pick := i xor 5; 3: pick := -i; 4: pick := nested(i);
    5: pick := i shl 2; 6: raise Exception.Create('six ' + IntToStr(i)); 7: pick := i div 3; else pick := i;
  end;
end;
var f: array[0..1] of TF = (@sq, @cube); m: TM; i: longint; b: TBase; th: IThing; c: class of TBase;
begin
  for i := 0 to 200 do begin
    if odd(i) then c := TBase else c := TDerived;
    b := c.Make(i);
    m := @b.Calc;
    try
      total := total + f[i and 1](i) + m(i) + pick(i);
    except
      on e: Exception do total := total + length(e.Message);
    end;
    b.Free;
    th := TThing.Create;
    total := total + length(th.Name);
  end;
  try i := 0; total := total div i; except on e: EDivByZero do writeln('div: ', e.Message); end;
  writeln(total);
  WriteLn(Format('%d %s %.3f', [total mod 1000, 'x', total / 7]));
end.
