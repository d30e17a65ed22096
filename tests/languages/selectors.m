// Objective-C: tables of methods by selector, implementations that are compared, replaced and exchanged,
// categories, protocols, exceptions through methods, and messages that nobody implements.
#include <objc/runtime.h>
#include <objc/message.h>
#include <objc/objc-exception.h>
#include <stdio.h>
#include <stdlib.h>

@protocol Counts
- (int) count: (int) x;
@end

@interface Root { Class isa; @public int value; }
+ (id) make;
+ (void) load;
- (int) count: (int) x;
- (int) twice: (int) x;
- (int) fails: (int) x;
@end

static int loaded, cleaned;
@implementation Root
+ (void) load { loaded++; }
+ (id) make { return class_createInstance (self, 0); }
- (int) count: (int) x { value += x; return value & 255; }
- (int) twice: (int) x { return [self count: x] + [self count: x + 1]; }
- (int) fails: (int) x {
  @try {
    if (x % 5 == 0) @throw self;
    return x;
  } @finally {
    cleaned++;
  }
}
@end

@interface Leaf : Root <Counts>
@end
@implementation Leaf
- (int) count: (int) x { return [super count: x * 3] ^ x; }
@end
@interface Leaf (More)
- (int) more: (int) x;
@end
@implementation Leaf (More)
- (int) more: (int) x { switch (x % 6) { case 0: return [self twice: x]; case 1: return x * 7; case 2: return value; case 3: return [self count: 9]; case 4: return -x; default: return 3; } }
@end

static int replaced (id self, SEL selector, int x) { return x * 11 + ((Root *) self)->value; }

static int hot (Root *object, int n) {
  int sum = 0;
  for (int i = 0; i < n; i++) {
    sum = sum * 5 + [object count: i];
    @try { sum += [object fails: i]; }
    @catch (Root *caught) { sum += caught == object; }
  }
  return sum;
}

int main (void) {
  Root *root = [Root make];
  Leaf *leaf = [Leaf make];
  int sum = hot (root, 500) + hot (leaf, 500);
  SEL count = @selector (count:), twice = @selector (twice:);
  Class of_root = objc_getClass ("Root"), of_leaf = objc_getClass ("Leaf");
  // One implementation, one address: looked up, taken from the table, inherited.
  IMP first = class_getMethodImplementation (of_root, count), second = class_getMethodImplementation (of_leaf, count);
  int same = first == method_getImplementation (class_getInstanceMethod (of_root, count));
  same += first != second;
  same += class_getMethodImplementation (of_leaf, twice) == class_getMethodImplementation (of_root, twice);
  same += ((int (*) (id, SEL, int)) first) (root, count, 4) == (root->value & 255);
  for (int i = 0; i < 300; i++) sum = sum * 3 + [leaf more: i];
  // Exchanged, then replaced.
  method_exchangeImplementations (class_getInstanceMethod (of_root, count), class_getInstanceMethod (of_leaf, count));
  same += class_getMethodImplementation (of_leaf, count) == first;
  IMP old = class_replaceMethod (of_root, twice, (IMP) replaced, "i@:i");
  same += old != (IMP) replaced && class_getMethodImplementation (of_leaf, twice) == (IMP) replaced;
  for (int i = 0; i < 300; i++) sum = sum * 3 + [leaf twice: i];
  method_setImplementation (class_getInstanceMethod (of_root, twice), old);
  same += class_getMethodImplementation (of_leaf, twice) == old;
  printf ("sum=%d same=%d loaded=%d cleaned=%d conforms=%d responds=%d\n", sum, same, loaded, cleaned,
          class_conformsToProtocol (of_leaf, @protocol (Counts)), class_respondsToSelector (of_root, @selector (more:)));
  return 0;
}
