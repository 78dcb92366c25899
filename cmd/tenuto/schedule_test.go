package main

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster/schedule"
)

func TestCommands_Schedules(t *testing.T) {
	address, client := startCluster(t)
	tenuto(t, address, "schedule", "create", "yearly", "hello", "-cron", "0 0 1 1 *", "-cron", "0 12 1 1 *", "-zone", "Europe/Berlin",
		"-calendar", `{"Months":[7]}`, "-input", `"Ada"`, "-summary", "a greeting").expect(t, 0)
	tenuto(t, address, "schedule", "create", "yearly", "hello", "-every", "1h").expect(t, 1, "exists")
	tenuto(t, address, "schedule", "list").expect(t, 0, "yearly  running  hello", "0:00Z  0  ")
	tenuto(t, address, "schedule", "pause", "yearly", "-note", "holidays").expect(t, 0)
	tenuto(t, address, "schedule", "update", "yearly", "-overlap", "buffer-all", "-jitter", "1m", "-calendar", "", "-cron", "0 6 1 1 *").expect(t, 0)
	tenuto(t, address, "schedule", "trigger", "yearly").expect(t, 0, "yearly-", "trigger", "running")
	tenuto(t, address, "schedule", "resume", "yearly", "-note", "back").expect(t, 0)
	tenuto(t, address, "schedule", "backfill", "yearly", "2024-12-31T00:00:00Z", "2026-01-02T00:00:00Z", "-overlap", "allow").
		expect(t, 0, "yearly-2025-01-01T05:00:00Z", "yearly-2026-01-01T05:00:00Z, backfill 2026-01-01T05:00:00Z, running\n")
	shown := tenuto(t, address, "schedule", "show", "yearly")
	shown.expect(t, 0, "orchestration  hello", `"Ada"`, "back", "-01-01T05:00:00Z\n", "started 3, skipped 0, missed 0")
	var d schedule.Description
	if err := json.Unmarshal([]byte(tenuto(t, address, "schedule", "show", "-json", "yearly").out), &d); err != nil {
		t.Fatal(err)
	}
	if len(d.Next) != 10 || d.Spec.Overlap != schedule.BufferAll || d.Spec.Jitter != time.Minute || len(d.Spec.Calendars) != 0 ||
		d.Spec.TimeZone != "Europe/Berlin" || d.Spec.Summary != "a greeting" {
		t.Errorf("shown %+v", d)
	}
	tenuto(t, address, "schedule", "list", "-json").expect(t, 0, `"ID":"yearly"`)
	tenuto(t, address, "schedule", "delete", "yearly").expect(t, 0)
	if _, err := client.Wait(t.Context(), "yearly"); err != nil {
		t.Error(err)
	}
	tenuto(t, address, "schedule", "trigger", "yearly").expect(t, 1, "ended")
}

func TestCommands_SchedulesRejectWrongInput(t *testing.T) {
	address, _ := startCluster(t)
	for _, line := range [][]string{
		{"create", "s", "hello"},
		{"create", "s", "hello", "-cron", "0 25 * * *"},
		{"create", "s", "hello", "-every", "1h", "-input", "{"},
		{"create", "s", "hello", "-calendar", `{"Day":[1]}`},
		{"create", "s", "hello", "-every", "1h", "-overlap", "often"},
		{"backfill", "s", "yesterday", "2026-01-02T00:00:00Z"},
	} {
		tenuto(t, address, append([]string{"schedule"}, line...)...).expect(t, 2)
	}
	tenuto(t, address, "schedule", "show", "never-1").expect(t, 1, "does not answer query")
	tenuto(t, address, "schedule", "delete", "never-1").expect(t, 1, "does not handle update")
}
