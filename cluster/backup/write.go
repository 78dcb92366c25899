package backup

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/internal/access"
	"github.com/tenuto-dev/tenuto/cluster/internal/backup"
	"github.com/tenuto-dev/tenuto/internal/frame"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// Errors of nodes.
var (
	// ErrInProgress means that the node makes or serves another backup.
	ErrInProgress = backup.ErrInProgress
	// ErrExpired means that the node has removed its checkpoint, which was not read for two
	// minutes.
	ErrExpired = backup.ErrNotFound
	// ErrInMemory means that the node has no directory.
	ErrInMemory = backup.ErrInMemory
	// ErrMissed means that the node was too busy to make a checkpoint of all partitions at one
	// moment. Another attempt may succeed.
	ErrMissed = backup.ErrMissed
)

// ActionBackup is the right to make backups, which contain everything.
const ActionBackup cluster.Action = "back up"

// Options are those of [Write].
type Options struct {
	// Base makes an incremental backup: it has only what is not in that backup or in those that it
	// continues. For each partition, that is either the entries of the log since the base, or the
	// files of the state that are new, whichever is smaller. A node keeps the log after the latest
	// backups of it for at most 8 days, and while it has at most 2 GiB, divided by the number of
	// partitions. After the repair of a damaged replica, the next backup has files. If Node is "",
	// the node of the base is asked; another node shares no files with it. If nothing is shared,
	// the backup is a full one: its Info.Base is "". Defaults to none: a full backup.
	Base *Info
	// Points prefers the entries, so that [Restore] can go to points between Base and this backup:
	// any entry, or with several partitions those that a [Plan] with Points records.
	// [Info.HasPoints] reports whether the node had all entries.
	Points bool
	// Node is the ID of the node whose files are copied. Defaults to a node that answers, leads as
	// few partitions as possible, and of these to the one that is least behind.
	Node string
	// Progress, if it is not nil, is called after each part, with the bytes written and those of
	// all files.
	Progress func(written, total int64)
}

// Write writes a backup of the cluster to w. ctx bounds it all. After an error, what was written is
// no backup.
//
// Errors: [cluster.ErrNotMember] for an unknown node; a [*cluster.UnavailableError] if the node is
// lost; [cluster.ErrNotAuthorized]; [cluster.ErrProtocol] while a member does not speak protocol 4;
// a [*replay.InvalidError] for a base of another cluster or lineage; [ErrInProgress], [ErrExpired],
// [ErrInMemory] or [ErrMissed] of the node; [ErrDamaged] if a file of the node differs from its
// checksum; that of w or ctx. It may be called concurrently, for different nodes.
func Write(ctx context.Context, client *cluster.Client, w io.Writer, options Options) (*Info, error) {
	info, err := write(ctx, client, w, options)
	if err != nil {
		return nil, fmt.Errorf("back up: %w", err)
	}
	return info, nil
}

func write(ctx context.Context, client *cluster.Client, w io.Writer, options Options) (*Info, error) {
	s, err := begin(ctx, client, options)
	if err != nil {
		return nil, err
	}
	err = s.write(ctx, w, options.Progress)
	s.end(ctx, err == nil, options.Base)
	return s.info, err
}

