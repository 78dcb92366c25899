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
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// codecCanary is in every value and every error of these tests.
const codecCanary = "canary-Zq7xW"

// sealingCodec encrypts under a fresh nonce each time.
type sealingCodec struct{ cipher.AEAD }

func newSealingCodec(t *testing.T) replay.PayloadConverter {
	t.Helper()
	block, err := aes.NewCipher(bytes.Repeat([]byte("k"), 16))
	if err != nil {
		t.Fatal(err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		t.Fatal(err)
	}
	return replay.PayloadConverter{Codec: sealingCodec{aead}}
}

func (s sealingCodec) Encode(data []byte) ([]byte, string, error) {
	return s.Seal(nil, nil, data, nil), "sealed", nil
}

func (s sealingCodec) Decode(data []byte, _ string) ([]byte, error) {
	return s.Open(nil, nil, data, nil)
}

var (
	secretOrchestration = replay.Orchestration[string, string]("secret")
	secretActivity      = replay.Activity[string, string]("secret work")
	secretAsyncActivity = replay.Activity[string, string]("secret ask")
	secretEvent         = replay.Event[string]("secret news")
	secretQuery         = replay.Query[string, string]("secret state")
	secretUpdate        = replay.Update[string, string]("secret set")
)

// secretDefinitions pass the canary to everything that records values.
func secretDefinitions(tokens chan<- string) []replay.Definition {
	return []replay.Definition{
		secretActivity.Bind(func(ctx context.Context, text string) (string, error) {
			if err := replay.Heartbeat(ctx, codecCanary+" details"); err != nil {
				return "", err
			}
			if replay.ActivityInfo(ctx).Number == 1 {
				return "", errors.New(codecCanary + " first attempt")
			}
			return text, nil
		}),
		secretAsyncActivity.Bind(func(ctx context.Context, _ string) (string, error) {
			tokens <- replay.ActivityInfo(ctx).Token()
			return "", replay.ErrResultPending
		}),
		secretOrchestration.Bind(func(ctx *replay.Context, text string) (string, error) {
			err := errors.Join(
				secretQuery.Handle(ctx, func(asked string) (string, error) { return asked + text, nil }),
				secretUpdate.Handle(ctx, nil, func(_ *replay.Context, to string) (string, error) { return to, errors.New(codecCanary + to) }),
				replay.SetStatus(ctx, codecCanary+" status"),
			)
			if err != nil {
				return "", err
			}
			if text, err = secretActivity.Call(ctx, text); err != nil {
				return "", err
			}
			news, err := secretEvent.Wait(ctx)
			if err != nil {
				return "", err
			}
			asked, err := secretAsyncActivity.Call(ctx, codecCanary)
			if err == nil {
				return text + news + asked, nil
			}
			return text + news, err
		}),
	}
}

// startWithCodec starts three nodes with a codec, and searches their traffic for the canary.
func startWithCodec(t *testing.T, tokens chan<- string) (nodes []*Node, dirs []string, seen *atomic.Bool) {
	t.Helper()
	seen = new(atomic.Bool)
	peers := loopbackPeers(t, 3)
	for i := range peers {
		config := peerConfig(t, peers, i, secretDefinitions(tokens)...)
		config.PayloadConverter = newSealingCodec(t)
		node := startNode(t, config)
		ask := node.ask
		node.ask = func(ctx context.Context, request *clusterpb.Request) *clusterpb.Response {
			response := ask(ctx, request)
			if containsCanary(request) || containsCanary(response) {
				seen.Store(true)
			}
			return response
		}
		nodes, dirs = append(nodes, node), append(dirs, config.Dir)
	}
	return nodes, dirs, seen
}

func containsCanary(m proto.Message) bool {
	encoded, err := proto.Marshal(m)
	return err != nil || bytes.Contains(encoded, []byte(codecCanary)) || strings.Contains(prototext.Format(m), codecCanary)
}

func TestCodec_HidesPayloadsOnDiskAndWire(t *testing.T) {
	t.Parallel()
	tokens := make(chan string, 10)
	nodes, dirs, seen := startWithCodec(t, tokens)
	ctx := testContext(t)
	for i, node := range nodes {
		useEveryCall(ctx, t, node.Client(), []string{"a", "b", "c"}[i], tokens)
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

// useEveryCall makes every call that a client has.
func useEveryCall(ctx context.Context, t *testing.T, client *Client, id string, tokens <-chan string) {
	t.Helper()
	run, err := StartRun(ctx, client, secretOrchestration, id, codecCanary+" input")
	if err != nil {
		t.Fatal(err)
	}
	if text, err := Query(ctx, client, id, secretQuery, codecCanary); err != nil || text != codecCanary+codecCanary+" input" {
		t.Errorf("query: %q, %v", text, err)
	}
	if text, err := CallUpdate(ctx, client, id, secretUpdate, codecCanary+" update"); err == nil || !strings.Contains(err.Error(), codecCanary+codecCanary+" update") {
		t.Errorf("update: %q, %v", text, err)
	}
	if err := Send(ctx, client, id, secretEvent, codecCanary+" news"); err != nil {
		t.Error(err)
	}
	token := <-tokens
	for range 2 {
		if err := FailActivity(ctx, client, token, replay.NonRetryable(errors.New(codecCanary+" rejected"))); err != nil {
			t.Errorf("fail activity: %v", err)
		}
	}
	if _, err := run.Wait(ctx); err == nil || !strings.Contains(err.Error(), codecCanary+" rejected") {
		t.Errorf("ended with %v", err)
	}
	status, err := client.Get(ctx, id)
	var customStatus string
	if err != nil || status.CustomStatus(&customStatus) != nil || customStatus != codecCanary+" status" {
		t.Errorf("published %q, %v", customStatus, err)
	}
	recorded, err := client.History(ctx, id)
	if err != nil || !strings.Contains(recorded.Events[0].String(), codecCanary) {
		t.Errorf("history: %v, %v", recorded, err)
	}
	var last error
	for event, err := range client.Watch(ctx, id, history.Position{}) {
		if err != nil {
			t.Fatal(err)
		}
		last = event.Err()
	}
	if last == nil || !strings.Contains(last.Error(), codecCanary+" rejected") {
		t.Errorf("the last event that was watched has the error %v", last)
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
		if bytes.Contains(data, []byte(codecCanary)) {
			t.Errorf("the canary is in %s", filepath.Base(path))
		}
		return err
	})
	if err != nil || files == 0 {
		t.Errorf("searched %d files: %v", files, err)
	}
}
