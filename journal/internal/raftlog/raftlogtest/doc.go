// Package raftlogtest has entries, images of directories, and failing writes for tests of the log.
package raftlogtest
