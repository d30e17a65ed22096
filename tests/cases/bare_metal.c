//# about: a static program without libc, start files and dynamic section: its own _start, raw system calls
//# not aarch64: written for x86-64
//# kinds: gcc-static clang-static gcc-static-pie
//# flags: -nostdlib -ffreestanding -fno-stack-protector -mno-sse
//# exit: 21
//# stdout: bare
static long call(long number, long a, long b, long c) {
  long r;
  __asm__ volatile("syscall" : "=a"(r) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
  return r;
}
__attribute__((noinline)) static int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
__attribute__((used)) static void begin(long *stack) {
  call(1, 1, (long)"bare\n", 5);
  call(60, stack[0] == 1 ? fib(8) : 99, 0, 0);
  __builtin_unreachable();
}
__asm__(".globl _start\n_start: xor %ebp, %ebp\n mov %rsp, %rdi\n and $-16, %rsp\n call begin\n hlt\n");
