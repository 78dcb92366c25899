// Package usercode watches user code that actors run, and detects when it blocks.
//
// An instance's actor runs user code: orchestrations, queries, payload codecs, and the deferred
// functions of ended coroutines. All of it should return at once.
//
// It guarantees:
//
//  1. Code that has run for longer than a limit counts as blocked, at the latest after one and a
//     half times the limit. Its stack is logged then, and every 10 minutes.
//  2. The owner of blocked code decides whether the code is abandoned. After [Watchdog.Abandon],
//     [Watchdog.Leave] reports that it was.
//
// Goroutines of abandoned code do not end before the code returns.
package usercode
