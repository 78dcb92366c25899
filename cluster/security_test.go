package cluster

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/cluster/internal/transport"
)

// An attacker opens a connection to a node and proceeds as if it was accepted.
type attacker func(address string) (net.Conn, error)

// attackInPlaintext sends the preamble and proceeds.
func attackInPlaintext(address string) (net.Conn, error) {
	conn, err := net.Dial("tcp", address)
	if err == nil {
		_, err = conn.Write(append([]byte(transport.PreambleMagic), byte(transport.Raft)))
	}
	return conn, err
}

// attackOverTLS shows a certificate, nil for none, and accepts any from the node.
func attackOverTLS(certificate *tls.Certificate, required transport.Purpose, changes ...func(*tls.Config)) attacker {
	return func(address string) (net.Conn, error) {
		config := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{required.ALPN()}}
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if certificate == nil {
				return new(tls.Certificate), nil
			}
			return certificate, nil
		}
		for _, change := range changes {
			change(config)
		}
		return tls.Dial("tcp", address, config)
	}
}

// attackerStreamLayer is a stream layer for the Raft library's transport that dials as an attacker.
type attackerStreamLayer struct {
	net.Listener
	attack attacker
}

func (a attackerStreamLayer) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	conn, err := a.attack(string(address))
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(timeout))
	var answer [1]byte
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if testPartitionsDefault > 1 {
		_, err = conn.Write([]byte{transport.PartitionMagic, 0, byte(testPartitionsDefault)})
	}
	return conn, err
}

// A forgery is a Raft message by which an attacker would take over a cluster.
type forgery func(to *raft.NetworkTransport, id raft.ServerID, address raft.ServerAddress, header raft.RPCHeader) error

const forgedTerm = 1 << 40

func forgedVote(to *raft.NetworkTransport, id raft.ServerID, address raft.ServerAddress, header raft.RPCHeader) error {
	return to.RequestVote(id, address, &raft.RequestVoteRequest{
		RPCHeader: header, Term: forgedTerm, LastLogIndex: forgedTerm, LastLogTerm: forgedTerm, LeadershipTransfer: true,
	}, new(raft.RequestVoteResponse))
}

func forgedPreVote(to *raft.NetworkTransport, id raft.ServerID, address raft.ServerAddress, header raft.RPCHeader) error {
	return to.RequestPreVote(id, address, &raft.RequestPreVoteRequest{
		RPCHeader: header, Term: forgedTerm, LastLogIndex: forgedTerm, LastLogTerm: forgedTerm,
	}, new(raft.RequestPreVoteResponse))
}

func forgedHeartbeat(to *raft.NetworkTransport, id raft.ServerID, address raft.ServerAddress, header raft.RPCHeader) error {
	return to.AppendEntries(id, address, &raft.AppendEntriesRequest{RPCHeader: header, Term: forgedTerm}, new(raft.AppendEntriesResponse))
}

func forgedSnapshot(to *raft.NetworkTransport, id raft.ServerID, address raft.ServerAddress, header raft.RPCHeader) error {
	return to.InstallSnapshot(id, address, &raft.InstallSnapshotRequest{
		RPCHeader: header, SnapshotVersion: 1, Term: forgedTerm, LastLogIndex: forgedTerm, LastLogTerm: forgedTerm, Size: 6,
	}, new(raft.InstallSnapshotResponse), strings.NewReader("forged"))
}

func forgedEntry(to *raft.NetworkTransport, id raft.ServerID, address raft.ServerAddress, header raft.RPCHeader) error {
	entry := &raft.Log{Index: forgedTerm, Term: forgedTerm, Type: raft.LogCommand, Data: []byte("forged")}
	return to.AppendEntries(id, address, &raft.AppendEntriesRequest{
		RPCHeader: header, Term: forgedTerm, Entries: []*raft.Log{entry}, LeaderCommitIndex: forgedTerm,
	}, new(raft.AppendEntriesResponse))
}

