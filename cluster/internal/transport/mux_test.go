package transport

import (
	"bytes"
	"testing"
)

func FuzzReadPreamble(f *testing.F) {
	f.Add([]byte(PreambleMagic + "r"))
	f.Add([]byte(PreambleMagic + "c and more"))
	f.Add([]byte("\x16\x03\x01\x02\x00\x01"))
	f.Fuzz(func(t *testing.T, sent []byte) {
		from := bytes.NewReader(sent)
		found, err := readPreamble(from)
		trusted := bytes.HasPrefix(sent, []byte(PreambleMagic+"r")) || bytes.HasPrefix(sent, []byte(PreambleMagic+"c"))
		if trusted != (err == nil) {
			t.Fatalf("%q: %v, %v", sent, found, err)
		}
		if trusted && (byte(found.purpose) != sent[len(PreambleMagic)] || from.Len() != len(sent)-len(PreambleMagic)-1) {
			t.Errorf("%q: %v, %d bytes left", sent, found, from.Len())
		}
	})
}

func FuzzPurposeOf(f *testing.F) {
	f.Add("tenuto-raft/1")
	f.Add("h2")
	f.Fuzz(func(t *testing.T, protocol string) {
		if got, err := purposeOf(protocol); err == nil && alpnNames[got] != protocol {
			t.Errorf("%q: %q", protocol, got)
		}
	})
}
