// Package house holds only tests. They read the repository as text and check the rules of
// CONTRIBUTING.md that a compiler does not check.
package house
