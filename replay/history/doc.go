// Package history holds the events of executions, as clients of a cluster and package replaytest
// return them. It writes the history of an execution as text and reads it back, to inspect it, to
// compare two, and to keep it in testdata for replay tests (see package replaytest).
//
// # The format
//
// A history is one JSON document with one event a line:
//
//	{"format":"tenuto.history/1","instance":"order-17","execution":1,"events":[
//	{"eventId":"1","timestamp":"1767225600000000000","orchestrationStarted":{"name":"checkout","input":{"json":{"item":"book"}}}},
//	{"eventId":"2","timestamp":"1767225600000000000","activityScheduled":{"name":"charge","input":{"json":"book"}}}
//	]}
//
// An event is the protobuf JSON form of tenuto.journal.v1.Event (proto/journalpb/journal.proto):
// fields in lowerCamelCase, in the order of their numbers, without zero values; 64-bit numbers as
// strings, times in Unix nanoseconds. There is one difference, for readability: a payload that is
// plain compact JSON is written as {"json": value}. Any other payload, including those encoded by a
// codec, is {"data": base64, "contentType": text}, as in protobuf.
//
// The package guarantees:
//
//  1. The same history is always written as the same bytes.
//  2. Reading a written history returns an equal history.
//  3. White space between values is ignored: a reformatted file reads the same.
//  4. A field that this build does not know is an error, never omitted.
//
// Callers must not assume that a history that was read is consistent. Replay checks that.
package history
