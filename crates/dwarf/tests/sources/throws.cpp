// Exceptions, templates with functions as arguments, lambdas, destructors in cleanups.
#include <cstdio>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

static int add(int a, int b) { return a + b; }
static int mul(int a, int b) { return a * b; }

template <int (*Op)(int, int)> struct Fold {
    int state = 1;
    __attribute__((noinline)) int over(const std::vector<int> &v) {
        for (int x : v) state = Op(state, x);
        if (state < 0) throw std::runtime_error("negative: " + std::to_string(state));
        return state;
    }
};

struct Guard {
    const char *name;
    explicit Guard(const char *n) : name(n) {}
    ~Guard() { std::printf("leave %s\n", name); }
};

__attribute__((noinline)) int work(const std::vector<int> &v, std::map<std::string, int> &out) {
    Guard g("work");
    int total = 0;
    try {
        Guard inner("try");
        total += Fold<add>{}.over(v);
        total += Fold<mul>{}.over(v);
    } catch (const std::runtime_error &e) {
        out[e.what()]++;
        total = -1;
    }
    auto count = [&](int least) {
        int n = 0;
        for (int x : v) n += x >= least;
        return n;
    };
    out["big"] += count(3);
    return total;
}

int main() {
    std::map<std::string, int> out;
    int sum = 0;
    for (int i = -3; i < 4; i++) sum += work({i, 2, 5, i * i}, out);
    for (const auto &[k, n] : out) std::printf("%s %d\n", k.c_str(), n);
    std::printf("%d\n", sum);
}
