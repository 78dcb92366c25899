package cluster

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// canary is in every value and every error of these tests.
const canary = "canary-Zq7xW"

// sealing encrypts under a fresh nonce each time.
type sealing struct{ cipher.AEAD }

func newSealing(t *testing.T) replay.Payloads {
	t.Helper()
	block, err := aes.NewCipher(bytes.Repeat([]byte("k"), 16))
	if err != nil {
		t.Fatal(err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		t.Fatal(err)
	}
	return replay.Payloads{Codec: sealing{aead}}
}

func (s sealing) Encode(data []byte) ([]byte, string, error) {
	return s.Seal(nil, nil, data, nil), "sealed", nil
}

func (s sealing) Decode(data []byte, _ string) ([]byte, error) { return s.Open(nil, nil, data, nil) }

var (
	secret      = replay.Orchestration[string, string]("secret")
	secretWork  = replay.Activity[string, string]("secret work")
	secretAsk   = replay.Activity[string, string]("secret ask")
	secretNews  = replay.Event[string]("secret news")
	secretState = replay.Query[string, string]("secret state")
	secretSet   = replay.Update[string, string]("secret set")
)

// secretDefinitions hand the canary to everything that records something.
func secretDefinitions(tokens chan<- string) []replay.Definition {
	return []replay.Definition{
		secretWork.Bind(func(ctx context.Context, text string) (string, error) {
			if err := replay.Heartbeat(ctx, canary+" details"); err != nil {
				return "", err
			}
			if replay.ActivityInfo(ctx).Number == 1 {
				return "", errors.New(canary + " first attempt")
			}
			return text, nil
		}),
		secretAsk.Bind(func(ctx context.Context, _ string) (string, error) {
			tokens <- replay.ActivityInfo(ctx).Token()
			return "", replay.ErrPending
		}),
		secret.Bind(func(ctx *replay.Context, text string) (string, error) {
			err := errors.Join(
				secretState.Answer(ctx, func(asked string) (string, error) { return asked + text, nil }),
				secretSet.Handle(ctx, nil, func(_ *replay.Context, to string) (string, error) { return to, errors.New(canary + to) }),
				replay.SetStatus(ctx, canary+" status"),
			)
			if err != nil {
				return "", err
			}
			if text, err = secretWork.Call(ctx, text); err != nil {
				return "", err
			}
			news, err := secretNews.Wait(ctx)
			if err != nil {
				return "", err
			}
			asked, err := secretAsk.Call(ctx, canary)
			if err == nil {
				return text + news + asked, nil
			}
			return text + news, err
		}),
	}
}

// startSecretly starts three nodes with a codec; what they send each other is
// searched for the canary.
func startSecretly(t *testing.T, tokens chan<- string) (nodes []*Node, dirs []string, seen *atomic.Bool) {
	t.Helper()
	seen = new(atomic.Bool)
	peers := loopbackPeers(t, 3)
	for i := range peers {
		config := peerConfig(t, peers, i, secretDefinitions(tokens)...)
		config.Payloads = newSealing(t)
		node := startNode(t, config)
		ask := node.ask
		node.ask = func(ctx context.Context, request *clusterpb.Request) *clusterpb.Response {
			response := ask(ctx, request)
			if betrays(request) || betrays(response) {
				seen.Store(true)
			}
			return response
		}
		nodes, dirs = append(nodes, node), append(dirs, config.Dir)
	}
	return nodes, dirs, seen
}

func betrays(m proto.Message) bool {
	encoded, err := proto.Marshal(m)
	return err != nil || bytes.Contains(encoded, []byte(canary)) || strings.Contains(prototext.Format(m), canary)
}

func TestWithACodecNothingOfUsersIsOnDiskOrOnTheWire(t *testing.T) {
	tokens := make(chan string, 10)
	nodes, dirs, seen := startSecretly(t, tokens)
	ctx := testContext(t)
	for i, node := range nodes {
		useSecretly(ctx, t, node.Client(), []string{"a", "b", "c"}[i], tokens)
	}
	if seen.Load() {
		t.Error("the canary was on the wire")
	}
	for _, node := range nodes {
		if err := node.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, dir := range dirs {
		searchFiles(t, dir)
	}
}

// useSecretly calls whatever a client can.
func useSecretly(ctx context.Context, t *testing.T, client *Client, id string, tokens <-chan string) {
	t.Helper()
	run, err := StartRun(ctx, client, secret, id, canary+" input")
	if err != nil {
		t.Fatal(err)
	}
	if text, err := Query(ctx, client, id, secretState, canary); err != nil || text != canary+canary+" input" {
		t.Errorf("query: %q, %v", text, err)
	}
	if text, err := CallUpdate(ctx, client, id, secretSet, canary+" update"); err == nil || !strings.Contains(err.Error(), canary+canary+" update") {
		t.Errorf("update: %q, %v", text, err)
	}
	if err := Send(ctx, client, id, secretNews, canary+" news"); err != nil {
		t.Error(err)
	}
	token := <-tokens
	for range 2 {
		if err := FailActivity(ctx, client, token, replay.NonRetryable(errors.New(canary+" refused"))); err != nil {
			t.Errorf("fail activity: %v", err)
		}
	}
	if _, err := run.Wait(ctx); err == nil || !strings.Contains(err.Error(), canary+" refused") {
		t.Errorf("ended with %v", err)
	}
	status, err := client.Get(ctx, id)
	var published string
	if err != nil || status.Published(&published) != nil || published != canary+" status" {
		t.Errorf("published %q, %v", published, err)
	}
	history, err := client.History(ctx, id)
	if err != nil || !strings.Contains(string(history.Events[0].GetOrchestrationStarted().GetInput().GetData()), canary) {
		t.Errorf("history: %v, %v", history, err)
	}
	var last *journalpb.Event
	for recorded, err := range client.Watch(ctx, id, Position{}) {
		if err != nil {
			t.Fatal(err)
		}
		last = recorded.Event
	}
	if failed := last.GetOrchestrationFailed(); failed == nil || !betrays(failed) {
		t.Errorf("the last event that was watched: %v", last)
	}
}

// searchFiles looks for the canary in every file.
func searchFiles(t *testing.T, dir string) {
	t.Helper()
	files := 0
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		files++
		data, err := os.ReadFile(path)
		if bytes.Contains(data, []byte(canary)) {
			t.Errorf("the canary is in %s", filepath.Base(path))
		}
		return err
	})
	if err != nil || files == 0 {
		t.Errorf("searched %d files: %v", files, err)
	}
}
