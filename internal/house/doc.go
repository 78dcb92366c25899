// Package house holds nothing but tests: they read the repository as text and
// hold it to the rules of CONTRIBUTING.md that no compiler knows.
package house
