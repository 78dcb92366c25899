package main

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
	"github.com/tenuto-dev/tenuto/replay/history"
	"github.com/tenuto-dev/tenuto/replay/replaytest"
)

// The histories in testdata come from the original code. In an application they would come
// from production.
func TestFirstRelease_Histories(t *testing.T) {
	env := replaytest.New(t, firstRelease(io.Discard)...)
	if _, err := replaytest.StartRun(env, Shipping, "waiting", Order{"waiting"}); err != nil {
		t.Fatal(err)
	}
	env.ExpectHistory("waiting", "testdata/waiting.json")

	run, err := replaytest.StartRun(env, Shipping, "before", Order{"before"})
	if err != nil {
		t.Fatal(err)
	}
	if err := replaytest.Send(env, "before", Packed, "box 7"); err != nil {
		t.Fatal(err)
	}
	if _, err := run.Wait(); err != nil {
		t.Error(err)
	}
	env.ExpectHistory("before", "testdata/before.json")
}

// Histories of orders that began with the patch or with version 2.
func TestLaterReleases_Histories(t *testing.T) {
	for id, release := range map[string][]replay.Definition{"patched": secondRelease(io.Discard), "rewritten": thirdRelease(io.Discard)} {
		t.Run(id, func(t *testing.T) {
			env := replaytest.New(t, release...)
			run, err := replaytest.StartRun(env, Shipping, id, Order{id})
			if err != nil {
				t.Fatal(err)
			}
			if err := replaytest.Send(env, id, Packed, "box 7"); err != nil {
				t.Fatal(err)
			}
			if _, err := run.Wait(); err != nil {
				t.Error(err)
			}
			env.ExpectCalls(CheckAddress, 1)
			env.ExpectHistory(id, "testdata/"+id+".json")
		})
	}
}

// Keep this test: today's code fits every recorded instance.
func TestThirdRelease_ReplaysRecordedHistories(t *testing.T) {
	replaytest.Replay(t, "testdata/*.json", thirdRelease(io.Discard)...)
}

// The same change without a patch.
func TestUnpatchedCode_StallsInstances(t *testing.T) {
	unpatched := Shipping.Bind(func(ctx *replay.Context, order Order) (string, error) {
		if _, err := Reserve.Call(ctx, order.ID); err != nil {
			return "", err
		}
		if _, err := CheckAddress.Call(ctx, order.ID); err != nil {
			return "", err
		}
		_, err := Packed.Wait(ctx)
		return "", err
	})
	registry, err := engine.NewRegistry(unpatched)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Open("testdata/waiting.json")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	waiting, err := history.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	var mismatch *replay.Mismatch
	if err := replaytest.Check(waiting, registry); !errors.As(err, &mismatch) {
		t.Fatalf("error %v", err)
	}
	if mismatch.EventID != 4 || !strings.Contains(mismatch.Expected, "packed") || !strings.Contains(mismatch.Found, "check address") {
		t.Error(mismatch)
	}
}

func TestRun(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), t.TempDir(), &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"release 1\n  reserve order-1\nrelease 2\n  reserve order-2\n  check the address of order-2\nrelease 3\n",
		"  ship order-1\n  ship order-2\n  ship order-3 in box 7\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}
