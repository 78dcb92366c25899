package replay_test

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// A KeyRing encrypts payloads with its current key, by AES-GCM, and decrypts
// those of every key that it still has. The key's ID stands in the content type,
// which is authenticated with the data.
type KeyRing struct {
	current string
	keys    map[string]cipher.AEAD
}

const keyRingType = "aes-gcm/"

// Add adds a key of 16, 24 or 32 bytes, with which payloads are encrypted from
// now on. It must not be called once the ring is in use.
func (r *KeyRing) Add(id string, key []byte) error {
	block, err := aes.NewCipher(key)
	if err != nil {
		return err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block) // the nonce goes in front
	if err != nil {
		return err
	}
	if r.keys == nil {
		r.keys = make(map[string]cipher.AEAD)
	}
	r.current, r.keys[id] = id, aead
	return nil
}

func (r *KeyRing) Encode(data []byte) ([]byte, string, error) {
	aead, ok := r.keys[r.current]
	if !ok {
		return nil, "", errors.New("the key ring is empty")
	}
	contentType := keyRingType + r.current
	return aead.Seal(nil, nil, data, []byte(contentType)), contentType, nil
}

func (r *KeyRing) Decode(encoded []byte, contentType string) ([]byte, error) {
	id, ok := strings.CutPrefix(contentType, keyRingType)
	if !ok {
		return nil, errors.New("not encrypted by a key ring")
	}
	aead, ok := r.keys[id]
	if !ok {
		return nil, fmt.Errorf("no key %q", id)
	}
	return aead.Open(nil, nil, encoded, []byte(contentType))
}

// newKey returns a key that is lost with the process; a real one comes from
// where secrets are kept.
func newKey() []byte {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	return key
}

// Payloads are encrypted before they reach the journal, on every node with the
// same keys. What an older key has encrypted stays readable while the ring has
// it, and so does what was recorded before there was a codec.
func ExampleCodec() {
	ring := new(KeyRing)
	if err := ring.Add("2026-01", newKey()); err != nil {
		fmt.Println(err)
		return
	}
	payloads := replay.Payloads{Codec: ring}
	of := replay.PayloadOf{Kind: "activity", Name: "greet", Part: "input"}

	before, err := replay.Encode("plain")
	if err != nil {
		fmt.Println(err)
		return
	}
	older, err := payloads.Encode(of, "secret")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(older.ContentType, strings.Contains(string(older.Data), "secret"))
	if err := ring.Add("2026-02", newKey()); err != nil {
		fmt.Println(err)
		return
	}

	// The registry has its code run with it.
	registry, err := replay.NewRegistry(Greet.Bind(greet), Hello.Bind(helloWorld))
	if err != nil {
		fmt.Println(err)
		return
	}
	registry = registry.WithPayloads(payloads)
	for _, input := range []*replay.Attempt{{Name: "greet", Input: before}, {Name: "greet", Input: older}} {
		registry.Run(context.Background(), input, func(output *journalpb.Payload, err error) {
			if err != nil {
				fmt.Println(err)
				return
			}
			var greeting string
			err = payloads.Decode(of, output, &greeting)
			fmt.Println(output.ContentType, greeting, err)
		})
	}
	// Output:
	// aes-gcm/2026-01 false
	// aes-gcm/2026-02 Hello, plain! <nil>
	// aes-gcm/2026-02 Hello, secret! <nil>
}
