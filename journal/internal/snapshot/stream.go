package snapshot

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/internal/frame"
	"github.com/tenuto-dev/tenuto/journal/internal/diskfile"
	"github.com/tenuto-dev/tenuto/journal/state"
)

// A snapshot is sent to a follower as
//
//	stream  = "tenuto-1" frame(manifest) (frame(part of a file)* for each file) trailer
//	frame   = length (4 bytes, not 0), the bytes, their CRC-32C (4 bytes)
//	trailer = length 0 (4 bytes), CRC-32C of all bytes before it (4 bytes)
//
// with integers little-endian. The files are in the order of the manifest, each in frames of
// frameBytes and a shorter last one.
const (
	streamMagic = "tenuto-1"
	frameBytes  = 256 << 10
	// manifestBytesMax bounds the first frame.
	manifestBytesMax = 64 << 20
)

// streamSize returns the size of a snapshot's stream in bytes.
func (m *Manifest) streamSize() int64 {
	encoded, err := m.Encode()
	if err != nil {
		return 0
	}
	size := int64(len(streamMagic)+len(encoded)) + frame.Overhead + frame.Overhead
	for _, f := range m.Files {
		frames := (f.Size + frameBytes - 1) / frameBytes
		size += f.Size + frames*frame.Overhead
	}
	return size
}

// stream reads the stream of a snapshot and verifies every file while it does.
type stream struct {
	store    *Store
	manifest *Manifest
	pipe     *io.PipeReader
	ended    chan struct{}
}

func (st *Store) newStream(m *Manifest) (*stream, error) {
	encoded, err := m.Encode()
	if err != nil {
		return nil, err
	}
	r, w := io.Pipe()
	s := &stream{store: st, manifest: m, pipe: r, ended: make(chan struct{})}
	go func() {
		defer close(s.ended)
		w.CloseWithError(s.write(w, encoded))
	}()
	return s, nil
}

// InstallStream replaces the state of a machine by the snapshot that r reads. Open has returned r,
// and Raft may have wrapped it.
func (st *Store) InstallStream(r io.ReadCloser, machine *state.Machine) error {
	if wrapper, ok := r.(raft.ReadCloserWrapper); ok {
		r = wrapper.WrappedReadCloser()
	}
	sent, ok := r.(*stream)
	if !ok {
		return fmt.Errorf("unexpected snapshot type %T", r)
	}
	return machine.Install(func(dir string) error { return st.Install(sent.manifest, dir) })
}

// Read implements io.Reader.
func (s *stream) Read(p []byte) (int, error) { return s.pipe.Read(p) }

// Close implements io.Closer.
func (s *stream) Close() error {
	err := s.pipe.Close()
	<-s.ended
	return err
}

func (s *stream) write(to io.Writer, manifest []byte) error {
	w := frame.NewWriter(to)
	w.Bytes([]byte(streamMagic))
	w.Frame(manifest)
	buffer := make([]byte, frameBytes)
	for _, f := range s.manifest.Files {
		if err := s.writeFile(w, f, buffer); err != nil {
			return err
		}
	}
	w.Trailer()
	return w.Err()
}

func (s *stream) writeFile(w *frame.Writer, entry File, buffer []byte) (err error) {
	path := s.store.FS.PathJoin(s.store.Dir, s.manifest.ID, FilesDir, entry.Name)
	f, err := s.store.FS.Open(path, vfs.SequentialReadsOption)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	sum, size := uint32(0), int64(0)
	for size < entry.Size && w.Err() == nil {
		n, err := io.ReadFull(f, buffer[:min(frameBytes, entry.Size-size)])
		if err != nil {
			return s.handleDamage(path, err.Error())
		}
		sum = crc32.Update(sum, castagnoli, buffer[:n])
		size += int64(n)
		if size == entry.Size && sum != entry.CRC32C {
			return s.handleDamage(path, "size or checksum differs from the snapshot's manifest")
		}
		w.Frame(buffer[:n])
	}
	return w.Err()
}

// handleDamage fails the node and quarantines the snapshot, so that the next start does not trust
// what the state shares with it.
func (s *stream) handleDamage(path, reason string) error {
	err := &diskfile.DamagedError{Path: path, Reason: reason}
	s.store.OnDamaged(err)
	return errors.Join(err, s.store.Quarantine(s.manifest.ID, err))
}

