//# about: C++20: coroutines that throw, pointers to virtual members with virtual bases, std::function, dense switches that throw, std::sort with a lambda
//# flags: -std=c++20
#include <coroutine>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <typeinfo>
#include <vector>
#include <algorithm>
template <class T> struct Gen { struct promise_type { T v; Gen get_return_object() { return {std::coroutine_handle<promise_type>::from_promise(*this)}; } std::suspend_always initial_suspend() { return {}; } std::suspend_always final_suspend() noexcept { return {}; } void unhandled_exception() { throw; } std::suspend_always yield_value(T x) { v = x; return {}; } void return_void() {} }; std::coroutine_handle<promise_type> h; ~Gen() { if (h) h.destroy(); } Gen(std::coroutine_handle<promise_type> h) : h(h) {} Gen(Gen &&o) : h(o.h) { o.h = {}; } bool next() { h.resume(); return !h.done(); } T get() { return h.promise().v; } };
Gen<int> numbers(int n) { for (int i = 0; i < n; i++) { if (i == 77) throw std::runtime_error("seventy-seven"); co_yield i * i; } }
struct R { virtual ~R() {} virtual int f(int x) { return x; } int r = 1; };
struct L : virtual R { int f(int x) override { return x + l; } int l = 2; virtual int g(int x) { return x * l; } };
struct M : virtual R { int m = 3; virtual int h(int x) { return x - m; } };
struct D : L, M { int f(int x) override { return L::f(x) * 2; } int g(int x) override { return h(x) + 1; } };
typedef int (L::*PL)(int);
unsigned long H = 9;
void mix(unsigned long v) { H = (H ^ v) * 1099511628211ul; }
int sw(int i) { switch (i % 11) { case 0: return 5; case 1: return i * 3; case 2: throw i; case 3: return -i; case 4: throw std::string("four"); case 5: return i / 3; case 6: return i ^ 77; case 7: return i << 2; case 8: return 88; case 9: throw std::out_of_range("nine"); default: return i; } }
int main(int argc, char **argv) {
  D d; L l; std::vector<L *> ls{&d, &l}; PL ps[] = {&L::f, &L::g};
  std::map<std::string, std::function<int(int)>> fs{{"a", [](int x) { return x + 1; }}, {"b", [&d](int x) { return d.h(x); }}, {"c", std::bind(&L::g, &l, std::placeholders::_1)}};
  for (int i = 0; i < 400; i++) {
    mix((ls[i & 1]->*ps[(i >> 1) & 1])(i));
    for (auto &[n, f] : fs) mix(f(i) + n[0]);
    try { mix(sw(i)); } catch (int v) { mix(v); } catch (const std::string &s) { mix(s.size()); } catch (const std::exception &e) { mix(e.what()[0]); }
  }
  try { auto g = numbers(100); while (g.next()) mix(g.get()); } catch (const std::exception &e) { std::puts(e.what()); }
  R *r = &d; mix(dynamic_cast<M *>(r) != nullptr); std::printf("%s %lx\n", typeid(*r).name(), H);
  std::vector<int> v(1000); for (int i = 0; i < 1000; i++) v[i] = i * 7919 % 1000; std::sort(v.begin(), v.end(), [](int a, int b) { return a % 100 < b % 100 || (a % 100 == b % 100 && a > b); }); for (int x : v) mix(x); std::printf("%lx\n", H);
  return 0;
}
