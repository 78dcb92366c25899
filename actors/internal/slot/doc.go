// Package slot runs the bodies of attempts in the slots of a node.
//
// It guarantees:
//
//  1. At most [Config].Max bodies run at once, and of each name at most its limit.
//  2. A slot that becomes free takes the next waiting attempt, in the order of the sources.
//  3. A body that panics or ends its goroutine frees its slot.
//
// A body that ignores its context keeps its slot, because goroutines cannot be ended.
package slot
