#include <signal.h>
#include <unistd.h>
__attribute__((noinline)) int work(int n) { return n + (int)getpid(); }
int main(void) {
  int i, sum = 0;
  for (i = 0; i < 1000; i++) sum += work(i) & 1;
  kill(getpid(), SIGKILL);
  return sum;
}
