package transport

import (
	"crypto/x509"
	"fmt"
	"regexp"
)

// A Kind says what a peer is.
type Kind string

// The kinds of peers. Without TLS, every peer is unauthenticated, so it is KindLocal.
const (
	KindNode   Kind = "node"
	KindClient Kind = "client"
	KindLocal  Kind = "local"
)

// A Principal is the peer of a connection.
type Principal struct {
	Kind Kind
	Name string // of the node or client in its certificate; "" with KindLocal
}

func (p Principal) String() string {
	if p.Name == "" {
		return string(p.Kind)
	}
	return string(p.Kind) + " " + p.Name
}

// namePattern is the syntax of the names in certificates: of the cluster, of nodes and of clients.
var namePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// NameRule says, in an error, which names are allowed.
const NameRule = "1 to 64 of A-Z a-z 0-9 . _ - are allowed, the first a letter or digit"

// IsName reports whether a cluster, a node or a client may have that name.
func IsName(name string) bool { return namePattern.MatchString(name) }

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
			identityURI(cluster, Principal{KindNode, "NODE-ID"}), identity)
	}
	if parts[1] != cluster {
		return Principal{}, fmt.Errorf("the certificate is of cluster %.100q, not of %q", parts[1], cluster)
	}
	return Principal{Kind(parts[2]), parts[3]}, nil
}