func forgedElection(to *raft.NetworkTransport, id raft.ServerID, address raft.ServerAddress, header raft.RPCHeader) error {
	return to.TimeoutNow(id, address, &raft.TimeoutNowRequest{RPCHeader: header}, new(raft.TimeoutNowResponse))
}

// forge sends forgeries in the name of a node, and returns how many were answered.
func forge(t *testing.T, attack attacker, target *Node, as string, forgeries ...forgery) (answered int) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	raftTransport := raft.NewNetworkTransport(attackerStreamLayer{listener, attack}, 1, testTimeout, io.Discard)
	defer raftTransport.Close()
	header := raft.RPCHeader{ProtocolVersion: 3, ID: []byte(as), Addr: []byte(listener.Addr().String())}
	for _, send := range forgeries {
		if err := send(raftTransport, raft.ServerID(target.ID()), raft.ServerAddress(target.config.Listen), header); err == nil {
			answered++
		}
	}
	return answered
}

// expectUnharmed fails the test if a node has accepted a forgery or changed its state. (Its term
// may grow by itself when heartbeats are late on a busy machine, but not so far.)
func expectUnharmed(t *testing.T, n *Node, before [sha256.Size]byte) {
	t.Helper()
	if term := n.partitions[0].journal.Term(); term >= forgedTerm {
		t.Errorf("%s is in term %d", n.ID(), term)
	}
	if leader := n.Leader(); leader != "" && !n.partitions[0].journal.IsMember(leader) {
		t.Errorf("%s is led by %s", n.ID(), leader)
	}
	if after, err := n.partitionOf("before").journal.Hash("before"); err != nil || after != before {
		t.Errorf("%s: what it knew became %x, %v", n.ID(), after, err)
	}
	if n.Err() != nil {
		t.Errorf("%s failed: %v", n.ID(), n.Err())
	}
}

// recordKnownState records a state on every node before an attack and returns its hash.
func recordKnownState(t *testing.T, nodes []*Node) [sha256.Size]byte {
	t.Helper()
	callThrough(testContext(t), t, nodes[0], "before")
	expectSameHistories(t, nodes)
	hash, err := nodes[0].partitionOf("before").journal.Hash("before")
	if err != nil {
		t.Fatal(err)
	}
	return hash
}

func withValidity(from, to time.Duration) func(*x509.Certificate) {
	return func(c *x509.Certificate) {
		c.NotBefore, c.NotAfter = time.Now().Add(from), time.Now().Add(to)
	}
}

func withKeyUsage(usage ...x509.ExtKeyUsage) func(*x509.Certificate) {
	return func(c *x509.Certificate) { c.ExtKeyUsage = usage }
}

