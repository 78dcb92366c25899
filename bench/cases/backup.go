package cases

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenuto-dev/tenuto/bench/measure"
	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/backup"
)

const (
	// The bytes of each payload of the state. Its content cannot be compressed by what the state
	// store uses.
	heldBytes = 64 << 10
	// Starts and events with such payloads at a time.
	heldAtOnce = 64
	// How often the rates of the disk and of full backups are measured, in turn.
	backupRounds = 3
	// How many pairs of windows with and without backups there are, how many megabytes of state
	// make a window last a second, and the limits of its length.
	backupPairs                        = 5
	backupWindowMB                     = 50
	backupWindowMin, backupWindowLimit = 100 * time.Millisecond, 10 * time.Second
	// The files of the state have settled if none has changed for this time.
	filesSettled, filesSettledMax = 3 * time.Second, 5 * time.Minute
)

// backupChanges are shares of the state, in tenths of a percent.
var backupChanges = []int{1, 10, 100}

// backups measures backups of a state of N megabytes in instances with large payloads. The state
// stays in e.Keep, if that is set.
func backups(ctx context.Context, e *Env) (result *measure.Result, err error) {
	own := *e
	if e.Keep != "" {
		own.Dir = filepath.Join(e.Keep, "backup-state")
	}
	load := measure.LoadAverage()
	listener, err := net.Listen("tcp", "127.0.0.1:0") // for a client of another process
	if err != nil {
		return nil, err
	}
	address := listener.Addr().String()
	_ = listener.Close()
	d, err := deploy(ctx, &own, func(c *cluster.Config) { c.ResidentMax, c.Listen = listResidentMax, address })
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	b := &backupMeasurement{deployment: d, sinkDir: filepath.Join(e.Dir, "sink"), result: &measure.Result{}}
	if err := b.build(ctx); err != nil {
		return nil, err
	}
	if err := b.full(ctx, address); err != nil {
		return nil, err
	}
	for _, scattered := range []bool{false, true} {
		if err := b.incremental(ctx, scattered); err != nil {
			return nil, err
		}
	}
	if err := b.compareWindows(ctx); err != nil {
		return nil, err
	}
	b.result.Note = fmt.Sprintf("load average before: %s; caches of the files were dropped before each read of the disk and each full backup", load)
	return b.result, nil
}

type backupMeasurement struct {
	*deployment
	sinkDir string
	result  *measure.Result
	held    int          // instances that hold the state
	latest  *backup.Info // of the backups that continue each other; nil before the first
}

// heldContent returns the number-th payload.
func heldContent(number int) string {
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], uint64(number))
	random := make([]byte, heldBytes/4*3)
	_, _ = rand.NewChaCha8(seed).Read(random) // never fails
	return base64.StdEncoding.EncodeToString(random)
}

func heldID(i int) string { return fmt.Sprintf("held-%d", i) }

// build starts instances until the state has N megabytes, and restarts the node: what is measured
// is one that has its state on disk.
func (b *backupMeasurement) build(ctx context.Context) error {
	want := max(1, b.env.N*1_000_000/heldBytes)
	have, err := b.client().Count(ctx, cluster.Filter{Name: holding.Name()})
	if err != nil {
		return err
	}
	if err := b.hold(ctx, have, want); err != nil {
		return err
	}
	b.held = max(have, want)
	if err := errors.Join(b.close(), b.start(ctx)); err != nil {
		return err
	}
	return b.settle(ctx)
}

// hold starts instances, numbered from from to to-1.
func (b *backupMeasurement) hold(ctx context.Context, from, to int) error {
	_, err := b.env.burst(ctx, "instances", to-from, heldAtOnce, func(ctx context.Context, i int) error {
		_, err := cluster.StartRun(ctx, b.client(), holding, heldID(from+i), heldContent(from+i), cluster.Attach())
		return err
	})
	return err
}

