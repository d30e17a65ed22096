//# about: C++20 coroutines: functions whose frames live on the heap, resumed through pointers, with exceptions
//# flags: -std=c++20
//# build O3: -O3
//# build O0: -O0
#include <coroutine>
#include <cstdio>
#include <exception>
#include <stdexcept>

struct Generator {
  struct promise_type {
    long value = 0;
    std::exception_ptr error;
    Generator get_return_object() { return Generator{std::coroutine_handle<promise_type>::from_promise(*this)}; }
    std::suspend_always initial_suspend() { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    std::suspend_always yield_value(long v) { value = v; return {}; }
    void return_void() {}
    void unhandled_exception() { error = std::current_exception(); }
  };
  std::coroutine_handle<promise_type> handle;
  explicit Generator(std::coroutine_handle<promise_type> h) : handle(h) {}
  Generator(Generator &&other) : handle(other.handle) { other.handle = nullptr; }
  ~Generator() { if (handle) handle.destroy(); }
  bool next() {
    handle.resume();
    if (handle.promise().error) std::rethrow_exception(handle.promise().error);
    return !handle.done();
  }
};
static int live;
struct Guard { Guard() { live++; } ~Guard() { live--; } };

static Generator numbers(int n, int fail) {
  Guard guard;
  for (int i = 0; i < n; i++) {
    if (i == fail) throw std::runtime_error("stop");
    switch (i % 5) {
    case 0: co_yield i; break;
    case 1: co_yield i * 2; break;
    case 2: { Guard inner; co_yield i + 7; break; }
    case 3: break;
    default: co_yield -i;
    }
  }
}

int main(int argc, char **argv) {
  long sum = 0;
  int stopped = 0;
  for (int round = 0; round < 200; round++) {
    Generator generator = numbers(50, round % 80);
    try {
      while (generator.next()) sum += generator.handle.promise().value;
    } catch (const std::exception &) {
      stopped++;
    }
  }
  printf("%ld %d live=%d\n", sum, stopped, live);
  return live;
}
