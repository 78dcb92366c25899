package api

import (
	"encoding/json"

	"github.com/tenuto-dev/tenuto/replay"
)

// payloadMax is the size in bytes from which lists have no payload, but its size.
const payloadMax = 64 << 10

// payload is a payload as answers have it: one of the fields, or Truncated with Bytes.
type payload struct {
	JSON      json.RawMessage `json:"json,omitempty"`
	Redacted  bool            `json:"redacted,omitempty"`
	Truncated bool            `json:"truncated,omitempty"`
	Bytes     int             `json:"bytes,omitempty"`
	// Error says why the payload cannot be shown: it was encoded by a codec that the client lacks.
	Error string `json:"error,omitempty"`
}

// payloadOf returns the payload that decode stores; nil if there is none. whole shows also large
// ones.
func (a *API) payloadOf(info replay.PayloadInfo, whole bool, decode func(into any) error) *payload {
	var value json.RawMessage
	err := decode(&value)
	switch {
	case value == nil && err == nil:
		return nil
	case a.config.hides(info):
		return &payload{Redacted: true}
	case err != nil:
		return &payload{Error: err.Error()}
	case !whole && len(value) > payloadMax:
		return &payload{Truncated: true, Bytes: len(value)}
	}
	return &payload{JSON: value}
}

// valueOf returns a value that is JSON already.
func (a *API) valueOf(info replay.PayloadInfo, value json.RawMessage) *payload {
	return a.payloadOf(info, true, func(into any) error {
		*into.(*json.RawMessage) = value
		return nil
	})
}
