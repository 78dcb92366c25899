// Command thumbnails makes a thumbnail of every photo of an album, four at a time, and
// reports the photos that it cannot read.
//
//	go run ./examples/thumbnails            # in memory
//	go run ./examples/thumbnails -dir data  # continues after a kill
//
// # When to use it
//
// When many items need the same work and something limits the concurrency: memory, a quota,
// another system. replay.Map is a bounded fan-out in one line: a coroutine for each input, at
// most limit at a time, results in the order of the inputs.
//
// # What to look at
//
//   - The limit belongs to this album. Config.ActivitiesMax and Config.ActivityLimits bound
//     all instances of a node together.
//   - A failed photo is a result, not an error: at the first error Map cancels all work in
//     progress, and one photo must not fail the album. If you need all results or none,
//     return the error.
//   - Photos are passed by name. A payload is at most 1 MiB and is stored: pass references to
//     large data.
//   - replay.SetStatus publishes the progress, and Client.Get reads it. The counter needs no
//     lock: coroutines of one instance run one at a time, in an order that the history fixes.
//   - A thumbnail always has the same file name. An activity runs at least once, and writing
//     the same file twice is harmless.
//
// # When not to use it
//
//   - Each photo adds two events to the album's history. Beyond some thousand, give each part to a
//     child orchestration, which has its own history and adds two events to its parent's (example
//     census), or process pages and continue as new after each.
//   - Without a limit, start all activities and use replay.All.
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
	dir := flag.String("dir", "", "`directory` of the journal (default: in memory)")
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
	album, err := createPhotos(photos)
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

// createPhotos writes seven photos and a text file to a directory.
func createPhotos(dir string) (Album, error) {
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
