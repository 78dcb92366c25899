package main

import (
	"context"
	"errors"
	"image"
	"image/png"
	"os"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

// An Album is a list of photos.
type Album struct {
	Photos []string // names of files
	Width  int      // of the thumbnails, in pixels
	AtOnce int      // the maximum concurrency
}

// A Job is one photo of an album.
type Job struct {
	Photo string
	Width int
}

// A Thumbnail is the result for one photo.
type Thumbnail struct {
	Photo         string
	File          string
	Width, Height int
	Problem       string // why there is none, or ""
}

var (
	MakeThumbnails = replay.Orchestration[Album, []Thumbnail]("make thumbnails")
	Shrink         = replay.Activity[Job, Thumbnail]("shrink")
)

// retryOption is for temporary disk errors.
var retryOption = replay.Retry(replay.RetryPolicy{InitialInterval: 100 * time.Millisecond, MaxAttempts: 3})

func makeThumbnails(ctx *replay.Context, album Album) ([]Thumbnail, error) {
	done := 0
	return replay.Map(ctx, album.AtOnce, album.Photos, func(ctx *replay.Context, photo string) (Thumbnail, error) {
		thumbnail, err := Shrink.Call(ctx, Job{photo, album.Width}, retryOption, replay.StartToClose(time.Minute))
		var failed *replay.ActivityError
		switch {
		case errors.As(err, &failed):
			thumbnail = Thumbnail{Photo: photo, Problem: failed.Err.Error()}
		case err != nil: // not about the photo, such as a cancellation
			return thumbnail, err
		}
		done++
		return thumbnail, replay.SetStatus(ctx, done)
	})
}

// shrink writes one thumbnail next to the photo.
func shrink(_ context.Context, job Job) (Thumbnail, error) {
	file, err := os.Open(job.Photo)
	if err != nil {
		return Thumbnail{}, err
	}
	defer file.Close()
	photo, _, err := image.Decode(file)
	if err != nil {
		return Thumbnail{}, replay.NonRetryable(err) // a retry cannot fix it
	}
	size := photo.Bounds().Size()
	small := image.NewRGBA(image.Rect(0, 0, job.Width, size.Y*job.Width/size.X))
	for y := range small.Rect.Dy() {
		for x := range small.Rect.Dx() {
			small.Set(x, y, photo.At(x*size.X/job.Width, y*size.X/job.Width))
		}
	}
	thumbnail := Thumbnail{Photo: job.Photo, File: job.Photo + ".small.png", Width: small.Rect.Dx(), Height: small.Rect.Dy()}
	to, err := os.Create(thumbnail.File)
	if err != nil {
		return Thumbnail{}, err
	}
	return thumbnail, errors.Join(png.Encode(to, small), to.Close())
}

func definitions() []replay.Definition {
	return []replay.Definition{MakeThumbnails.Bind(makeThumbnails), Shrink.Bind(shrink)}
}
