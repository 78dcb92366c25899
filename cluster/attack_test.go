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
)

// An attacker opens a connection to a node as it likes, and thinks it was let in.
type attacker func(address string) (net.Conn, error)

// inPlaintext says what it is for and goes on.
func inPlaintext(address string) (net.Conn, error) {
	conn, err := net.Dial("tcp", address)
	if err == nil {
		_, err = conn.Write(append([]byte(preambleMagic), byte(forRaft)))
	}
	return conn, err
}

// overTLS shows a certificate, nil for none, and believes whatever it is shown.
func overTLS(certificate *tls.Certificate, wanted purpose, changes ...func(*tls.Config)) attacker {
	return func(address string) (net.Conn, error) {
		config := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocols[wanted]}}
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

// oneConnection is a stream layer for the Raft library's transport that dials as
// an attacker does.
type oneConnection struct {
	net.Listener
	attack attacker
}

func (c oneConnection) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	conn, err := c.attack(string(address))
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(timeout))
	var answer [1]byte
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if testGroups > 1 {
		_, err = conn.Write([]byte{streamOpening, 0, byte(testGroups)})
	}
	return conn, err
}

// A forgery is a message of Raft's by which an attacker would take a cluster over.
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

// forge sends forgeries in the name of a node, and returns how many were
// answered.
func forge(t *testing.T, attack attacker, target *Node, as string, forgeries ...forgery) (answered int) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	transport := raft.NewNetworkTransport(oneConnection{listener, attack}, 1, patience, io.Discard)
	defer transport.Close()
	header := raft.RPCHeader{ProtocolVersion: 3, ID: []byte(as), Addr: []byte(listener.Addr().String())}
	for _, send := range forgeries {
		if err := send(transport, raft.ServerID(target.ID()), raft.ServerAddress(target.config.Listen), header); err == nil {
			answered++
		}
	}
	return answered
}

// unharmed fails the test if a node has taken anything of a forgery over, or has
// changed what it knew before. (Its term may grow by itself when the machine is
// so busy that heartbeats are late, but not so far.)
func unharmed(t *testing.T, n *Node, before [sha256.Size]byte) {
	t.Helper()
	if term := n.groups[0].journal.Term(); term >= forgedTerm {
		t.Errorf("%s is in term %d", n.ID(), term)
	}
	if leader := n.Leader(); leader != "" && !n.groups[0].journal.IsMember(leader) {
		t.Errorf("%s is led by %s", n.ID(), leader)
	}
	if after, err := n.of("before").journal.Hash("before"); err != nil || after != before {
		t.Errorf("%s: what it knew became %x, %v", n.ID(), after, err)
	}
	if n.Err() != nil {
		t.Errorf("%s has stepped aside: %v", n.ID(), n.Err())
	}
}

// known returns the hash of what every node is made to know before an attack.
func known(t *testing.T, nodes []*Node) [sha256.Size]byte {
	t.Helper()
	tell(testContext(t), t, nodes[0], "before")
	sameHistories(t, nodes)
	hash, err := nodes[0].of("before").journal.Hash("before")
	if err != nil {
		t.Fatal(err)
	}
	return hash
}

func validFrom(from, to time.Duration) func(*x509.Certificate) {
	return func(c *x509.Certificate) {
		c.NotBefore, c.NotAfter = time.Now().Add(from), time.Now().Add(to)
	}
}

func usedFor(usage ...x509.ExtKeyUsage) func(*x509.Certificate) {
	return func(c *x509.Certificate) { c.ExtKeyUsage = usage }
}

func TestForgedRaftFramesAreRefusedAndChangeNothing(t *testing.T) {
	noGoroutinesLeft(t)
	ours, others := newAuthority(t), newAuthority(t)
	nodes, logs := startSecured(t, ours, nil)
	ctx := testContext(t)
	before := known(t, nodes)
	node := func(identity ...string) *tls.Certificate { return ours.issue(identity) }
	changed := func(change func(*x509.Certificate)) *tls.Certificate {
		return ours.issue([]string{"tenuto://tenuto/node/n2"}, change)
	}
	attacks := map[string]attacker{
		"in plaintext":                          inPlaintext,
		"without a certificate":                 overTLS(nil, forRaft),
		"with a client's":                       overTLS(ours.client("n2"), forRaft),
		"with that of a node that is no member": overTLS(ours.node("n9"), forRaft),
		"of another authority":                  overTLS(others.node("n2"), forRaft),
		"that has expired":                      overTLS(changed(validFrom(-2*time.Hour, -time.Minute)), forRaft),
		"that is not yet valid":                 overTLS(changed(validFrom(time.Hour, 2*time.Hour)), forRaft),
		"that is for servers only":              overTLS(changed(usedFor(x509.ExtKeyUsageServerAuth)), forRaft),
		"of another cluster":                    overTLS(node("tenuto://another/node/n2"), forRaft),
		"without an identity":                   overTLS(node(), forRaft),
		"with two identities":                   overTLS(node("tenuto://tenuto/node/n2", "tenuto://tenuto/client/x"), forRaft),
		"with an unknown role":                  overTLS(node("tenuto://tenuto/admin/n2"), forRaft),
		"with a path for a name":                overTLS(node("tenuto://tenuto/node/n9/../n2"), forRaft),
		"by TLS 1.2":                            overTLS(ours.node("n2"), forRaft, func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 }),
		"without a protocol":                    overTLS(ours.node("n2"), forRaft, func(c *tls.Config) { c.NextProtos = nil }),
		"with another protocol":                 overTLS(ours.node("n2"), forRaft, func(c *tls.Config) { c.NextProtos = []string{"h2"} }),
	}
	for name, attack := range attacks {
		t.Run(name, func(t *testing.T) {
			for i, target := range nodes {
				logged := logs[i].lines("connection refused")
				refused := target.groups[0].journal.Stats().MessagesRefused
				if n := forge(t, attack, target, "n2", forgedVote, forgedEntry, forgedElection); n > 0 {
					t.Errorf("%s has answered %d of them", target.ID(), n)
				}
				if read := target.groups[0].journal.Stats().MessagesRefused - refused; read > 0 {
					t.Fatalf("%s has read %d of them", target.ID(), read)
				}
				eventually(t, "it is logged", func() bool {
					return logs[i].lines("connection refused") > logged || target.port.refusals.left() == 0
				})
				unharmed(t, target, before)
			}
		})
	}
	for _, node := range nodes {
		tell(ctx, t, node, "after-"+node.ID())
	}
	sameHistories(t, nodes)
}

