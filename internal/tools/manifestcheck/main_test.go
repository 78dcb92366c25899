package main

import (
	"fmt"
	"os"
	"regexp"
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
		// Values that an enumeration does not have.
		{"whenUnsatisfiable: ScheduleAnyway", "whenUnsatisfiable: Never", "'DoNotSchedule', 'ScheduleAnyway'"},
		{"accessModes: [ReadWriteOncePod]", "accessModes: [Foo]", "'ReadWriteOncePod'"},
		{"policyTypes: [Ingress]", "policyTypes: [X]", "'Egress', 'Ingress'"},
		{"type: RollingUpdate # one pod", "type: RollingUpdat # one pod", "'OnDelete', 'Recreate', 'RollingUpdate'"},
		{"type: RollingUpdate # new pods", "type: Recrate # new pods", "'Recreate', 'RollingUpdate'"},
		{"seccompProfile: {type: RuntimeDefault}", "seccompProfile: {type: X}", "'RuntimeDefault'"},
		{"podManagementPolicy: Parallel", "podManagementPolicy: Paralel", "'OrderedReady', 'Parallel'"},
		{"unhealthyPodEvictionPolicy: AlwaysAllow", "unhealthyPodEvictionPolicy: Always", "'AlwaysAllow'"},
		{"protocol: TCP", "protocol: TPC", "'TCP'"},
		{"whenScaled: Retain", "whenScaled: Keep", "Retain"},
		// Required fields that are missing.
		{"seccompProfile: {type: RuntimeDefault}", "seccompProfile: {}", "missing property 'type'"},
		{"maxSkew: 1", "# maxSkew: 1", "missing property 'maxSkew'"},
		{"- name: POD_NAME\n              valueFrom", "- valueFrom", "missing property 'name'"},
		{"{path: /healthz, port: probes}", "{path: /healthz}", "missing property 'port'"},
		{", mountPath: /var/lib/tenuto}", "}", "missing property 'mountPath'"},
		{"{name: probes, containerPort: 8080}", "{name: probes}", "missing property 'containerPort'"},
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

// The schemas are of the release that the types are of: v0.N.P of k8s.io/api is of Kubernetes
// 1.N.P. After a change of the version in go.mod, "make schemas" takes them again.
func TestSchemas_AreOfReleaseOfTypes(t *testing.T) {
	module, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	types := regexp.MustCompile(`k8s\.io/api v0\.(\S+)`).FindSubmatch(module)
	schemas := regexp.MustCompile(`k8s\.io/kubernetes v1\.(\S+) h1:`).FindSubmatch(schemaFile)
	if types == nil || schemas == nil || string(types[1]) != string(schemas[1]) {
		t.Errorf("types of %q, schemas of %q", types, schemas)
	}
}