// begin makes a checkpoint on a node and describes it. The caller must call end.
func begin(ctx context.Context, client *cluster.Client, options Options) (*source, error) {
	internals, err := client.Internal(access.Key{})
	if err != nil {
		return nil, err
	}
	members, err := choose(ctx, client, &options)
	if err != nil {
		return nil, err
	}
	s := &source{internals: internals}
	var begun *clusterpb.Response
	for _, m := range members {
		s.node, s.address = m.NodeID, m.Address
		begun, err = s.ask(ctx, &clusterpb.Request{Call: &clusterpb.Request_BeginBackup{BeginBackup: &clusterpb.BeginBackupRequest{
			Node: s.node, After: options.Base.indexes(),
		}}})
		if err == nil {
			s.info = newInfo(s.node, begun.GetBeginBackup())
			break
		}
		if _, lost := errors.AsType[*cluster.UnavailableError](err); !lost || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	if err := s.info.continueFrom(options.Base, entriesOf(begun.GetBeginBackup()), options.Points); err != nil {
		s.end(ctx, false, nil)
		return nil, err
	}
	return s, nil
}

// A source is the checkpoint of a node, whose files are copied.
type source struct {
	internals     access.Internals
	node, address string
	info          *Info
	combiner      frame.Combiner
}

// choose returns the members whose files may be copied, the best first.
func choose(ctx context.Context, client *cluster.Client, options *Options) ([]cluster.Member, error) {
	members, err := client.Members(ctx)
	if err != nil {
		return nil, err
	}
	wanted := options.Node
	if base := options.Base; wanted == "" && base != nil && slices.ContainsFunc(members, func(m cluster.Member) bool {
		return m.NodeID == base.Node && m.Liveness != cluster.MemberUnreachable
	}) {
		wanted = base.Node
	}
	members = slices.DeleteFunc(members, func(m cluster.Member) bool {
		return wanted != "" && m.NodeID != wanted || wanted == "" && m.Liveness == cluster.MemberUnreachable
	})
	if len(members) == 0 {
		return nil, fmt.Errorf("%w: %q", cluster.ErrNotMember, wanted)
	}
	slices.SortFunc(members, func(a, b cluster.Member) int {
		return cmp.Or(cmp.Compare(leads(a), leads(b)), cmp.Compare(a.Behind, b.Behind), cmp.Compare(a.NodeID, b.NodeID))
	})
	return members, nil
}

// leads returns how many partitions a member leads.
func leads(m cluster.Member) int {
	if m.Leader && len(m.LeadsPartitions) == 0 {
		return 1
	}
	return len(m.LeadsPartitions)
}

func (s *source) ask(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	return s.internals.AskNode(ctx, s.node, s.address, request)
}

// endTimeout bounds the request that lets the node remove the checkpoint, which it also does by
// itself after some time.
const endTimeout = 5 * time.Second

// end lets the node remove the checkpoint. With keepLog, the node keeps the log after the backup,
// for one that continues it, and no longer that after another one, instead, if there is one. An
// error has no effect on the backup, so it is ignored.
func (s *source) end(ctx context.Context, keepLog bool, instead *Info) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	_, _ = s.ask(ctx, &clusterpb.Request{Call: &clusterpb.Request_EndBackup{EndBackup: &clusterpb.EndBackupRequest{
		Node: s.node, Id: s.info.ID, KeepLog: keepLog, Instead: instead.indexes(),
	}}})
}

func newInfo(node string, b *clusterpb.BackupBegun) *Info {
	info := &Info{
		Format: formatFiles, ID: b.Id, Cluster: b.Cluster, Lineage: b.Lineage, Cut: b.Cut, Time: time.Unix(0, b.Time).UTC(),
		Node: node, Version: b.Version, Protocol: b.Protocol,
	}
	for _, p := range b.Partitions {
		of := Partition{Index: p.Index, Term: p.Term, Database: p.Database}
		for _, f := range p.Files {
			of.Files = append(of.Files, File{Name: f.Name, Size: f.Size, CRC32C: f.Crc32C, Immutable: f.Immutable})
		}
		info.Partitions = append(info.Partitions, of)
	}
	return info
}

// indexes returns where each partition ends, nil without a backup.
func (i *Info) indexes() (indexes []uint64) {
	if i != nil {
		for _, p := range i.Partitions {
			indexes = append(indexes, p.Index)
		}
	}
	return indexes
}

// entriesOf returns the entries of each partition that a node has copied, nil for a partition
// without.
func entriesOf(b *clusterpb.BackupBegun) (all []*File) {
	for _, p := range b.Partitions {
		var f *File
		if e := p.Entries; e != nil {
			f = &File{Name: e.Name, Size: e.Size, CRC32C: e.Crc32C}
		}
		all = append(all, f)
	}
	return all
}

// continueFrom marks the files that an earlier backup has, or replaces them by the earlier state
// and the entries since then. If nothing is shared, this remains a full backup.
func (i *Info) continueFrom(base *Info, entries []*File, points bool) error {
	if base == nil {
		return nil
	}
	if base.Cluster != i.Cluster || base.Lineage != i.Lineage || len(base.Partitions) != len(i.Partitions) {
		return invalid("base", "is of another cluster, or of another lineage of it")
	}
	points = points && !slices.Contains(entries, nil)
	for n := range i.Partitions {
		p, before := &i.Partitions[n], &base.Partitions[n]
		shared, added := p.shareFiles(before, base.ID)
		if entries[n] != nil && (points || entries[n].Size < added) {
			p.continueLog(before, base.ID, *entries[n])
			i.Format, shared = formatLog, true
		}
		if shared {
			i.Base = base.ID
		}
	}
	return nil
}

