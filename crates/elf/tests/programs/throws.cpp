// Throws through frames with clean-ups and catches by type.
#include <cstdio>
#include <stdexcept>
#include <string>

struct Noisy {
    const char *name;
    ~Noisy() { std::printf("gone: %s\n", name); }
};

__attribute__((noinline)) int deep(int n) {
    Noisy noisy{"deep"};
    if (n == 0)
        throw std::runtime_error("bottom");
    if (n < 0)
        throw n;
    return deep(n - 1) + 1;
}

int main(int argc, char **) {
    for (int n : {2, -1}) {
        try {
            Noisy noisy{"main"};
            std::printf("%d\n", deep(n + argc - 1));
        } catch (const std::exception &e) {
            std::printf("caught %s\n", e.what());
        } catch (int i) {
            std::printf("caught %d\n", i);
        }
    }
}
