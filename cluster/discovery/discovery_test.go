package discovery

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenuto-dev/tenuto/internal/dnstest"
	"github.com/tenuto-dev/tenuto/replay"
)

// A fakeResolver has fixed records.
type fakeResolver struct {
	hosts   []string
	records []*net.SRV
	err     error
	hang    bool
	asked   string
}

func (r *fakeResolver) LookupHost(ctx context.Context, host string) ([]string, error) {
	r.asked = host
	if r.hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return r.hosts, r.err
}

func (r *fakeResolver) LookupSRV(_ context.Context, service, proto, name string) (string, []*net.SRV, error) {
	r.asked = fmt.Sprintf("_%s._%s.%s", service, proto, name)
	return name, r.records, r.err
}

func TestDNS_ReturnsAddressesWithPort(t *testing.T) {
	resolver := &fakeResolver{hosts: []string{"10.0.0.2", "fd00::1", "10.0.0.1", "10.0.0.2"}}
	got, err := DNS("tenuto.default.svc", 7400, resolver)(t.Context())
	want := []string{"10.0.0.1:7400", "10.0.0.2:7400", "[fd00::1]:7400"}
	if err != nil || !slices.Equal(got, want) || resolver.asked != "tenuto.default.svc" {
		t.Errorf("got %v, %v for %s; want %v", got, err, resolver.asked, want)
	}
}

func TestSRV_ReturnsTargetsWithTheirPorts(t *testing.T) {
	resolver := &fakeResolver{
		records: []*net.SRV{{Target: "t-1.tenuto.", Port: 7401}, {Target: "t-0.tenuto.", Port: 7400}},
		err:     errors.New("some records are not valid"),
	}
	got, err := SRV("raft", "tcp", "tenuto", resolver)(t.Context())
	if want := []string{"t-0.tenuto:7400", "t-1.tenuto:7401"}; err != nil || !slices.Equal(got, want) || resolver.asked != "_raft._tcp.tenuto" {
		t.Errorf("got %v, %v for %s; want %v", got, err, resolver.asked, want)
	}
}

func TestFile_IsReadAtEachCall(t *testing.T) {
	path := filepath.Join(t.TempDir(), "nodes")
	find := File(path)
	if _, err := find(t.Context()); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Errorf("without the file: %v", err)
	}
	for _, version := range []struct {
		content string
		want    []string
	}{
		{"# nodes\n\n b:1 \na:1\nb:1\n", []string{"a:1", "b:1"}},
		{"c:1", []string{"c:1"}},
	} {
		if err := os.WriteFile(path, []byte(version.content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := find(t.Context()); err != nil || !slices.Equal(got, version.want) {
			t.Errorf("%q: %v, %v", version.content, got, err)
		}
	}
	for content, want := range map[string]string{
		"a:1\nb\n":                            "line 2",
		strings.Repeat("#", FileBytesMax+1):   fmt.Sprint(FileBytesMax),
		"# only\n":                            ErrNone.Error(),
		"a:1\nhttps://b:1/\n":                 "line 2",
		strings.Repeat("a:1\n", FileBytesMax): fmt.Sprint(FileBytesMax),
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		var failed *Error
		if _, err := find(t.Context()); !errors.As(err, &failed) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: %v; want %q", content, err, want)
		}
	}
	if _, err := File(t.TempDir())(t.Context()); err == nil || !strings.Contains(err.Error(), "regular file") {
		t.Errorf("a directory: %v", err)
	}
}

func TestDNS_BoundsAddresses(t *testing.T) {
	resolver := new(fakeResolver)
	for i := range 200 {
		resolver.hosts = append(resolver.hosts, fmt.Sprintf("10.0.1.%03d", 200-i))
	}
	got, err := DNS("many", 1, resolver)(t.Context())
	if err != nil || len(got) != AddressesMax || got[0] != "10.0.1.001:1" || got[63] != "10.0.1.064:1" {
		t.Errorf("%d addresses, %v: %v", len(got), err, got)
	}
}

func TestFunctions_ErrorsNameWhatFailed(t *testing.T) {
	notFound := &net.DNSError{Err: "no such host", Name: "x", IsNotFound: true}
	for _, find := range []Func{DNS("x", 1, &fakeResolver{err: notFound}), SRV("", "", "x", &fakeResolver{err: notFound}), DNS("x", 1, new(fakeResolver))} {
		var failed *Error
		if _, err := find(t.Context()); !errors.Is(err, ErrNone) || !errors.As(err, &failed) || !strings.HasSuffix(failed.Source, " x") {
			t.Errorf("a name without records: %v", err)
		}
	}
	for field, find := range map[string]Func{
		"name": DNS("", 1, nil), "port": DNS("x", 65536, nil), "service": SRV("raft", "", "x", nil), "path": File(""),
	} {
		var invalid *replay.InvalidError
		if _, err := find(t.Context()); !errors.As(err, &invalid) || invalid.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestDNS_IsBoundedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if _, err := DNS("x", 1, &fakeResolver{hang: true})(t.Context()); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != Timeout {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

// The same over the wire: a DNS server on loopback, whose records change.
func TestFunctions_AskDNSServer(t *testing.T) {
	server := dnstest.Start(t)
	server.Set("10.0.0.1", "10.0.0.2")
	server.SetTargets("t-1.tenuto.test:7401", "t-0.tenuto.test:7400")
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", server.Address())
	}}
	byName, byService := DNS("tenuto.test.", 7400, resolver), SRV("raft", "tcp", "tenuto.test.", resolver)
	if got, err := byName(t.Context()); err != nil || !slices.Equal(got, []string{"10.0.0.1:7400", "10.0.0.2:7400"}) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := byService(t.Context()); err != nil || !slices.Equal(got, []string{"t-0.tenuto.test:7400", "t-1.tenuto.test:7401"}) {
		t.Errorf("%v, %v", got, err)
	}
	server.Set("10.0.0.9")
	if got, err := byName(t.Context()); err != nil || !slices.Equal(got, []string{"10.0.0.9:7400"}) {
		t.Errorf("after a change: %v, %v", got, err)
	}
	server.Set()
	if _, err := byName(t.Context()); !errors.Is(err, ErrNone) {
		t.Errorf("without records: %v", err)
	}
}
