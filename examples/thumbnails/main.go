// Command thumbnails makes a small copy of every photo of an album, four at a
// time, and says which photos could not be read.
//
//	go run ./examples/thumbnails            # in memory
//	go run ./examples/thumbnails -dir data  # goes on where it was when killed
//
// # When to use it
//
// Where the same is to be done to each of many things, and something limits how
// many at once: memory, a quota, the patience of another system. replay.Map is a
// bounded fan-out in one line: a coroutine for each input, at most so many at a
// time, and the results in the order of the inputs, whichever is done first.
//
// # What to look at
//
//   - The limit belongs to this album. Config.ActivitiesMax and ActivityLimits
//     bound what a node does for all its instances together.
//   - What fails is a result here and no error: at the first error Map gives up
//     what is still under way, and an album must not fail because of one photo.
//     Where all are needed or none, let the error through.
//   - Photos travel by their names. A payload is at most 1 MiB, and whatever is
//     recorded is kept: pass references to what is large.
//   - The progress is published by replay.SetStatus; anybody may read it by
//     Client.Get. The counter needs no lock: coroutines of one instance run one
//     at a time, in an order that the history fixes.
//   - A thumbnail is written to its final name, the same each time. An activity
//     runs at least once, and writing the same twice does no harm.
//
// # When not to use it
//
// Each photo adds two events to the album's history. Beyond some thousands give
// each part of them to a child orchestration, which has a history of its own and
// is one result for its parent (example census does), or take them page by page
// and continue as new after each. Where nothing limits, start all of them and use
// replay.All.
package main

import (
	"context"
	"flag"
	"fmt"
	"image"
	"image/png"
	"io"
	"log"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/tenuto-dev/tenuto/cluster"
)

func main() {
	dir := flag.String("dir", "", "where the journal lives; in memory without it")
	flag.Parse()
	slog.SetLogLoggerLevel(slog.LevelWarn)
	if err := run(context.Background(), *dir, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, dir string, out io.Writer) error {
	node, err := cluster.Start(ctx, cluster.Config{Dir: dir, InMemory: dir == "", Definitions: definitions()})
	if err != nil {
		return err
	}
	defer node.Close()
	photos, err := os.MkdirTemp("", "thumbnails")
	if err != nil {
		return err
	}
	defer os.RemoveAll(photos)
	album, err := takePhotos(photos)
	if err != nil {
		return err
	}
	thumbnails, err := cluster.Call(ctx, node.Client(), MakeThumbnails, "album", album, cluster.Attach(), cluster.ReuseWhenEnded())
	if err != nil {
		return err
	}
	for _, thumbnail := range thumbnails {
		if thumbnail.Problem != "" {
			fmt.Fprintf(out, "%s: %s\n", filepath.Base(thumbnail.Photo), thumbnail.Problem)
			continue
		}
		fmt.Fprintf(out, "%s: %d x %d\n", filepath.Base(thumbnail.File), thumbnail.Width, thumbnail.Height)
	}
	return nil
}

// takePhotos leaves seven photos in a directory and another file.
func takePhotos(dir string) (Album, error) {
	album := Album{Width: 80, AtOnce: 4}
	for i := range 7 {
		name := filepath.Join(dir, fmt.Sprintf("photo%d.png", i+1))
		file, err := os.Create(name)
		if err != nil {
			return album, err
		}
		defer file.Close()
		if err := png.Encode(file, image.NewGray(image.Rect(0, 0, 640, 240+60*i))); err != nil {
			return album, err
		}
		album.Photos = append(album.Photos, name)
	}
	name := filepath.Join(dir, "notes.txt")
	album.Photos = append(album.Photos, name)
	return album, os.WriteFile(name, []byte("no photo"), 0o600)
}
