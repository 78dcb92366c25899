// Package broken holds orchestrations with deliberate mistakes, one each, that authors commonly
// make. The tests of replaytest and of the analyzer run against them. DESIGN.md of package
// replaytest lists which tool detects which mistake.
package broken
