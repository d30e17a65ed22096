//# about: pointers to member functions of a polymorphic class: their lowest bit says whether the function is virtual, so a function at an odd address would be taken for an offset in a table
//# flags: -std=c++17
//# stdout: 31 members, sum 22560, 2 of them virtual, 3 removed
//# build odd: -Os -falign-functions=1
#include <cstdio>
#include <cstddef>
#include <functional>
#include <list>

struct S {
    int v;
    explicit S(int x) : v(x) {}
    virtual ~S() {}
    virtual int g1(int a) { return v + a; }
    virtual int g2(int a) { return v * 2 + a; }
#define M(n, ...) __attribute__((noinline)) int f##n(int a) { int r = v + n; __VA_ARGS__; return r; }
    // Bodies of many lengths, so that some of those that follow lie at odd addresses where nothing aligns them.
    M(1, r += a)
    M(2, r -= a; r ^= 3)
    M(3, r *= a + 1)
    M(4, r |= 64; r += a)
    M(5, r += a * a)
    M(6, r ^= a << 3)
    M(7, r += a; r *= 5; r ^= 1025)
    M(8, if (a & 1) r++)
    M(9, if (a & 2) r += v)
    M(10, r = r / (a + 1))
    M(11, for (int i = 0; i < (a & 7); i++) r += i * v)
    M(12, r += 0x12345)
    M(13, r -= 77; r += a; r &= 0xffff)
    M(14, r = a ? r : -r)
    M(15, r += (a * 3) ^ v)
    M(16, r <<= 1)
    M(17, r += a; r >>= 1)
    M(18, r = (r * 41 + a) & 1023)
    M(19, r ^= v * a)
    M(20, r += v; r += a; r += 1)
    M(21, r--)
    M(22, r = ~r)
    M(23, r += 1000000 / (a + 7))
    M(24, r = r * r)
    M(25, r &= 31; r += a)
    M(26, if (r > a) r -= a; else r += a)
    M(27, r = r % (a + 3))
    M(28, r += a & v)
    M(29, r += a | v)
};

struct T : S {
    using S::S;
    int g1(int a) override { return v - a; }
    int g2(int a) override { return v ^ a; }
};

struct Bare {
    int value;
    __attribute__((noinline)) bool odd() const { return value & 1; }
    __attribute__((noinline)) bool big() const { return value > 100; }
};

typedef int (S::*Member)(int);

static const Member table[] = {
    &S::f1, &S::f2, &S::f3, &S::f4, &S::f5, &S::f6, &S::f7, &S::f8, &S::f9, &S::f10, &S::f11,
    &S::f12, &S::f13, &S::f14, &S::f15, &S::f16, &S::f17, &S::f18, &S::f19, &S::f20, &S::f21,
    &S::f22, &S::f23, &S::f24, &S::f25, &S::f26, &S::f27, &S::f28, &S::f29, &S::g1, &S::g2,
};

__attribute__((noinline)) Member pick(int i) { return table[i % 31]; }

/* Formed by instructions, not by a table. */
__attribute__((noinline)) Member choose(int i) {
    switch (i) {
    case 0: return &S::f7;
    case 1: return &S::f12;
    case 2: return &S::g2;
    default: return &S::f8;
    }
}

int main(int argc, char **) {
    S s(argc + 6);
    T t(argc + 2);
    long sum = 0;
    int virtual_ones = 0;
    for (int i = 0; i < 31 * 8; i++) {
        Member m = pick(i);
        sum += (s.*m)(i & 31) & 255;
        sum += (t.*m)(i & 7) & 63;
        virtual_ones += m == &S::g1 || m == &S::g2;
    }
    for (int i = 0; i < 4; i++)
        sum += (t.*choose(i))(i) & 15;
    std::list<Bare> list;
    for (int i = 0; i < 6; i++)
        list.push_back(Bare{i * 30 + (i & 1)});
    size_t before = list.size();
    list.remove_if(std::mem_fn(&Bare::odd));
    printf("31 members, sum %ld, %d of them virtual, %d removed\n", sum, virtual_ones / 8, (int)(before - list.size()));
    return 0;
}
