// Package jsontext finds text that encoding/json would silently change, because it is not UTF-8.
//
// # Guarantees
//
//  1. Every string that encoding/json writes itself is examined.
//
// # What may not be assumed
//
//   - That strings are examined that a marshaler of the value writes, or that are nested deeper
//     than 1,000 levels.
package jsontext