func TestRaftTransport_RejectsForgedFrames(t *testing.T) {
	t.Parallel()
	trusted, others := newAuthority(t), newAuthority(t)
	nodes, logs := startWithTLS(t, trusted, nil)
	ctx := testContext(t)
	before := recordKnownState(t, nodes)
	node := func(identity ...string) *tls.Certificate { return trusted.Issue(identity) }
	changed := func(change func(*x509.Certificate)) *tls.Certificate {
		return trusted.Issue([]string{"tenuto://tenuto/node/n2"}, change)
	}
	attacks := map[string]attacker{
		"in plaintext":                          attackInPlaintext,
		"without a certificate":                 attackOverTLS(nil, transport.Raft),
		"with a client's":                       attackOverTLS(trusted.Client("n2"), transport.Raft),
		"with that of a node that is no member": attackOverTLS(trusted.Node("n9"), transport.Raft),
		"of another authority":                  attackOverTLS(others.Node("n2"), transport.Raft),
		"that has expired":                      attackOverTLS(changed(withValidity(-2*time.Hour, -time.Minute)), transport.Raft),
		"that is not yet valid":                 attackOverTLS(changed(withValidity(time.Hour, 2*time.Hour)), transport.Raft),
		"that is for servers only":              attackOverTLS(changed(withKeyUsage(x509.ExtKeyUsageServerAuth)), transport.Raft),
		"of another cluster":                    attackOverTLS(node("tenuto://another/node/n2"), transport.Raft),
		"without an identity":                   attackOverTLS(node(), transport.Raft),
		"with two identities":                   attackOverTLS(node("tenuto://tenuto/node/n2", "tenuto://tenuto/client/x"), transport.Raft),
		"with an unknown role":                  attackOverTLS(node("tenuto://tenuto/admin/n2"), transport.Raft),
		"with a path for a name":                attackOverTLS(node("tenuto://tenuto/node/n9/../n2"), transport.Raft),
		"by TLS 1.2":                            attackOverTLS(trusted.Node("n2"), transport.Raft, func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 }),
		"without a protocol":                    attackOverTLS(trusted.Node("n2"), transport.Raft, func(c *tls.Config) { c.NextProtos = nil }),
		"with another protocol":                 attackOverTLS(trusted.Node("n2"), transport.Raft, func(c *tls.Config) { c.NextProtos = []string{"h2"} }),
	}
	for name, attack := range attacks {
		t.Run(name, func(t *testing.T) {
			for i, target := range nodes {
				logged := logs[i].countLines("incoming connection rejected")
				rejected := target.partitions[0].journal.Stats().MessagesRejected
				if n := forge(t, attack, target, "n2", forgedVote, forgedEntry, forgedElection); n > 0 {
					t.Errorf("%s has answered %d of them", target.ID(), n)
				}
				if read := target.partitions[0].journal.Stats().MessagesRejected - rejected; read > 0 {
					t.Fatalf("%s has read %d of them", target.ID(), read)
				}
				eventually(t, "it is logged", func() bool {
					return logs[i].countLines("incoming connection rejected") > logged || target.mux.RejectionLinesLeft() == 0
				})
				expectUnharmed(t, target, before)
			}
		})
	}
	for _, node := range nodes {
		callThrough(ctx, t, node, "after-"+node.ID())
	}
	expectSameHistories(t, nodes)
}

// A member with valid keys acts only for itself, and only while it is a member. Entries with gaps,
// which make the Raft library panic, are accepted from no node.
func TestRaftTransport_MemberCannotImpersonate(t *testing.T) {
	t.Parallel()
	trusted := newAuthority(t)
	nodes, logs := startWithTLS(t, trusted, nil)
	before := recordKnownState(t, nodes)
	for name, attempt := range map[string]struct {
		as        string
		forgeries []forgery
	}{
		"another member's name": {"n1", []forgery{forgedVote, forgedPreVote, forgedEntry, forgedHeartbeat, forgedElection}},
		"a stranger's name":     {"n9", []forgery{forgedVote, forgedPreVote, forgedEntry, forgedHeartbeat, forgedElection}},
		"no name":               {"", []forgery{forgedVote, forgedPreVote, forgedEntry, forgedHeartbeat, forgedElection}},
		"a snapshot":            {"n1", []forgery{forgedSnapshot}},
		"its own, with gaps":    {"n2", []forgery{forgedEntry}},
	} {
		for i, target := range nodes {
			if target.ID() == "n2" {
				continue
			}
			rejected := target.partitions[0].journal.Stats().MessagesRejected
			if n := forge(t, attackOverTLS(trusted.Node("n2"), transport.Raft), target, attempt.as, attempt.forgeries...); n > 0 {
				t.Errorf("%s: %s has taken %d of them", name, target.ID(), n)
			}
			if counted := target.partitions[0].journal.Stats().MessagesRejected - rejected; counted != uint64(len(attempt.forgeries)) {
				t.Errorf("%s: %s has counted %d of %d", name, target.ID(), counted, len(attempt.forgeries))
			}
			if logs[i].countLines("message rejected") == 0 {
				t.Errorf("%s: %s has logged nothing", name, target.ID())
			}
			expectUnharmed(t, target, before)
		}
	}
	for _, node := range nodes {
		callThrough(testContext(t), t, node, "after-"+node.ID())
	}
	expectSameHistories(t, nodes)
}

