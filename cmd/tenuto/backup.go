package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/cluster/backup"
	"github.com/tenuto-dev/tenuto/cluster/recovery"
	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/output"
)

func writeBackup(flags *flag.FlagSet) action {
	base := flags.String("base", "", "`file` of an earlier backup: write only what has changed")
	points := flags.Bool("points", false, "with -base: write all log entries since that backup, so that restore can go to points between the two")
	node := flags.String("node", "", "`ID` of the node to copy from; default: one that leads little")
	return withSession(flags, func(ctx context.Context, s *session, args []string) error {
		if *points && *base == "" {
			return &usageError{"-points needs -base: a full backup has no points before it"}
		}
		copied := newProgressLog(s.streams)
		options := backup.Options{Node: *node, Points: *points, Progress: func(written, total int64) { copied.addBytes(written, total, "copied") }}
		if *base != "" {
			info, err := readBackupInfo(*base)
			if err != nil {
				return err
			}
			options.Base = info
		}
		var info *backup.Info
		err := writeWhole(args[0], func(to io.Writer) (err error) {
			info, err = backup.Write(ctx, s.Client, to, options)
			return err
		})
		if err != nil {
			return err
		}
		written, state := info.Bytes()
		printMessage(s.streams, fmt.Sprintf("backup %s from %s: %d bytes of %d, %d partitions", info.ID, info.Node, written, state, len(info.Partitions)))
		if *points && options.Base != nil && !info.HasPoints() {
			printMessage(s.streams, "the backup has no points: the node no longer had all log entries since that of -base")
		}
		return nil
	})
}

// partialSuffix ends the name of a file that is being written.
const partialSuffix = ".partial"

// writeWhole writes a new file, which has its name only once it is complete and synced.
func writeWhole(path string, write func(io.Writer) error) (err error) {
	if _, err := os.Lstat(path); err == nil {
		return &usageError{path + " exists"}
	}
	file, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*"+partialSuffix)
	if err != nil {
		return &usageError{err.Error()}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(file.Name()))
		}
	}()
	if err = write(file); err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), path)
}

func readBackupInfo(path string) (info *backup.Info, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, &usageError{err.Error()}
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return backup.ReadInfo(file)
}

// backupFiles are backups in files, among which a time selects.
type backupFiles struct {
	entries []backup.Entry
	infos   map[string]*backup.Info // by ID
	at      time.Time               // zero: the newest
	index   uint64                  // of an entry of the first partition; 0: the newest
	scratch string
	list    bool
	damaged []error // of files in directories
}

func (b *backupFiles) flags(flags *flag.FlagSet) {
	flags.Func("at", "`time`, as 2030-01-31T12:00:00Z: use the latest point that is not after it", func(text string) (err error) {
		b.at, err = time.Parse(time.RFC3339, text)
		return err
	})
	flags.BoolVar(&b.list, "list", false, "only list the backups; POINTS since the one before are any entry, the cuts of a plan, or only the end")
}

// read reads the descriptions of files, and of those in directories. A file in a directory whose
// name does not end in .backup is ignored if it is no backup, or not complete.
func (b *backupFiles) read(paths []string) error {
	b.infos = make(map[string]*backup.Info)
	for _, path := range paths {
		names, inDir := []string{path}, false
		if entries, err := os.ReadDir(path); err == nil {
			names, inDir = nil, true
			for _, e := range entries {
				name := filepath.Join(path, e.Name())
				if info, err := os.Stat(name); err == nil && info.Mode().IsRegular() && !strings.HasSuffix(name, partialSuffix) {
					names = append(names, name)
				}
			}
		}
		for _, name := range names {
			info, err := readBackupInfo(name)
			if err != nil && inDir {
				if filepath.Ext(name) == ".backup" {
					b.damaged = append(b.damaged, fmt.Errorf("%s cannot be read: %w", name, err))
				}
				continue
			}
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			b.entries = append(b.entries, info.Entry(name))
			b.infos[info.ID] = info
		}
	}
	backup.Sort(b.entries)
	return nil
}

// A listedBackup is a backup as -list shows it.
type listedBackup struct {
	Time   time.Time `json:"time"`
	Entry  uint64    `json:"entry"` // index of the last one of the first partition
	ID     string    `json:"id"`
	Base   string    `json:"base,omitempty"`
	Points string    `json:"points"` // since the base: any, cuts or end
	Bytes  int64     `json:"bytes"`
	File   string    `json:"file"`
}

