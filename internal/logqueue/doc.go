// Package logqueue keeps a slow log handler from stopping a node.
//
// A handler is user code. It may block, for example because its file is on a disk that hangs.
// Callers of the logger wait for the handler for at most 5 ms.
package logqueue
