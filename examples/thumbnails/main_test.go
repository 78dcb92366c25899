package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/replaytest"
)

func newAlbum(photos, atOnce int) Album {
	album := Album{AtOnce: atOnce}
	for i := range photos {
		album.Photos = append(album.Photos, fmt.Sprintf("%d.png", i))
	}
	return album
}

// Ten photos of one second each, at most four at a time, take three seconds.
func TestMakeThumbnails_LimitsConcurrency(t *testing.T) {
	env := replaytest.New(t, definitions()...)
	var running, peak atomic.Int64
	replaytest.Stub(env, Shrink, func(_ context.Context, job Job) (Thumbnail, error) {
		peak.Store(max(peak.Load(), running.Add(1)))
		defer running.Add(-1)
		time.Sleep(time.Second)
		return Thumbnail{Photo: job.Photo}, nil
	})
	began := env.Now()
	album := newAlbum(10, 4)
	thumbnails, err := replaytest.Call(env, MakeThumbnails, "album", album)
	if err != nil {
		t.Fatal(err)
	}
	if took := env.Now().Sub(began); took != 3*time.Second || peak.Load() != 4 {
		t.Errorf("it took %v with %d at once", took, peak.Load())
	}
	var done int
	status, err := env.Get("album")
	if err != nil {
		t.Fatal(err)
	}
	if err := status.CustomStatus(&done); err != nil || done != 10 {
		t.Errorf("custom status %d: %v", done, err)
	}
	for i, thumbnail := range thumbnails {
		if thumbnail.Photo != album.Photos[i] {
			t.Errorf("thumbnail %d is of %s", i, thumbnail.Photo)
		}
	}
}

// The unreadable photo is reported and the other thumbnails are made, in any order of arrivals.
func TestMakeThumbnails_OnePhotoFails(t *testing.T) {
	replaytest.Permute(t, 30, func(t *testing.T, env *replaytest.Env) []Thumbnail {
		replaytest.Stub(env, Shrink, func(_ context.Context, job Job) (Thumbnail, error) {
			if job.Photo == "1.png" {
				return Thumbnail{}, replay.NonRetryable(errors.New("torn"))
			}
			return Thumbnail{Photo: job.Photo}, nil
		})
		thumbnails, err := replaytest.Call(env, MakeThumbnails, "album", newAlbum(4, 3))
		if err != nil {
			t.Fatal(err)
		}
		problems := slices.DeleteFunc(slices.Clone(thumbnails), func(t Thumbnail) bool { return t.Problem == "" })
		if len(problems) != 1 || problems[0] != (Thumbnail{Photo: "1.png", Problem: "torn"}) {
			t.Errorf("problems: %+v", problems)
		}
		return thumbnails
	}, definitions()...)
}

func TestRun(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), "", &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"photo1.png.small.png: 80 x 30\n", "photo7.png.small.png: 80 x 75\n", "notes.txt: image: unknown format\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}
