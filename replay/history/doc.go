// Package history writes the history of an execution as text and reads it back:
// to look at it, to compare two, and to keep it in testdata and have code
// replay it (see package replaytest).
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
// An event is the JSON form that protobuf defines for tenuto.journal.v1.Event
// (proto/journalpb/journal.proto): fields in lowerCamelCase and in the order of
// their numbers, those with the zero value left out, 64-bit numbers as strings,
// times in Unix nanoseconds. There is one difference, so that people can read
// it: a payload that is plain compact JSON is written as {"json": value}. One
// that is not, or that a codec has encoded, is {"data": base64, "contentType":
// text}, as in protobuf.
//
// The package guarantees:
//
//  1. The same history is always the same bytes.
//  2. What was written reads back equal, and what was read is written as
//     an equal history.
//  3. Spaces and line breaks between values mean nothing: a file that a tool has
//     laid out anew reads the same.
//  4. A field that this build does not know is an error, never left out.
//
// What may not be assumed: that a history that was read fits together. Replaying
// it tells.
package history
