/* The library of tls. */
__thread int library_tls = 5;
static __thread int own;
int library_bump(int n) { own += n; return own + library_tls; }
