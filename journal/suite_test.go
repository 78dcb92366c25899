package journal_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/journal/journaltest"
)

func TestSuite(t *testing.T) {
	open := func(c journal.Config) (journaltest.Journal, error) {
		return journal.Open(context.Background(), c)
	}
	config := func(dir string) journal.Config {
		return journal.Config{
			Node: "n1", Dir: dir, Logger: slog.New(slog.DiscardHandler),
			HeartbeatTimeout: 20 * time.Millisecond, ElectionTimeout: 20 * time.Millisecond,
			StallLimit: time.Hour, // no machine is so slow
		}
	}
	t.Run("memory", func(t *testing.T) {
		journaltest.Run(t, journaltest.Subject{Open: func(string) (journaltest.Journal, error) { return open(config("")) }})
	})
	t.Run("disk", func(t *testing.T) {
		journaltest.Run(t, journaltest.Subject{
			Durable: true,
			Open:    func(dir string) (journaltest.Journal, error) { return open(config(dir)) },
			OpenFaulty: func(dir string, f journaltest.Fault) (journaltest.Journal, error) {
				return open(journal.WithWriteFault(config(dir), f.Call, f.Torn, f.DiskFull))
			},
		})
	})
}