// shareFiles marks the files that the backup before has, whose ID is base. It reports whether there
// are any, and the bytes of the others.
func (p *Partition) shareFiles(before *Partition, base string) (shared bool, added int64) {
	for m := range p.Files {
		f := &p.Files[m]
		at := slices.IndexFunc(before.Files, func(b File) bool {
			return p.Database == before.Database && b.Immutable && f.Immutable && b.Name == f.Name && b.Size == f.Size && b.CRC32C == f.CRC32C
		})
		if at >= 0 {
			f.In, shared = cmp.Or(before.Files[at].In, base), true
		} else {
			added += f.Size
		}
	}
	return shared, added
}

// continueLog replaces the files by those of the backup before, whose ID is base, and the entries
// after it.
func (p *Partition) continueLog(before *Partition, base string, entries File) {
	p.Database, p.Files, p.Log = before.Database, slices.Clone(before.Files), append(slices.Clone(before.Log), entries)
	p.StateIndex, p.StateTerm = before.state()
	for f := range p.all() {
		f.In = cmp.Or(f.In, base)
	}
	p.Log[len(p.Log)-1].In = "" // the new ones
}

// write writes the stream. progress may be nil.
func (s *source) write(ctx context.Context, to io.Writer, progress func(written, total int64)) error {
	info := s.info
	encoded, err := json.Marshal(info)
	if err != nil {
		return fmt.Errorf("encode description: %w", err)
	}
	w := frame.NewWriter(to)
	w.Bytes([]byte(magic))
	w.Frame(encoded)
	total, _ := info.Bytes()
	written := int64(0)
	for n := range info.Partitions {
		for f := range info.Partitions[n].all() {
			if f.In != "" {
				continue
			}
			err := s.copyFile(ctx, w, n, f, func(part int) {
				if written += int64(part); progress != nil {
					progress(written, total)
				}
			})
			if err != nil {
				return fmt.Errorf("file %s of partition %d: %w", f.Name, n, err)
			}
		}
	}
	w.Trailer()
	return w.Err()
}

// copyFile copies a file. One part is read while the one before is written.
func (s *source) copyFile(ctx context.Context, w *frame.Writer, partition int, f *File, wrote func(int)) error {
	ctx, cancel := context.WithCancel(ctx)
	parts := make(chan filePart, 1)
	defer func() {
		cancel()
		for range parts { // until read has returned
		}
	}()
	go s.read(ctx, partition, f, parts)
	sum := uint32(0)
	for part := range parts {
		if part.err != nil {
			return part.err
		}
		size := len(part.data)
		sum = s.combiner.Combine(sum, w.Frame(part.data), int64(size))
		backup.Reuse(part.data)
		if w.Err() != nil {
			return w.Err()
		}
		wrote(size)
	}
	if sum != f.CRC32C {
		return damaged(errors.New("the node's file differs from its checksum"))
	}
	return nil
}

type filePart struct {
	data []byte
	err  error
}

// read sends the parts of a file, or an error, and closes the channel.
func (s *source) read(ctx context.Context, partition int, f *File, to chan<- filePart) {
	defer close(to)
	for offset := int64(0); offset < f.Size; {
		size := min(partBytes, f.Size-offset)
		response, err := s.ask(ctx, &clusterpb.Request{Call: &clusterpb.Request_ReadBackup{ReadBackup: &clusterpb.ReadBackupRequest{
			Node: s.node, Id: s.info.ID, Partition: uint32(partition), File: f.Name, Offset: offset, Size: uint32(size),
		}}})
		data := response.GetReadBackup().GetData()
		if err == nil && int64(len(data)) != size {
			err = damaged(fmt.Errorf("the node's file ends after %d bytes", offset+int64(len(data))))
		}
		select {
		case to <- filePart{data, err}:
		case <-ctx.Done():
			to <- filePart{err: ctx.Err()} // room is left: the reader drains
			return
		}
		if err != nil {
			return
		}
		offset += size
	}
}

func (s *source) description() *Info { return s.info }
