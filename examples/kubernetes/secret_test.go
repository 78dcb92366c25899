package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/tenuto-dev/tenuto/internal/keytest"
)

// A secret is a mounted Secret, with the keys of all pods and a worker: a directory whose files are
// symbolic links through ..data, which is replaced at once when the Secret changes, as the kubelet
// does it.
type secret struct {
	t    *testing.T
	dir  string
	pods int
	next int
}

// update replaces the content: certificates by an authority, trusted are the given ones.
func (s *secret) update(by *keytest.Authority, trusted ...*keytest.Authority) {
	s.t.Helper()
	s.next++
	version := fmt.Sprint("..version-", s.next)
	content := map[string][]byte{}
	for _, a := range trusted {
		content["ca.crt"] = append(content["ca.crt"], a.PEM()...)
	}
	content["worker.crt"], content["worker.key"] = keytest.PEM(s.t, by.Client("worker"))
	for i := range s.pods {
		name := fmt.Sprint("tenuto-", i)
		content[name+".crt"], content[name+".key"] = keytest.PEM(s.t, by.Node(name))
	}
	check := func(err error) {
		if err != nil {
			s.t.Fatal(err)
		}
	}
	check(os.MkdirAll(filepath.Join(s.dir, version), 0o700))
	for name, bytes := range content {
		check(os.WriteFile(filepath.Join(s.dir, version, name), bytes, 0o600))
		if s.next == 1 {
			check(os.Symlink(filepath.Join("..data", name), filepath.Join(s.dir, name)))
		}
	}
	check(os.Symlink(version, filepath.Join(s.dir, "..data_tmp")))
	check(os.Rename(filepath.Join(s.dir, "..data_tmp"), filepath.Join(s.dir, "..data")))
	if s.next > 1 {
		check(os.RemoveAll(filepath.Join(s.dir, fmt.Sprint("..version-", s.next-1))))
	}
}

func (s *secret) file(name string) string { return filepath.Join(s.dir, name) }

// arguments returns those with the keys of a node or of the worker.
func (s *secret) arguments(name string) []string {
	return []string{"-cert", s.file(name + ".crt"), "-key", s.file(name + ".key"), "-ca", s.file("ca.crt")}
}

// presents reports whether a pod's certificate is by an authority.
func (d *deployment) presents(i int, by *keytest.Authority) bool {
	found := false
	connection, err := tls.Dial("tcp", d.at(i), &tls.Config{
		InsecureSkipVerify: true, // a node's certificate names its ID, not its host: verified below
		VerifyConnection: func(state tls.ConnectionState) error {
			_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: by.Roots()})
			found = err == nil
			return err
		},
	})
	if err == nil {
		_ = connection.Close()
	}
	return found
}

// The keys of nodes and clients come from a mounted Secret. All are replaced, with the authority,
// while the pods run; then pods start with the new ones.
func TestPods_KeysOfMountedSecretAreReplaced(t *testing.T) {
	t.Parallel()
	d := newDeployment(t, 3)
	before, after := keytest.NewAuthority(t), keytest.NewAuthority(t)
	d.secret = &secret{t: t, dir: t.TempDir(), pods: len(d.pods)}
	d.secret.update(before, before)
	for i := range d.pods {
		d.start(i)
	}
	client := d.dial()
	d.awaitMembers(client)
	d.order(client)
	pids := d.pids()

	d.secret.update(before, before, after)
	d.order(client)
	d.secret.update(after, before, after)
	for i := range d.pods {
		eventually(t, func() string { return fmt.Sprintf("tenuto-%d has the new certificate", i) }, func() bool { return d.presents(i, after) })
		d.order(client)
	}
	d.secret.update(after, after)
	d.order(d.dial()) // a new connection, with the new keys alone
	for i, pid := range d.pids() {
		if pid != pids[i] {
			t.Errorf("tenuto-%d was restarted", i)
		}
	}
	for i := range d.pods {
		d.end(i, syscall.SIGTERM)
		d.start(i)
		d.awaitMembers(client)
		d.order(client)
	}
	d.checkOrders(client)
}

func (d *deployment) pids() (all []int) {
	for _, pod := range d.pods {
		all = append(all, pod.Process.Pid)
	}
	return all
}
