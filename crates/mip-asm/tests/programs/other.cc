#include <cstdarg>
#include <cstdio>
inline int inl(int x){ static int n; n+=x; return n; }
static int same(int x){ return x*7; }
int ext(int x){ return same(x)+inl(x); }
extern "C" int variadic(const char*f,...){ va_list a; va_start(a,f); double t=0; for(;*f;f++) t+= *f=='d'? va_arg(a,int):va_arg(a,double); va_end(a); printf("%g\n",t); return 0;}