var backupColumns = []output.Column[listedBackup]{
	{Name: "TIME", Cell: func(b listedBackup) string { return output.Cell(b.Time.Format(time.RFC3339Nano)) }},
	{Name: "ENTRY", Cell: func(b listedBackup) string { return strconv.FormatUint(b.Entry, 10) }},
	{Name: "ID", Cell: func(b listedBackup) string { return output.Cell(b.ID) }},
	{Name: "CONTINUES", Cell: func(b listedBackup) string { return output.Cell(b.Base) }},
	{Name: "POINTS", Cell: func(b listedBackup) string { return b.Points }},
	{Name: "BYTES", Cell: func(b listedBackup) string { return strconv.FormatInt(b.Bytes, 10) }},
	{Name: "FILE", Cell: func(b listedBackup) string { return output.Line(b.File) }},
}

// show prints the backups, oldest first, and returns an error for those that cannot be read.
func (b *backupFiles) show(s streams, format output.Format) error {
	printer := output.NewPrinter(s.out, format, backupColumns, nil)
	var err error
	for _, e := range b.entries {
		points, partitions := "end", b.infos[e.ID].Partitions
		switch {
		case e.Points && len(partitions) > 1:
			points = "cuts"
		case e.Points:
			points = "any"
		}
		err = errors.Join(err, printer.Write(listedBackup{e.Time.UTC(), partitions[0].Index, e.ID, e.Base, points, e.Size, e.Name}))
	}
	return errors.Join(err, printer.Flush(), errors.Join(b.damaged...))
}

// chain returns the backups to restore, in order. Those of an entry are of the latest lineage that
// has it, because another one counts its entries anew.
func (b *backupFiles) chain() ([]backup.Entry, error) {
	for i, e := range slices.Backward(b.entries) {
		base, end := b.infos[e.Base], b.infos[e.ID].Partitions[0].Index
		if b.index > 0 && (end == b.index || e.Points && base != nil && base.Partitions[0].Index < b.index && b.index < end) {
			return backup.Chain(b.entries[:i+1], time.Time{})
		}
	}
	return backup.Chain(b.entries, b.at)
}

// incomplete returns the backup, of those that an entry needs, whose base is missing; "" if all are
// there.
func (b *backupFiles) incomplete(e backup.Entry) (name, base string) {
	for range b.entries { // damaged ones could form a circle
		at := slices.IndexFunc(b.entries, func(of backup.Entry) bool { return of.ID == e.Base })
		if at < 0 {
			break
		}
		e = b.entries[at]
	}
	if e.Base == "" {
		return "", ""
	}
	return e.Name, e.Base
}

// open opens the files of the newest backup that was made until the time, of what it continues, and
// of the next one if that has points. It prints how much of them is read.
func (b *backupFiles) open(s streams) (files []io.Reader, closeAll func() error, err error) {
	if len(b.damaged) > 0 { // it could be the newest
		return nil, nil, fmt.Errorf("%w; to use the others, move it to another directory", errors.Join(b.damaged...))
	}
	until := slices.DeleteFunc(slices.Clone(b.entries), func(e backup.Entry) bool { return !b.at.IsZero() && e.Time.After(b.at) })
	chain, err := b.chain()
	if err != nil {
		return nil, nil, &usageError{err.Error() + "; -list shows what there is"}
	}
	// Anything but the newest could be less than what the user wants.
	if name, base := b.incomplete(until[len(until)-1]); name != "" && b.index == 0 {
		return nil, nil, &usageError{fmt.Sprintf("%s continues the backup %s, which is missing; with -at an earlier one is used", name, base)}
	}
	var opened []*os.File
	closeAll = func() (err error) {
		for _, f := range opened {
			err = errors.Join(err, f.Close())
		}
		return err
	}
	progress := &readProgress{log: newProgressLog(s)}
	for _, e := range chain {
		file, err := os.Open(e.Name)
		if err != nil {
			return nil, nil, errors.Join(&usageError{err.Error()}, closeAll())
		}
		opened, files = append(opened, file), append(files, &progressReader{file, progress})
		if info, err := file.Stat(); err == nil { // without a size the files are read all the same
			progress.total += info.Size()
		}
	}
	return files, closeAll, nil
}

// readProgress is how much of some files is read.
type readProgress struct {
	log         *progressLog
	read, total int64
}

// A progressReader is one of the files.
type progressReader struct {
	from     io.Reader
	progress *readProgress
}

// Read implements io.Reader.
func (r *progressReader) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	r.progress.read += int64(n)
	r.progress.log.addBytes(r.progress.read, r.progress.total, "read")
	return n, err
}

