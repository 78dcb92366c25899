// Package logqueue keeps a slow log handler from stopping a node.
//
// A handler is user code. It may block, for example because its file is on a disk that hangs.
// Callers of the logger wait for it no longer than a few milliseconds.
package logqueue
