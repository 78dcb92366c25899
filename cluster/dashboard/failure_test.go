package dashboard_test

import (
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/dashboard"
	"github.com/tenuto-dev/tenuto/cluster/operate"
	"github.com/tenuto-dev/tenuto/replay"
)

func permitAll(cluster.Action, string) bool { return true }

// The work of a topic runs on a goroutine that streams share: a panic of the user's code in it ends
// the topic, and not the process.
func TestEvents_PanicEndsTheTopicAlone(t *testing.T) {
	client, server := rightsServer(t, permitAll, dashboard.Options{
		Redact: func(replay.PayloadInfo) bool { panic("redact") }, Logger: slog.New(slog.DiscardHandler),
	})
	completeRun(t, client, "i")
	stream := openStream(t, server, "/api/events?topics=instance:i")
	found := make(chan bool, 1)
	go func() {
		defer close(found)
		for stream.lines.Scan() {
			if stream.lines.Text() == "event: instance:i-error" {
				found <- true
				return
			}
		}
	}()
	for { // until the topic, which begins with the events that follow, has seen a run
		select {
		case ok := <-found:
			if !ok {
				t.Fatal("the stream has ended without the error")
			}
			if status, text := request(t, server, "GET", "/api/session", ""); status != http.StatusOK {
				t.Errorf("session: %d %s", status, text)
			}
			return
		default:
			if _, err := operate.Rerun(t.Context(), client, "i", "again"); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Errors are not internal if the caller can act on them; a body has one value.
func TestErrors_OfTheCaller(t *testing.T) {
	client, server := rightsServer(t, permitAll, dashboard.Options{})
	completeRun(t, client, "ended")
	for _, c := range []struct {
		method, path, body, code string
		status                   int
	}{
		{"POST", "/api/cluster/nodes/n9/remove", `{}`, "not_member", http.StatusNotFound},
		{"POST", "/api/cluster/nodes/n1/remove", `{}`, "last_voter", http.StatusConflict},
		{"POST", "/api/instances/i/cancel", `{"reason":"r"}}}`, "invalid", http.StatusBadRequest},
		{"POST", "/api/instances/i/cancel", `{"reason":"r"} {}`, "invalid", http.StatusBadRequest},
		{"POST", "/api/instances", `{"name":"none","id":"j"}`, "not_registered", http.StatusNotFound},
		{"GET", "/api/instances/ended/query/none", "", "not_registered", http.StatusNotFound},
		{"GET", "/api/jobs/ended", "", "not_registered", http.StatusNotFound},
		{"GET", "/api/schedules/ended", "", "not_registered", http.StatusNotFound},
		{"POST", "/api/instances/ended/rewind", `{"event_id":77}`, "cannot_copy", http.StatusConflict},
	} {
		if status, text := request(t, server, c.method, c.path, c.body); status != c.status || !strings.Contains(text, `"code":"`+c.code+`"`) {
			t.Errorf("%s %s: %d %s; want %d %s", c.path, c.body, status, text, c.status, c.code)
		}
	}
}