// A dialed node must be the intended one.
func TestDialer_RejectsImpostorNode(t *testing.T) {
	checkGoroutineLeaks(t)
	trusted := newAuthority(t)
	answer := func(keys *Keys) string {
		t.Helper()
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = listener.Close() })
		config := &tls.Config{
			Certificates: []tls.Certificate{*keys.Certificate}, ClientAuth: tls.RequireAnyClientCert,
			NextProtos: []string{transport.Raft.ALPN(), transport.Calls.ALPN()},
		}
		go func() {
			conn, err := tls.NewListener(listener, config).Accept()
			if err == nil {
				_, _ = conn.Write([]byte{transport.Admitted})
				_, _ = io.Copy(io.Discard, conn)
				_ = conn.Close()
			}
		}()
		return listener.Addr().String()
	}
	tlsSource, err := newTLSSource(trusted.keys(trusted.Node("n1")), clusterIDDefault, func(Principal) error { return nil }, testLogger())
	if err != nil {
		t.Fatal(err)
	}
	dialer := &transport.Dialer{TLSSource: tlsSource, Links: transport.NewLinks(nil, 1), NodeAt: func(string) string { return "n2" }}
	for name, certificate := range map[string]*tls.Certificate{
		"another node":                trusted.Node("n3"),
		"a client":                    trusted.Client("n2"),
		"a node of another authority": newAuthority(t).Node("n2"),
		"one that has expired":        trusted.Issue([]string{"tenuto://tenuto/node/n2"}, withValidity(-2*time.Hour, -time.Minute)),
		"a node of another cluster":   trusted.Issue([]string{"tenuto://another/node/n2"}),
		"one for clients only":        trusted.Issue([]string{"tenuto://tenuto/node/n2"}, withKeyUsage(x509.ExtKeyUsageClientAuth)),
	} {
		for _, required := range []transport.Purpose{transport.Raft, transport.Calls} {
			conn, err := dialer.Dial(testContext(t), answer(&Keys{Certificate: certificate}), required)
			if err == nil {
				_ = conn.Close()
				t.Errorf("%s was accepted", name)
			}
		}
	}
	conn, err := dialer.Dial(testContext(t), answer(&Keys{Certificate: trusted.Node("n2")}), transport.Calls)
	if err != nil {
		t.Fatalf("the node itself: %v", err)
	}
	_ = conn.Close()
}

func TestMux_CapsIdleConnections(t *testing.T) {
	t.Parallel()
	trusted := newAuthority(t)
	nodes, _ := startWithTLS(t, trusted, nil)
	ctx := testContext(t)
	before := recordKnownState(t, nodes)
	leader := leaderOf(t, nodes)
	var idle []net.Conn
	for range 2000 {
		conn, err := net.Dial("tcp", leader.config.Listen)
		if err != nil {
			t.Fatal(err)
		}
		idle = append(idle, conn)
	}
	expectUnharmed(t, leader, before)
	// A peer that completes its handshake is accepted all the same.
	conn, err := attackOverTLS(trusted.Client("app"), transport.Calls)(leader.config.Listen)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	for _, node := range nodes {
		callThrough(ctx, t, node, "after-"+node.ID())
	}
	// All but the last transport.HandshakesMax connections have been closed.
	for _, conn := range idle[:len(idle)-transport.HandshakesMax] {
		_ = conn.SetReadDeadline(time.Now().Add(testTimeout))
		if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("an idle connection: %v; want it closed", err)
		}
	}
	for _, conn := range idle {
		_ = conn.Close()
	}
}
