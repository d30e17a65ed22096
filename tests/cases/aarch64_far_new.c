//# about: AArch64: so much code that runs that its copy is itself more than branches reach: veneers within new code
//# kinds: aarch64-gcc-pie
//# flags: -O2
//# with: aarch64_far_new_part.S
//# link: -Wl,-x
//# stdout: 289 2
//# moved: main step_0 step_13 step_143
//# count step_0: 2
//# count step_13: 1
//# count step_143: 3
#include <stdio.h>

#define TEN(f, t) f(t##0) f(t##1) f(t##2) f(t##3) f(t##4) f(t##5) f(t##6) f(t##7) f(t##8) f(t##9)
#define ALL(f) TEN(f, 1) TEN(f, 2) TEN(f, 3) TEN(f, 4) TEN(f, 5) TEN(f, 6) TEN(f, 7) TEN(f, 8) TEN(f, 9) \
    TEN(f, 10) TEN(f, 11) TEN(f, 12) TEN(f, 13) f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7) f(8) f(9) f(140) f(141) f(142) f(143)
#define DECLARE(n) long step_##n(long x);
#define CALL(n) sum += step_##n(1);
ALL(DECLARE)
long (*last)(long) = step_143, (*first)(long) = step_0;

int main(int argc, char **argv) {
    long sum = 0;
    ALL(CALL)
    // 14 of 144 call another one.
    sum -= 14;
    sum += last(first(0)) - 2 == argc;
    printf("%ld %d\n", sum, argc + 1);
    return 0;
}