// A member that holds valid keys speaks for itself alone, and only while it is a
// member; and entries with gaps, which make the Raft library panic, come from
// nobody.
func TestAMemberCannotForgeAnother(t *testing.T) {
	noGoroutinesLeft(t)
	ours := newAuthority(t)
	nodes, logs := startSecured(t, ours, nil)
	before := known(t, nodes)
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
			refused := target.groups[0].journal.Stats().MessagesRefused
			if n := forge(t, overTLS(ours.node("n2"), forRaft), target, attempt.as, attempt.forgeries...); n > 0 {
				t.Errorf("%s: %s has taken %d of them", name, target.ID(), n)
			}
			if counted := target.groups[0].journal.Stats().MessagesRefused - refused; counted != uint64(len(attempt.forgeries)) {
				t.Errorf("%s: %s has counted %d of %d", name, target.ID(), counted, len(attempt.forgeries))
			}
			if logs[i].lines("message refused") == 0 {
				t.Errorf("%s: %s has logged nothing", name, target.ID())
			}
			unharmed(t, target, before)
		}
	}
	for _, node := range nodes {
		tell(testContext(t), t, node, "after-"+node.ID())
	}
	sameHistories(t, nodes)
}

// What a node dials has to be the node that it means.
func TestANodeThatAnswersInPlaceOfAnotherIsNotBelieved(t *testing.T) {
	noGoroutinesLeft(t)
	ours := newAuthority(t)
	answer := func(keys *Keys) string {
		t.Helper()
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = listener.Close() })
		config := &tls.Config{
			Certificates: []tls.Certificate{*keys.Certificate}, ClientAuth: tls.RequireAnyClientCert,
			NextProtos: []string{protocols[forRaft], protocols[forCalls]},
		}
		go func() {
			conn, err := tls.NewListener(listener, config).Accept()
			if err == nil {
				_, _ = conn.Write([]byte{admitted})
				_, _ = io.Copy(io.Discard, conn)
				_ = conn.Close()
			}
		}()
		return listener.Addr().String()
	}
	ring, err := newKeyring(ours.keys(ours.node("n1")), clusterIDDefault, func(Principal) error { return nil }, quiet())
	if err != nil {
		t.Fatal(err)
	}
	dialer := &dialer{ring: ring, links: newLinks(nil), nodeAt: func(string) string { return "n2" }}
	for name, certificate := range map[string]*tls.Certificate{
		"another node":                ours.node("n3"),
		"a client":                    ours.client("n2"),
		"a node of another authority": newAuthority(t).node("n2"),
		"one that has expired":        ours.issue([]string{"tenuto://tenuto/node/n2"}, validFrom(-2*time.Hour, -time.Minute)),
		"a node of another cluster":   ours.issue([]string{"tenuto://another/node/n2"}),
		"one for clients only":        ours.issue([]string{"tenuto://tenuto/node/n2"}, usedFor(x509.ExtKeyUsageClientAuth)),
	} {
		for wanted := range protocols {
			conn, err := dialer.dial(testContext(t), answer(&Keys{Certificate: certificate}), wanted)
			if err == nil {
				_ = conn.Close()
				t.Errorf("%s was believed", name)
			}
		}
	}
	conn, err := dialer.dial(testContext(t), answer(&Keys{Certificate: ours.node("n2")}), forCalls)
	if err != nil {
		t.Fatalf("the node itself: %v", err)
	}
	_ = conn.Close()
}

func TestIdleConnectionsAreCappedAndKeepNobodyOut(t *testing.T) {
	noGoroutinesLeft(t)
	ours := newAuthority(t)
	nodes, _ := startSecured(t, ours, nil)
	ctx := testContext(t)
	before := known(t, nodes)
	leader := leaderOf(t, nodes)
	var idle []net.Conn
	for range 2000 {
		conn, err := net.Dial("tcp", leader.config.Listen)
		if err != nil {
			t.Fatal(err)
		}
		idle = append(idle, conn)
	}
	unharmed(t, leader, before)
	// Whoever has something to say is let in, all the same.
	conn, err := overTLS(ours.client("app"), forCalls)(leader.config.Listen)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	for _, node := range nodes {
		tell(ctx, t, node, "after-"+node.ID())
	}
	// All but the last of them have been closed.
	for _, conn := range idle[:len(idle)-unsortedMax] {
		_ = conn.SetReadDeadline(time.Now().Add(patience))
		if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("an idle connection: %v; want it closed", err)
		}
	}
	for _, conn := range idle {
		_ = conn.Close()
	}
}
