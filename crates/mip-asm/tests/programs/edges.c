/* Calls in a known proportion: heavy 90 %, light 9 %, and a hundred that share 1 %. */
typedef int (*function)(int);
#define LEAF(n) __attribute__((noinline)) static int leaf##n(int x) { return x + n; }
LEAF(0) LEAF(1) LEAF(2) LEAF(3) LEAF(4) LEAF(5) LEAF(6) LEAF(7) LEAF(8) LEAF(9)
static const function leaves[] = {leaf0, leaf1, leaf2, leaf3, leaf4, leaf5, leaf6, leaf7, leaf8, leaf9};
__attribute__((noinline)) int heavy(int x) { return x ^ 1; }
__attribute__((noinline)) int light(int x) { return x ^ 2; }
int main(void) {
  volatile int sum = 0;
  int i;
  for (i = 0; i < 1000000; i++) {
    sum += i % 100 < 90 ? heavy(i) : i % 100 < 99 ? light(i) : leaves[i / 100 % 10](i);
  }
  return 0;
}
