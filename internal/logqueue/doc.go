// Package logqueue keeps a slow log handler from stopping a node.
//
// A handler is the user's code. It may block, for instance because its file is on the disk
// that hangs. So nobody who logs waits for it longer than a few milliseconds.
package logqueue
