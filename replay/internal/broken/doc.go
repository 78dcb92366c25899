// Package broken holds orchestrations with deliberate mistakes, one each, that authors commonly
// make. The tests of replaytest and of the analyzer run against them. replay/docs/determinism.md
// says which tool finds which mistake.
package broken
