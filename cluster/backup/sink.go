package backup

import (
	"context"
	"io"
)

// A Sink stores backups by name, for one cluster. [Directory] is one; package s3, which is a module
// of its own, has another. A name has 1 to 200 of A-Z a-z 0-9 . _ -, the first a letter or digit.
//
// A method must return soon after its context has ended. Methods may be called concurrently, by all
// nodes of the cluster.
type Sink interface {
	// Put stores all that content has under a new name, and returns when that survives a power cut.
	// If content returns an error, or Put does, nothing may be found under the name.
	Put(ctx context.Context, name string, content io.Reader) error
	// Open returns the content of a name.
	Open(ctx context.Context, name string) (io.ReadCloser, error)
	// List returns the sizes of all that is stored, in bytes, by name. It includes what was stored
	// before the call.
	List(ctx context.Context) (map[string]int64, error)
	// Remove removes a name. It returns nil if there is none.
	Remove(ctx context.Context, name string) error
}

// nameMax bounds the name of a backup in a sink, in bytes.
const nameMax = 200

// isName reports whether a sink must accept a name.
func isName(name string) bool {
	for i := range len(name) {
		c := name[i]
		isAlphanumeric := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !isAlphanumeric && (i == 0 || c != '.' && c != '_' && c != '-') {
			return false
		}
	}
	return name != "" && len(name) <= nameMax
}
