package cluster

import (
	"crypto/x509"
	"fmt"
	"regexp"
)

// A Role says what a certificate is for.
type Role string

const (
	// RoleNode: of a node of the cluster.
	RoleNode Role = "node"
	// RoleClient: of a program that calls the cluster with [Dial].
	RoleClient Role = "client"
	// RoleLocal: of nobody. Without TLS, which is on loopback only, everybody on
	// the machine has it.
	RoleLocal Role = "local"
)

// A Principal is who is at the other end of a connection.
type Principal struct {
	Role Role
	// Of the node or the client, as its certificate says; "" with RoleLocal.
	Name string
}

func (p Principal) String() string {
	if p.Name == "" {
		return string(p.Role)
	}
	return string(p.Role) + " " + p.Name
}

// namePattern is the alphabet and length of the names in certificates: of the
// cluster, of nodes and of clients.
var namePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

const nameRule = "1 to 64 of A-Z a-z 0-9 . _ - are allowed, the first a letter or digit"

// identityScheme is that of the URI by which a certificate names its owner.
const identityScheme = "tenuto"

// identityURI returns what the certificate of a node or client has to say:
// tenuto://CLUSTER-ID/node/NODE-ID or tenuto://CLUSTER-ID/client/NAME.
func identityURI(cluster string, p Principal) string {
	return fmt.Sprintf("%s://%s/%s/%s", identityScheme, cluster, p.Role, p.Name)
}

var identityPattern = regexp.MustCompile(`^tenuto://([^/]+)/(node|client)/([^/]+)$`)

// principalOf returns whose certificate it is, if it is one of that cluster's.
func principalOf(certificate *x509.Certificate, cluster string) (Principal, error) {
	var identity string
	for _, uri := range certificate.URIs {
		if uri.Scheme != identityScheme {
			continue
		}
		if identity != "" {
			return Principal{}, fmt.Errorf("the certificate has two identities: %.200q and %.200q", identity, uri)
		}
		identity = uri.String()
	}
	parts := identityPattern.FindStringSubmatch(identity)
	if parts == nil || !namePattern.MatchString(parts[3]) {
		return Principal{}, fmt.Errorf("the certificate has no identity like %s, but %.200q",
			identityURI(cluster, Principal{RoleNode, "NODE-ID"}), identity)
	}
	if parts[1] != cluster {
		return Principal{}, fmt.Errorf("the certificate is of cluster %.100q, not of %q", parts[1], cluster)
	}
	return Principal{Role(parts[2]), parts[3]}, nil
}