// receiver writes the files of a received snapshot.
type receiver struct {
	*io.PipeWriter
	ended chan struct{}
	err   error
}

// startReceiver starts to receive a snapshot.
func (s *Sink) startReceiver() *receiver {
	r, w := io.Pipe()
	in := &receiver{PipeWriter: w, ended: make(chan struct{})}
	go func() {
		defer close(in.ended)
		in.err = s.unpack(frame.NewReader(r))
		_ = r.CloseWithError(in.err)
	}()
	return in
}

// close marks the end of the stream and waits for the result.
func (r *receiver) close() error {
	err := r.PipeWriter.Close()
	<-r.ended
	return errors.Join(r.err, err)
}

// unpack reads a stream to its end.
func (s *Sink) unpack(r *frame.Reader) error {
	sent, err := s.store.readManifest(r)
	if err != nil {
		return err
	}
	if sent.Index != s.manifest.Index || sent.Term != s.manifest.Term {
		return fmt.Errorf("received a snapshot of entry %d of term %d instead of entry %d of term %d",
			sent.Index, sent.Term, s.manifest.Index, s.manifest.Term)
	}
	return s.unpackFiles(r, sent)
}

// readManifest reads the beginning of a stream.
func (st *Store) readManifest(r *frame.Reader) (*Manifest, error) {
	var magic [len(streamMagic)]byte
	if err := r.Bytes(magic[:]); err != nil {
		return nil, err
	}
	if string(magic[:]) != streamMagic {
		return nil, &diskfile.FormatError{Path: "a snapshot that was sent", Want: streamMagic, Have: string(magic[:])}
	}
	encoded, err := r.Frame(manifestBytesMax)
	if err != nil {
		return nil, err
	}
	sent, err := parseManifest(encoded)
	if err != nil {
		return nil, fmt.Errorf("received snapshot: %w", err)
	}
	if sent.Cluster != st.cluster {
		return nil, fmt.Errorf("received a snapshot of cluster %q", sent.Cluster)
	}
	if sent.Partition != st.Partition {
		return nil, fmt.Errorf("received a snapshot of partition %d", sent.Partition)
	}
	return sent, nil
}

// unpackFiles reads the rest of a stream.
func (s *Sink) unpackFiles(r *frame.Reader, sent *Manifest) error {
	s.manifest.Node = sent.Node
	s.manifest.Applied, s.manifest.AppliedTerm = sent.Applied, sent.AppliedTerm
	s.manifest.Files = sent.Files
	dir := s.store.FS.PathJoin(s.path, FilesDir)
	if err := s.store.FS.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, f := range sent.Files {
		if err := s.unpackFile(r, f, s.store.FS.PathJoin(dir, f.Name)); err != nil {
			return err
		}
	}
	return r.Trailer()
}

// Fetch receives a snapshot that this node has requested. Its index must be least or higher.
func (st *Store) Fetch(from io.Reader, least uint64) (*Manifest, error) {
	r := frame.NewReader(from)
	sent, err := st.readManifest(r)
	if err != nil {
		return nil, err
	}
	if sent.Index < least {
		return nil, fmt.Errorf("received a snapshot of entry %d, requested %d", sent.Index, least)
	}
	s, err := st.create(sent.Version, sent.Index, sent.Term, sent.Members, sent.MembersIndex)
	if err != nil {
		return nil, err
	}
	if err := s.unpackFiles(r, sent); err != nil {
		return nil, errors.Join(err, s.Cancel())
	}
	return &s.manifest, s.Close()
}

func (s *Sink) unpackFile(r *frame.Reader, entry File, path string) (err error) {
	f, err := s.store.FS.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Sync(), f.Close()) }()
	sum, size := uint32(0), int64(0)
	for size < entry.Size {
		part, err := r.Frame(frameBytes)
		if err != nil {
			return err
		}
		sum = crc32.Update(sum, castagnoli, part)
		size += int64(len(part))
		if _, err := f.Write(part); err != nil {
			return err
		}
	}
	if size != entry.Size || sum != entry.CRC32C {
		return fmt.Errorf("file %s: size or checksum mismatch", entry.Name)
	}
	return nil
}
