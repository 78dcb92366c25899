package frame

import (
	"encoding/json"
	"fmt"
	"io"
)

// jsonBytesMax bounds a frame with a message.
const jsonBytesMax = 64 << 10

// WriteJSON writes a magic, which may be empty, and one frame with a message.
func WriteJSON(to io.Writer, magic string, message any) error {
	encoded, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if len(encoded) > jsonBytesMax {
		return fmt.Errorf("message of %d bytes exceeds the limit of %d", len(encoded), jsonBytesMax)
	}
	w := NewWriter(to)
	w.Bytes([]byte(magic))
	w.Frame(encoded)
	return w.err
}

// ReadJSON reads one frame with a message, and no byte after it.
func ReadJSON(from io.Reader, into any) error {
	encoded, err := NewReader(from).Frame(jsonBytesMax)
	if err != nil {
		return err
	}
	return json.Unmarshal(encoded, into)
}
