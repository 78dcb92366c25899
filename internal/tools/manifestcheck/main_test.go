package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

const usage = `Usage:
  -advertise address
  -ca file
  -cert file
  -dir directory
  -drain time
  -found number
  -id ID
  -key file
  -listen address
  -orders address
  -port port
  -probes address
  -replace-after time
  -service name
  -worker
  -zone zone
`

// The manifests of the example are accepted, and mistakes in them are found.
func TestCheck_FindsMistakes(t *testing.T) {
	content, err := os.ReadFile("../../../examples/kubernetes/tenuto.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if count, errs := check(content, usage); count != 6 || len(errs) > 0 {
		t.Errorf("%d manifests, %v", count, errs)
	}
	for _, mistake := range []struct{ from, to, want string }{
		{"podManagementPolicy: Parallel", "podManagmentPolicy: Parallel", `unknown field "podManagmentPolicy"`},
		{"podManagementPolicy: Parallel", "podManagementPolicy: OrderedReady", "must be Parallel"},
		{"publishNotReadyAddresses: true", "publishNotReadyAddresses: yes please", "cannot unmarshal"},
		{"publishNotReadyAddresses: true", "publishNotReadyAddresses: false", "no headless Service"},
		{"replicas: 3", "replicas: three", "cannot unmarshal"},
		{"replicas: 3", "replicas: 3\n  replicas: 5", "already set"},
		{"storage: 20Gi", "storage: 20Gigs", "quantities must match"},
		{"selector: {app: tenuto, part: worker}", "selector: {app: tenuto, part: walker}", "selects no pods"},
		{"{path: /readyz, port: probes}", "{path: /ready, port: probes}", "does not serve"},
		{"{path: /readyz, port: probes}", "{path: /readyz, port: probe}", "no container has the port"},
		{"-found=3", "-bootstrap=3", "no flag -bootstrap"},
		{"-id=$(POD_NAME)", "-id=$(POD)", "POD is not set"},
		{"{name: journal, mountPath", "{name: disk, mountPath", "no such volume"},
		{"maxUnavailable: 1 #", "maxUnavailable: 1\n  minAvailable: 2 #", "one of minAvailable"},
		{"kind: StatefulSet", "kind: StatefulSets", "unknown kind"},
		{"limits: {memory: 2Gi}", "limits: {memory: 2Mi}", "below what it requests"},
		{"{port: tenuto, protocol: TCP}", "{port: raft, protocol: TCP}", "has no port"},
	} {
		broken := strings.Replace(string(content), mistake.from, mistake.to, 1)
		if broken == string(content) {
			t.Errorf("the manifests do not contain %q", mistake.from)
		}
		if _, errs := check([]byte(broken), usage); !strings.Contains(fmt.Sprint(errs), mistake.want) {
			t.Errorf("%s: %v; want %q", mistake.to, errs, mistake.want)
		}
	}
}
