package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
)

// A Sink stores backups as objects of a bucket. It implements backup.Sink.
type Sink struct {
	// Client reaches the server, with the right to put, get, list and delete objects of the bucket,
	// and to list and abort uploads in parts. Required.
	Client *minio.Client
	// Bucket must exist. Required.
	Bucket string
	// Prefix begins the names of the objects, such as "shop/". Each cluster needs one of its own in
	// the bucket. Defaults to none.
	Prefix string
	// PartBytes is the size of the parts of an upload, which are held in memory, one at a time: 5
	// MiB to 5 GiB. S3 allows 10,000 parts, so it bounds the size of a backup. Defaults to 64 MiB:
	// 640 GB.
	PartBytes uint64
}

const (
	partBytesDefault = 64 << 20
	partBytesMin     = 5 << 20
	partBytesMax     = 5 << 30
	// uploadAgeMax is how old an upload must be to be taken for one that a crash left.
	uploadAgeMax = 24 * time.Hour
	// removalTimeout bounds a removal of uploads.
	removalTimeout = 10 * time.Second
)

// Put stores all of content under a name that does not exist.
func (s Sink) Put(ctx context.Context, name string, content io.Reader) error {
	if err := s.check(); err != nil {
		return err
	}
	size := s.PartBytes
	if size == 0 {
		size = partBytesDefault
	}
	s.removeOldUploads(ctx)
	_, err := s.Client.PutObject(ctx, s.Bucket, s.Prefix+name, content, -1, minio.PutObjectOptions{
		ContentType: "application/octet-stream", PartSize: size, NumThreads: 1, SendContentMd5: true,
	})
	if err != nil {
		// The client aborts an upload that fails only if ctx has not ended.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removalTimeout)
		defer cancel()
		_ = s.Client.RemoveIncompleteUpload(ctx, s.Bucket, s.Prefix+name) // removeOldUploads tries again
		return fmt.Errorf("put %s: %w", name, err)
	}
	return nil
}

// Open returns the content of a name.
func (s Sink) Open(ctx context.Context, name string) (io.ReadCloser, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	object, err := s.Client.GetObject(ctx, s.Bucket, s.Prefix+name, minio.GetObjectOptions{})
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	return object, nil
}

// List returns the sizes of the objects with the prefix, in bytes, by their names without it.
// Objects of a deeper level, with "/" in their names, are omitted.
func (s Sink) List(ctx context.Context) (map[string]int64, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	sizes := make(map[string]int64)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the listing after an error
	for object := range s.Client.ListObjectsIter(ctx, s.Bucket, minio.ListObjectsOptions{Prefix: s.Prefix}) {
		if object.Err != nil {
			return nil, fmt.Errorf("list backups: %w", object.Err)
		}
		if name, ok := strings.CutPrefix(object.Key, s.Prefix); ok && name != "" && !strings.Contains(name, "/") {
			sizes[name] = object.Size
		}
	}
	return sizes, ctx.Err()
}

// Remove removes a name, if it exists.
func (s Sink) Remove(ctx context.Context, name string) error {
	if err := s.check(); err != nil {
		return err
	}
	err := s.Client.RemoveObject(ctx, s.Bucket, s.Prefix+name, minio.RemoveObjectOptions{})
	if err != nil && minio.ToErrorResponse(err).StatusCode != http.StatusNotFound {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	return nil
}

func (s Sink) check() error {
	switch {
	case s.Client == nil:
		return errors.New("s3: Sink.Client is nil")
	case s.Bucket == "":
		return errors.New("s3: Sink.Bucket is empty")
	case s.PartBytes != 0 && (s.PartBytes < partBytesMin || s.PartBytes > partBytesMax):
		return fmt.Errorf("s3: Sink.PartBytes is %d: %d to %d are allowed", s.PartBytes, partBytesMin, int64(partBytesMax))
	}
	return nil
}

// removeOldUploads removes the parts of uploads that a crash has left. What fails is tried again by
// the next call.
func (s Sink) removeOldUploads(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, removalTimeout)
	defer cancel()
	for upload := range s.Client.ListIncompleteUploads(ctx, s.Bucket, s.Prefix, true) {
		if upload.Err == nil && time.Since(upload.Initiated) > uploadAgeMax {
			_ = s.Client.RemoveIncompleteUpload(ctx, s.Bucket, upload.Key)
		}
	}
}
