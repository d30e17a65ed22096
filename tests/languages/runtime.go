// Frames, stack maps and safe points are described by code address: goroutines, panics, garbage collection, stack growth, stack traces.
package main

import "C"
import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sort"
	"strings"
	"sync"
)

type Shape interface{ Area() int }
type Square struct{ a int }
type Circle struct{ r int }

func (s Square) Area() int  { return s.a * s.a }
func (c *Circle) Area() int { return 3 * c.r * c.r }

func grow(n int) int {
	var pad [64]int
	pad[n%64] = n
	if n == 0 {
		return 0
	}
	return grow(n-1) + pad[n%64] - n + 1
}

func safely(n int) (result int) {
	defer func() {
		if e := recover(); e != nil {
			result = len(fmt.Sprint(e))
		}
	}()
	var list []int
	if n%3 == 0 {
		return list[n]
	}
	if n%5 == 0 {
		panic(fmt.Sprintf("five %d", n))
	}
	return n
}

func main() {
	var wg sync.WaitGroup
	results := make([]int, 16)
	for i := range results {
		wg.Add(1)
		go func(i int) {
			defer wg.Done()
			m := map[string]int{}
			for j := 0; j < 2000; j++ {
				m[fmt.Sprintf("k%d", j%(50+i))] += j
			}
			results[i] = len(m) + grow(1000+i)
		}(i)
	}
	wg.Wait()
	runtime.GC()
	sum := 0
	for i := 1; i < 300; i++ {
		sum += safely(i)
		var s Shape = Square{i}
		if i%2 == 0 {
			s = &Circle{i}
		}
		sum += s.Area()
	}
	sort.Ints(results)
	trace := string(debug.Stack())
	fmt.Println(results, sum, strings.Contains(trace, "main.main"))
}
