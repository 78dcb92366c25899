package engine_test

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
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// A KeyRing encrypts payloads with its current key, by AES-GCM, and decrypts those of every key it
// holds. The content type has the key's ID, which is authenticated with the data.
type KeyRing struct {
	current string
	keys    map[string]cipher.AEAD
}

const keyRingType = "aes-gcm/"

// Add adds a key of 16, 24 or 32 bytes, which encrypts payloads from now on. It must not be called
// after the ring is in use.
func (r *KeyRing) Add(id string, key []byte) error {
	block, err := aes.NewCipher(key)
	if err != nil {
		return err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block) // prepends the nonce
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

// newKey returns a key for this process only; real keys come from a secret store.
func newKey() []byte {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	return key
}

// Payloads are encrypted before they reach the journal, on every node with the same keys. Payloads
// of older keys remain readable while the ring holds the key, as do values recorded without a
// codec.
func ExamplePayloadConverter_codec() {
	ring := new(KeyRing)
	if err := ring.Add("2026-01", newKey()); err != nil {
		fmt.Println(err)
		return
	}
	payloads := engine.PayloadConverter{Codec: ring}
	info := replay.PayloadInfo{Kind: "activity", Name: "greet", Part: "input"}

	before, err := engine.Encode("plain")
	if err != nil {
		fmt.Println(err)
		return
	}
	older, err := payloads.Encode(info, "secret")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(older.ContentType, strings.Contains(string(older.Data), "secret"))
	if err := ring.Add("2026-02", newKey()); err != nil {
		fmt.Println(err)
		return
	}

	// Code of the registry uses the codec.
	greet := replay.Activity[string, string]("greet").Bind(func(_ context.Context, name string) (string, error) {
		return "Hello, " + name + "!", nil
	})
	registry, err := engine.NewRegistry(greet)
	if err != nil {
		fmt.Println(err)
		return
	}
	registry = registry.WithPayloadConverter(payloads)
	for _, input := range []*engine.Attempt{
		{Attempt: replay.Attempt{Name: "greet"}, Input: before},
		{Attempt: replay.Attempt{Name: "greet"}, Input: older},
	} {
		registry.RunActivity(context.Background(), input, func(output *journalpb.Payload, err error) {
			if err != nil {
				fmt.Println(err)
				return
			}
			var greeting string
			err = payloads.Decode(info, output, &greeting)
			fmt.Println(output.ContentType, greeting, err)
		})
	}
	// Output:
	// aes-gcm/2026-01 false
	// aes-gcm/2026-02 Hello, plain! <nil>
	// aes-gcm/2026-02 Hello, secret! <nil>
}
