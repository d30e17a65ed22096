#include <cstdio>
#include <stdexcept>
#include <vector>
#include <string>
template<class T> struct V { std::vector<T> v; void add(T t){ if (v.size()>3) throw std::runtime_error("full"); v.push_back(t);} };
static int same(int x){ return x+1; }
inline int inl(int x){ static int n; n+=x; return n; }
int ext(int);
struct D { int &c; ~D(){ c++; } };
int thrower(int x){ if(x>2) throw x; return x; }
int catcher(int x, int &c){ D d{c}; try { return thrower(x);} catch(int y){ return -y; } }
extern "C" int variadic(const char*f,...);
int main(){ V<int> a; V<std::string> b; int c=0; try{ for(int i=0;i<10;i++){ a.add(i);} }catch(std::exception&e){ puts(e.what()); } b.add("x");
 int s=0; for(int i=0;i<6;i++) s+=catcher(i,c); printf("%d %d %d %d\n",s,c,same(3)+inl(2),ext(4)); return variadic("ddf",1,2,3.5);}
