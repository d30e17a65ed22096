//# about: DT_INIT and DT_FINI of one's own, beside arrays
//# link: -Wl,-init,own_init -Wl,-fini,own_fini
//# not static: there is no dynamic section
//# not static-pie: start-up code does not look at DT_INIT
//# stdout: init
//# stdout: array
//# stdout: main
//# stdout: fini
#include <stdio.h>
#include <unistd.h>

static void say(const char *text, int n) { if (write(1, text, n) != n) _exit(8); }
void own_init(void) { say("init\n", 5); }
void own_fini(void) { say("fini\n", 5); }
__attribute__((constructor)) static void array(void) { say("array\n", 6); }

int main(int argc, char **argv) {
  say("main\n", 5);
  return 0;
}
