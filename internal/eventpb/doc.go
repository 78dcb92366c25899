// Package eventpb converts between history.Event, which users see, and its protobuf form. It is
// internal so that the exported API names no protobuf type.
package eventpb
