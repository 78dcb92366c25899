package main

import (
	"bytes"
	"fmt"
	"path/filepath"
	"reflect"
	"sort"
	"strings"
	"testing"

	"github.com/tenuto-dev/tenuto/cluster/schedule"
	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/certificate"
	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/output"
)

// runAlone runs a command that needs no cluster.
func runAlone(t *testing.T, env map[string]string, line ...string) outcome {
	t.Helper()
	var out, stderr bytes.Buffer
	s := streams{out: &out, err: &stderr, env: func(name string) string { return env[name] }, written: new(*output.Documents)}
	status := run(t.Context(), line, s)
	return outcome{status, out.String(), stderr.String()}
}

func TestHelp_Golden(t *testing.T) {
	all := runAlone(t, nil, "help")
	all.expect(t, statusOK)
	checkGolden(t, filepath.Join("help", "help.txt"), all.out)
	for _, c := range allCommands() {
		o := runAlone(t, nil, append(strings.Fields(c.name), "-h")...)
		o.expect(t, statusOK, "usage: tenuto "+c.name)
		if o.err != "" || strings.Contains(o.out, "\t") {
			t.Errorf("help of %s: %q", c.name, o.err)
		}
		for line := range strings.Lines(o.out) {
			if len(line) > 160 {
				t.Errorf("help of %s: a line of %d characters: %s", c.name, len(line), line)
			}
		}
		checkGolden(t, filepath.Join("help", strings.ReplaceAll(c.name, " ", "-")+".txt"), o.out)
	}
}

// Both forms of a flag, before and after the arguments, are the same.
func TestFlags_OneDashAndTwo(t *testing.T) {
	for _, line := range []string{"cert -commands -nodes n1", "cert --commands --nodes=n1", "cert --nodes n1 -commands=true"} {
		runAlone(t, nil, strings.Fields(line)...).expect(t, statusOK, "tenuto://tenuto/node/n1")
	}
}

// TestJSONFields_Golden keeps the fields of JSON output, which programs read.
func TestJSONFields_Golden(t *testing.T) {
	var text strings.Builder
	for _, shown := range []struct {
		commands string
		value    any
	}{
		{"list, get, wait", instance{}},
		{"pending", operation{}},
		{"count", group{}},
		{"stack", coroutine{}},
		{"history, watch", watchedEvent{}},
		{"audit", auditRecord{}},
		{"start", started{}},
		{"send, cancel, terminate, suspend, resume, purge, retry, hold, release, fire, adjust, complete, fail, activity, schedule, bulk, remove, adopt, transfer, drain, role, rerun, rewind, fork", changed{}},
		{"activity list", pause{}},
		{"schedule list, schedule show", schedule.Description{}},
		{"schedule trigger, schedule backfill", schedule.Start{}},
		{"bulk list, bulk show", bulkProgress{}},
		{"bulk start -dry-run", bulkPreview{}},
		{"bulk refusals", refusal{}},
		{"members", member{}},
		{"health", clusterHealth{}},
		{"verify", comparedPartition{}},
		{"verify (differences)", difference{}},
		{"verify FILE", verifiedBackup{}},
		{"verify -list, restore -list", listedBackup{}},
		{"token", issuedToken{}},
		{"token -list", joinToken{}},
		{"cert", certificate.File{}},
		{"profile list, profile show", shownProfile{}},
		{"version", buildVersion{}},
	} {
		fmt.Fprintf(&text, "%s:\n", shown.commands)
		for _, field := range jsonFields(reflect.TypeOf(shown.value)) {
			fmt.Fprintf(&text, "  %s\n", field)
		}
	}
	checkGolden(t, "json-fields.txt", text.String())
}

// jsonFields returns the names and types of the fields of a struct.
func jsonFields(of reflect.Type) (fields []string) {
	for i := range of.NumField() {
		f := of.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || name == "-" {
			continue
		}
		if name == "" {
			name = f.Name
		}
		if strings.Contains(options, "omit") {
			name += "?"
		}
		fields = append(fields, name+" "+f.Type.String())
	}
	sort.Strings(fields)
	return fields
}