// settle waits until the state store has stopped changing its files.
func (b *backupMeasurement) settle(ctx context.Context) error {
	b.env.Progress("waiting for compactions")
	deadline := time.Now().Add(filesSettledMax)
	var before map[string]int64
	for since := time.Now(); time.Since(since) < min(filesSettled, b.windowLength()) && time.Now().Before(deadline); {
		now, err := b.stateFiles()
		if err != nil {
			return err
		}
		if !maps.Equal(now, before) {
			before, since = now, time.Now()
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// stateFiles returns the tables of the state store with their sizes.
func (b *backupMeasurement) stateFiles() (map[string]int64, error) {
	files := make(map[string]int64)
	err := filepath.WalkDir(b.env.Dir, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && filepath.Ext(path) == ".sst" {
			if info, infoErr := entry.Info(); infoErr == nil {
				files[path] = info.Size()
			}
		}
		return err
	})
	return files, err
}

const megabytes = "MB/s"

// full measures the disk and full backups, in turn: to nowhere, to a directory, and over the
// network.
func (b *backupMeasurement) full(ctx context.Context, address string) (err error) {
	remote, err := cluster.Dial(ctx, cluster.DialConfig{Addresses: []string{address}, Logger: b.env.Logger})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remote.Close()) }()
	var rounds table
	for round := range backupRounds {
		b.env.Progress(fmt.Sprintf("the disk and full backups, round %d of %d", round+1, backupRounds))
		disk, err := measure.MeasureDisk(b.env.Dir, int64(b.env.N)*1_000_000)
		if err != nil {
			return err
		}
		rounds.add("disk, write", megabytes, disk.Write/1e6)
		rounds.add("disk, read", megabytes, disk.Read/1e6)
		rounds.add("disk, copy", megabytes, disk.Copy/1e6)
		for _, of := range []struct {
			name     string
			from     *cluster.Client
			to       string
			diskRate float64
		}{{"to nowhere", b.client(), "", disk.Read}, {"to a directory", b.client(), b.sinkDir, disk.Write}, {"to a remote client", remote, "", disk.Read}} {
			if err := measure.DropCached(b.env.Dir); err != nil {
				return err
			}
			made, err := makeBackup(ctx, of.from, nil, of.to)
			if err != nil {
				return fmt.Errorf("backup %s: %w", of.name, err)
			}
			name := "backup " + of.name
			rounds.add(name, megabytes, made.rate/1e6)
			rounds.add(name+" ÷ disk", measure.Times, made.rate/of.diskRate)
			if of.to != "" {
				rounds.add(name+" ÷ disk, copy", measure.Times, made.rate/disk.Copy)
			}
			rounds.add(name+": processor time of a MB", measure.Duration, float64(made.processor)/float64(made.bytes)*1e6)
			rounds.add(name+": bytes from the disk ÷ bytes", measure.Times, made.fromDisk)
			b.result.Add(measure.Metric{Name: name + ": bytes", At: float64(round + 1), Unit: measure.Bytes, Value: float64(made.bytes)})
		}
	}
	rounds.addTo(b.result)
	return nil
}

// A madeBackup is a backup that was made, and what it cost.
type madeBackup struct {
	info      *backup.Info
	bytes     int64         // of its files
	rate      float64       // in bytes per second, from the request for it until it was stored
	processor time.Duration // of this process, both ends
	fromDisk  float64       // what was read from the disk ÷ bytes
}

