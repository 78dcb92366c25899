package backup_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/backup"
	"github.com/tenuto-dev/tenuto/cluster/clustertest"
)

// Nodes of a cluster make scheduled backups, also after the node that made them has stopped. Every
// node's health shows the latest. A cluster that is restored from the newest one has what was
// acknowledged before, and those of that time have what was there then.
func TestPlan_InCluster(t *testing.T) {
	dir := backup.Directory(filepath.Join(t.TempDir(), "backups"))
	c := clustertest.New(t, 3, clustertest.Definitions(definitions()...), clustertest.Configure(func(_ int, c *cluster.Config) {
		c.Partitions, c.Backups = 2, backup.Plan{To: dir, Every: time.Second, Keep: 1000, Increments: 3}
	}))
	start := func(id string) {
		t.Helper()
		if _, err := cluster.StartRun(t.Context(), c.Client(0), waiter, id, "order"); err != nil {
			t.Fatal(err)
		}
	}
	list := func() []backup.Entry {
		t.Helper()
		entries, err := backup.List(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		return entries
	}
	awaitBackups := func(more int) {
		t.Helper()
		want := len(list()) + more
		eventually(t, fmt.Sprint(want, " backups"), func(context.Context) bool { return len(list()) >= want })
	}
	awaitBackups(1)
	start("early")
	awaitBackups(2) // the second begins after the start of the instance
	between := time.Now()
	start("late")
	c.Kill(c.Leader())
	awaitBackups(2)
	for i := range 3 {
		if c.Running(i) {
			eventually(t, "health shows the latest backup", func(context.Context) bool { return time.Since(c.Node(i).Health().LastBackup) < time.Minute })
		}
	}
	if v, err := backup.VerifyAt(t.Context(), t.TempDir(), dir, time.Time{}); err != nil || v.Instances != 2 || v.Events < 2 {
		t.Errorf("verified %+v, %v", v, err)
	}
	for at, want := range map[time.Time]bool{between: false, {}: true} {
		to := backup.Target{Dir: filepath.Join(t.TempDir(), "restored"), NodeID: "r1"}
		info, err := backup.RestoreAt(t.Context(), to, dir, at)
		if err != nil {
			t.Fatal(err)
		}
		node := startRestored(t, to.Dir, len(info.Partitions))
		_, earlyErr := node.Client().Get(t.Context(), "early")
		_, lateErr := node.Client().Get(t.Context(), "late")
		if earlyErr != nil || (lateErr == nil) != want {
			t.Errorf("restored to %v: early %v, late %v", info.Time, earlyErr, lateErr)
		}
	}
}

// A hungSink takes nothing and returns from nothing, whatever happens to the context, until it is
// released.
type hungSink struct {
	backup.Directory
	asked, released chan struct{}
}

// List implements backup.Sink.
func (s *hungSink) List(context.Context) (map[string]int64, error) {
	close(s.asked)
	<-s.released
	return nil, nil
}

// A destination that hangs, as a network file system can, does not keep a node from closing.
func TestPlan_SinkHangs(t *testing.T) {
	sink := &hungSink{asked: make(chan struct{}), released: make(chan struct{})}
	defer close(sink.released)
	node, err := cluster.Start(t.Context(), cluster.Config{
		Dir: t.TempDir(), Definitions: definitions(), Logger: slog.New(slog.DiscardHandler), StopGrace: time.Millisecond,
		Backups: backup.Plan{To: sink, Every: time.Second},
	})
	if err != nil {
		t.Fatal(err)
	}
	<-sink.asked
	closed := make(chan error, 1)
	go func() { closed <- node.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the node does not close")
	}
}
