//# about: virtual calls with thunks (multiple and virtual bases), member pointers, casts at run time
//# build O3: -O3
//# build norelro: -Wl,-z,norelro
#include <cstdio>
#include <memory>
#include <typeinfo>
#include <vector>

struct Shape { virtual ~Shape() {} virtual long area() const = 0; virtual Shape *self() { return this; } };
struct Named { long salt = 7; virtual ~Named() {} virtual long name() const { return salt; } };
struct Root { long r = 11; virtual ~Root() {} virtual long root() { return r; } };
struct Left : virtual Root { long root() override { return r + 1; } };
struct Right : virtual Root { virtual long right() { return r * 2; } };
struct Square : Named, Shape {
  long side;
  explicit Square(long s) : side(s) {}
  long area() const override { return side * side; }
  long name() const override { return side + salt; }
  Square *self() override { return this; }
};
struct Diamond : Left, Right, Shape {
  long d;
  explicit Diamond(long x) : d(x) {}
  long area() const override { return d * r; }
  long right() override { return d - r; }
};
struct Line : Shape { long area() const override { return 0; } };

__attribute__((noinline, noipa)) static long total(const std::vector<std::unique_ptr<Shape>> &all, long (Shape::*method)() const) {
  long sum = 0;
  for (auto &shape : all) {
    sum += (shape.get()->*method)();
    if (auto *named = dynamic_cast<Named *>(shape->self())) sum += named->name() * 3;
    if (auto *root = dynamic_cast<Right *>(shape.get())) sum += root->right() + root->root();
    if (typeid(*shape) == typeid(Line)) sum += 5;
  }
  return sum;
}

int main(int argc, char **argv) {
  std::vector<std::unique_ptr<Shape>> all;
  for (int i = 0; i < 3000; i++) {
    if (i % 3 == 0) all.emplace_back(new Square(i));
    else if (i % 3 == 1) all.emplace_back(new Diamond(i));
    else all.emplace_back(new Line);
  }
  printf("%ld\n", total(all, &Shape::area));
  long (Named::*name)() const = &Named::name, (Named::*other)() const = &Named::name;
  printf("%d\n", name == other);
  return 0;
}