// makeBackup writes a backup to a new directory, as a plan does, or without one to nowhere.
func makeBackup(ctx context.Context, client *cluster.Client, base *backup.Info, dir string) (made madeBackup, err error) {
	began, processor := time.Now(), measure.ProcessorTime()
	read, _ := measure.BytesFromDisk()
	if dir == "" {
		made.info, err = backup.Write(ctx, client, io.Discard, backup.Options{Base: base})
	} else {
		made.info, err = storeBackup(ctx, client, base, dir)
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	if err != nil {
		return made, err
	}
	took := time.Since(began)
	readAfter, _ := measure.BytesFromDisk()
	made.bytes, _ = made.info.Bytes()
	made.rate, made.processor = float64(made.bytes)/took.Seconds(), measure.ProcessorTime()-processor
	made.fromDisk = float64(readAfter-read) / float64(max(made.bytes, 1))
	return made, nil
}

func storeBackup(ctx context.Context, client *cluster.Client, base *backup.Info, dir string) (info *backup.Info, err error) {
	from, to := io.Pipe()
	var writing sync.WaitGroup
	writing.Go(func() {
		var writeErr error
		info, writeErr = backup.Write(ctx, client, to, backup.Options{Base: base})
		to.CloseWithError(writeErr)
	})
	err = backup.Directory(dir).Put(ctx, "measured.backup", from)
	from.CloseWithError(err)
	writing.Wait()
	return info, err
}

// incremental measures incremental backups after changes: new instances, or events for old ones
// that are scattered over the whole state. The files of the state store also change some time
// afterwards, which a second backup shows.
func (b *backupMeasurement) incremental(ctx context.Context, scattered bool) error {
	name := "new instances"
	if scattered {
		name = "events of old instances"
	}
	for _, share := range backupChanges {
		if err := b.settle(ctx); err != nil {
			return err
		}
		base, err := makeBackup(ctx, b.client(), b.latest, "")
		if err != nil {
			return err
		}
		_, state := base.info.Bytes()
		payloads := max(1, int(state)*share/1000/heldBytes)
		if err := b.change(ctx, scattered, payloads); err != nil {
			return err
		}
		at := func(metric, unit string, value float64) {
			b.result.Add(measure.Metric{Name: fmt.Sprintf("incremental, %s of %g%%: %s", name, float64(share)/10, metric), Unit: unit, Value: value})
		}
		next, err := makeBackup(ctx, b.client(), base.info, "")
		if err != nil {
			return err
		}
		if err := b.settle(ctx); err != nil {
			return err
		}
		later, err := makeBackup(ctx, b.client(), next.info, "")
		if err != nil {
			return err
		}
		b.latest = later.info
		changed := float64(payloads) * heldBytes
		at("bytes", measure.Bytes, float64(next.bytes))
		at("÷ changed bytes", measure.Times, float64(next.bytes)/changed)
		at("÷ changed bytes, with the next one", measure.Times, float64(next.bytes+later.bytes)/changed)
	}
	return nil
}

// change changes the state by a number of payloads.
func (b *backupMeasurement) change(ctx context.Context, scattered bool, payloads int) error {
	if !scattered {
		from := b.held
		b.held += payloads
		return b.hold(ctx, from, b.held)
	}
	_, err := b.env.burst(ctx, "events", payloads, heldAtOnce, func(ctx context.Context, i int) error {
		to := rand.IntN(b.held)
		return cluster.Send(ctx, b.client(), heldID(to), content, heldContent(-i))
	})
	return err
}

// compareWindows runs sequences of five activities with and without backups alternately.
func (b *backupMeasurement) compareWindows(ctx context.Context) error {
	if _, err := b.window(ctx, "warm", b.windowLength(), ""); err != nil {
		return err
	}
	var length time.Duration // of the second window of a pair: that of the first
	work := measure.Metric{Name: "backup to a directory beside hello5", Unit: megabytes}
	pairs, err := b.env.pairWindows(b.result, "backups", backupPairs, work, func(number int, with bool) (window, error) {
		if number%2 == 0 {
			length = b.windowLength()
		}
		dir := ""
		if with {
			dir = b.sinkDir
		}
		w, err := b.window(ctx, fmt.Sprint("window-", number), length, dir)
		length = w.took
		return w, err
	})
	if err != nil {
		return err
	}
	addQuartiles(b.result, "hello5 with backups ÷ without: processor time each", processorRatios(pairs))
	return nil
}

func (b *backupMeasurement) windowLength() time.Duration {
	return max(backupWindowMin, min(backupWindowLimit, time.Duration(b.env.N)*time.Second/backupWindowMB))
}

// window runs sequences for a time. If dir is set, full backups are written to it, and the window
// ends with the one that is written when the time is over. Its work is their megabytes.
func (b *backupMeasurement) window(ctx context.Context, name string, length time.Duration, dir string) (w window, err error) {
	if err := measure.DropCached(b.env.Dir); err != nil {
		return w, err
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	var workers sync.WaitGroup
	var ended, next atomic.Int64
	call := b.callSequence(fmt.Sprint(name, "-", time.Now().UnixNano()), 5) // the state may have those of earlier runs
	failures := make([]error, b.env.C)
	meter := measure.StartMeter()
	processor := measure.ProcessorTime()
	for worker := range failures {
		workers.Go(func() {
			for running.Err() == nil && failures[worker] == nil {
				if err := retryBusy(running, int(next.Add(1)), call); running.Err() == nil {
					failures[worker] = err
					ended.Add(1)
				}
			}
		})
	}
	bytes := int64(0)
	for dir != "" && err == nil && meter.Elapsed() < length {
		var made madeBackup
		made, err = makeBackup(ctx, b.client(), nil, dir)
		bytes += made.bytes
	}
	if err == nil {
		err = sleep(ctx, length-meter.Elapsed())
	}
	w.took = meter.Elapsed()
	n := float64(max(ended.Load(), 1))
	w.rate, w.work = n/w.took.Seconds(), float64(bytes)/1e6/w.took.Seconds()
	w.processor = (measure.ProcessorTime() - processor).Seconds() / n
	stop()
	workers.Wait()
	return w, errors.Join(append(failures, err)...)
}
