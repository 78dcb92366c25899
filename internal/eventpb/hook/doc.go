// Package hook passes the conversions of package history, which imports it, to package eventpb. It
// imports neither, so its variables have no type of theirs.
package hook
