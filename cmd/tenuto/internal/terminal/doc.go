// Package terminal reports whether a file is a terminal.
package terminal
