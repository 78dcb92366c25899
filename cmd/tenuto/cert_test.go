package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/sample"
	"github.com/tenuto-dev/tenuto/internal/addresstest"
)

// startWithKeys starts a cluster of three nodes with the certificates in a directory. Its clients
// must not terminate.
func startWithKeys(t *testing.T, dir string) (addresses string) {
	t.Helper()
	var peers []cluster.Peer
	for _, id := range []string{"n1", "n2", "n3"} {
		peers = append(peers, cluster.Peer{NodeID: id, Address: addresstest.Free(t)})
	}
	for _, peer := range peers {
		path := filepath.Join(dir, "node-"+peer.NodeID)
		node, err := cluster.Start(t.Context(), cluster.Config{
			Logger: slog.New(slog.DiscardHandler), InMemory: true, ClusterID: "shop", NodeID: peer.NodeID, Listen: peer.Address, Peers: peers,
			TLS:         cluster.KeyFiles(path+".crt", path+".key", filepath.Join(dir, "ca.crt")),
			Definitions: sample.Definitions(),
			Authorize: func(_ context.Context, caller cluster.Principal, action cluster.Action, _ string) error {
				if caller.Name != "operator" || action == cluster.ActionTerminate {
					return errors.New("not this one")
				}
				return nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = node.Close() })
		addresses += "," + peer.Address
	}
	return strings.TrimPrefix(addresses, ",")
}

// callWithKeys calls the cluster as the client "operator".
func callWithKeys(t *testing.T, dir, addresses string) {
	t.Helper()
	env := map[string]string{
		"TENUTO_ADDR": addresses, "TENUTO_CLUSTER": "shop", "TENUTO_CA": filepath.Join(dir, "ca.crt"), "XDG_CONFIG_HOME": t.TempDir(),
		"TENUTO_CERT": filepath.Join(dir, "client-operator.crt"), "TENUTO_KEY": filepath.Join(dir, "client-operator.key"),
	}
	runAlone(t, env, "start", "order", "order-1", `{"item":"book","amount":1}`).expect(t, statusOK)
	runAlone(t, env, "cancel", "order-1", "-reason", "enough", "-as", "alice").expect(t, statusOK)
	runAlone(t, env, "wait", "order-1").expect(t, statusRejected, "order-1  canceled")
	runAlone(t, env, "audit", "-json").expect(t, statusOK, `"principal":"client operator for alice","reason":"enough"`)
	runAlone(t, env, "terminate", "order-1", "-yes").expect(t, statusNotPermitted, "not authorized")
	env["TENUTO_CLUSTER"] = ""
	runAlone(t, env, "list").expect(t, statusUsage, `the certificate is of cluster "shop", not of "tenuto"`)
}

func TestCert_ServesMutualTLS(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "certs")
	line := []string{"cert", "-dir", dir, "-cluster", "shop", "-nodes", "n1,n2", "-clients", "operator", "-days", "2"}
	made := runAlone(t, nil, line...)
	made.expect(t, statusOK, `TLS: cluster.KeyFiles("`+filepath.Join(dir, "node-n1.crt"), "tenuto cert -commands")
	if got := strings.Count(made.out, "\n"); got != 9 {
		t.Errorf("%d lines:\n%s", got, made.out)
	}
	before, err := os.ReadFile(filepath.Join(dir, "node-n1.crt"))
	if err != nil {
		t.Fatal(err)
	}
	runAlone(t, nil, line...).expect(t, statusRejected, "node-n1.crt exists already: nothing was written")
	runAlone(t, nil, "cert", "-dir", dir, "-cluster", "shop", "-nodes", "n3,n1").expect(t, statusRejected, "exists already")
	if _, err := os.Lstat(filepath.Join(dir, "node-n3.crt")); err == nil {
		t.Error("a certificate was made although another exists")
	}
	runAlone(t, nil, "cert", "-dir", dir, "-cluster", "shop", "-nodes", "n3").expect(t, statusOK) // signed by the same authority
	after, err := os.ReadFile(filepath.Join(dir, "node-n1.crt"))
	if err != nil || string(before) != string(after) {
		t.Errorf("node-n1.crt was changed: %v", err)
	}
	for _, name := range []string{"ca.key", "node-n1.key", "client-operator.key"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	callWithKeys(t, dir, startWithKeys(t, dir))
}

func TestCert_RejectsWhatItCannotUse(t *testing.T) {
	dir := t.TempDir()
	for line, want := range map[string]string{
		"-nodes n/1":             "1 to 64 characters",
		"-nodes n1 -cluster a:b": "1 to 64 characters",
		"-nodes n1 -days 0":      "an hour at least",
		"-clients ,":             "name nodes or clients",
	} {
		runAlone(t, nil, append([]string{"cert", "-dir", dir}, strings.Fields(line)...)...).expect(t, statusUsage, want)
	}
	if err := os.WriteFile(filepath.Join(dir, "ca.crt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	runAlone(t, nil, "cert", "-dir", dir, "-nodes", "n1").expect(t, statusRejected, "needs both ca.crt and ca.key")
}

// The printed commands make certificates that a cluster accepts.
func TestCert_CommandsForProduction(t *testing.T) {
	openssl := installed(t, "openssl")
	shell := installed(t, "sh")
	script := runAlone(t, nil, "cert", "-commands", "-cluster", "shop", "-nodes", "n1,n2,n3", "-clients", "operator")
	script.expect(t, statusOK, "-addext", "serverAuth", "tenuto://shop/client/operator")
	checkGolden(t, "cert-commands.txt", script.out)
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	commands := exec.CommandContext(ctx, shell, "-ec", script.out)
	commands.Dir = dir
	commands.Env = append(os.Environ(), "PATH="+filepath.Dir(openssl)+":"+os.Getenv("PATH"))
	if out, err := commands.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	callWithKeys(t, dir, startWithKeys(t, dir))
}
