package cluster

import (
	"crypto/x509"
	"fmt"
	"regexp"
)

// A PrincipalKind says what a certificate is for.
type PrincipalKind string

const (
	// PrincipalNode is a node of the cluster.
	PrincipalNode PrincipalKind = "node"
	// PrincipalClient is a program that calls the cluster with [Dial].
	PrincipalClient PrincipalKind = "client"
	// PrincipalLocal is an unauthenticated peer. Without TLS, which is allowed on loopback only,
	// every peer is one.
	PrincipalLocal PrincipalKind = "local"
)

// A Principal is the peer of a connection.
type Principal struct {
	Kind PrincipalKind
	// Name is the name of the node or client in its certificate; "" with PrincipalLocal.
	Name string
}

func (p Principal) String() string {
	if p.Name == "" {
		return string(p.Kind)
	}
	return string(p.Kind) + " " + p.Name
}

// namePattern is the syntax of the names in certificates: of the cluster, of nodes and of clients.
var namePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

const nameRule = "1 to 64 of A-Z a-z 0-9 . _ - are allowed, the first a letter or digit"

// identityScheme is the scheme of the URI by which a certificate names its owner.
const identityScheme = "tenuto"

// identityURI returns the URI that the certificate of a node or client must have:
// tenuto://CLUSTER-ID/node/NODE-ID or tenuto://CLUSTER-ID/client/NAME.
func identityURI(cluster string, p Principal) string {
	return fmt.Sprintf("%s://%s/%s/%s", identityScheme, cluster, p.Kind, p.Name)
}

var identityPattern = regexp.MustCompile(`^tenuto://([^/]+)/(node|client)/([^/]+)$`)

// principalOf returns the owner of a certificate, or an error if the certificate is not of the
// cluster.
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
		return Principal{}, fmt.Errorf("the certificate has no identity of the form %s, but %.200q",
			identityURI(cluster, Principal{PrincipalNode, "NODE-ID"}), identity)
	}
	if parts[1] != cluster {
		return Principal{}, fmt.Errorf("the certificate is of cluster %.100q, not of %q", parts[1], cluster)
	}
	return Principal{PrincipalKind(parts[2]), parts[3]}, nil
}