func restoreBackup(flags *flag.FlagSet) action {
	to, from := backup.Target{}, backupFiles{}
	flags.StringVar(&to.Dir, "dir", "", "`directory` of the node, which must be new or empty")
	flags.StringVar(&to.NodeID, "id", "", "`ID` of the node")
	flags.StringVar(&to.Address, "advertise", "", "`address` at which other nodes reach the node; none: a single node")
	flags.StringVar(&to.ClusterID, "cluster", "", "`name` of the cluster; default: as before")
	flags.Uint64Var(&to.Until.Index, "index", 0, "index of an `entry` of the first partition: use the latest point that is not after it")
	from.flags(flags)
	var format output.Format
	formatFlag(flags, &format, output.Table, output.JSON, output.YAML)
	return func(ctx context.Context, s streams, args []string) (err error) {
		to.Until.Time, from.index = from.at, to.Until.Index
		if !from.list && (to.Dir == "" || to.NodeID == "") {
			return &usageError{"name the node and its directory: -id n1 -dir data"}
		}
		if err := from.read(args); err != nil {
			return err
		}
		if from.list {
			return from.show(s, format)
		}
		files, closeAll, err := from.open(s)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, closeAll()) }()
		info, err := backup.Restore(ctx, to, files...)
		if err != nil {
			return err
		}
		printMessage(s, fmt.Sprintf("%s is restored to %s, entry %d, from backup %s; %s",
			to.Dir, info.Time.Local().Format("2006-01-02 15:04:05 MST"), info.Partitions[0].Index, info.ID, nextSteps(to.NodeID)))
		return nil
	}
}

// nextSteps says what to do with the directory of the first node of a new cluster.
func nextSteps(node string) string {
	return fmt.Sprintf("start %s with it, then the other nodes with empty directories and Config.Join", node)
}

func recoverCluster(flags *flag.FlagSet) action {
	to := recovery.Target{}
	flags.StringVar(&to.Dir, "to", "", "the new `directory`; none: only say what would be lost")
	flags.StringVar(&to.NodeID, "id", "", "`ID` of the node; default: that of the directory")
	flags.StringVar(&to.Address, "advertise", "", "`address` at which other nodes reach the node; none: a single node")
	yes := flags.Bool("yes", false, "do not ask; required with -to without a terminal")
	return func(ctx context.Context, s streams, args []string) error {
		report, err := recovery.Inspect(ctx, args...)
		if err != nil {
			return err
		}
		fmt.Fprint(s.out, report)
		if to.Dir == "" {
			return nil
		}
		if !*yes && !s.interactive {
			return &usageError{"recover with -to needs -yes; without -to it changes nothing"}
		}
		c := &change{verb: "recover", confirm: confirmAlways, yes: *yes}
		if err := c.ask(s, "cluster "+report.ClusterID); err != nil {
			return err
		}
		if report, err = recovery.Recover(ctx, to, args...); err != nil {
			return err
		}
		first := report.Partitions[0]
		printMessage(s, fmt.Sprintf("%s is recovered as lineage %s; %s", to.Dir, report.Lineage, nextSteps(cmp.Or(to.NodeID, first.Survivors[first.Best].NodeID))))
		return nil
	}
}

// A verifiedBackup is what verify has read of backups. All hash chains match.
type verifiedBackup struct {
	ID         string    `json:"id"`
	Time       time.Time `json:"time"`
	Partitions int       `json:"partitions"`
	Instances  uint64    `json:"instances"`
	Executions uint64    `json:"executions"`
	Events     uint64    `json:"events"`
}

// verifyBackups restores backups into a scratch directory and checks all histories.
func verifyBackups(flags *flag.FlagSet) func(context.Context, streams, output.Format, []string) error {
	from := backupFiles{}
	from.flags(flags)
	flags.StringVar(&from.scratch, "scratch", "", "`directory` for the restored files, which are removed at the end; default: that for temporary files")
	return func(ctx context.Context, s streams, format output.Format, args []string) (err error) {
		if err := from.read(args); err != nil {
			return err
		}
		if from.list {
			return from.show(s, format)
		}
		files, closeAll, err := from.open(s)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, closeAll()) }()
		v, err := backup.Verify(ctx, from.scratch, files...)
		if err != nil {
			return err
		}
		if format != output.Table {
			return s.documents(format).Write(verifiedBackup{v.Info.ID, v.Info.Time.UTC(), len(v.Info.Partitions), v.Instances, v.Executions, v.Events})
		}
		printMessage(s, fmt.Sprintf("backup %s of %s is intact: %d partitions, %d instances, %d executions, %d events, all hash chains match",
			v.Info.ID, v.Info.Time.Local().Format("2006-01-02 15:04:05"), len(v.Info.Partitions), v.Instances, v.Executions, v.Events))
		return nil
	}
}

// verify compares the replicas of a cluster, or checks the backups that are named.
func verify(flags *flag.FlagSet) action {
	var format output.Format
	formatFlag(flags, &format, output.Table, output.JSON, output.YAML)
	backups := verifyBackups(flags)
	replicas := withSession(flags, func(ctx context.Context, s *session, _ []string) error { return verifyReplicas(ctx, s, format) })
	return func(ctx context.Context, s streams, args []string) error {
		if len(args) > 0 {
			return backups(ctx, s, format, args)
		}
		return replicas(ctx, s, args)
	}
}
