// Package access is how the packages below cluster/ use a client beyond its exported methods.
// Programs cannot import it, so they cannot make a [Key].
package access
