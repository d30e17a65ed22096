// Delegates, closures, classes, interfaces, exceptions, the garbage collector, a function looked up by type.
import std.stdio, std.algorithm, std.range, std.conv, core.memory, core.thread;

interface Shape { int area(); }
class Square : Shape { int a; this(int a) { this.a = a; } int area() { return a * a; } }
class Circle : Shape { int r; this(int r) { this.r = r; } int area() { return 3 * r * r; } }

int delegate(int) adder(int n) { return (int x) => x + n; }

int risky(int n)
{
    if (n % 7 == 0) throw new Exception("seven " ~ n.to!string);
    if (n % 5 == 0) throw new Error("five");
    return n;
}

void main()
{
    long sum = 0;
    foreach (i; 1 .. 2000)
    {
        Shape s = i % 2 ? cast(Shape) new Square(i % 50) : new Circle(i % 40);
        sum += s.area() + adder(i)(3);
        if (auto q = cast(Square) s) sum += q.a;
        try sum += risky(i);
        catch (Exception e) sum += e.msg.length;
        catch (Error e) sum += 1;
    }
    GC.collect();
    int[string] words;
    foreach (i; 0 .. 5000) words[((i * 7919) % 211).to!string]++;
    int function(int) f = (int x) => x * 2;
    auto t = new Thread({ foreach (i; 0 .. 100) sum += f(i); });
    t.start();
    t.join();
    writeln(sum, " ", words.length, " ", iota(100).filter!(x => x % 3 == 0).map!(x => x * x).sum);
}
