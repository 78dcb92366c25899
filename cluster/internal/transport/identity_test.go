package transport

import (
	"crypto/x509"
	"net/url"
	"testing"
)

func TestPrincipalOf_NamesCertificateOwner(t *testing.T) {
	for identity, want := range map[string]Principal{
		"tenuto://tenuto/node/n1":           {KindNode, "n1"},
		"tenuto://tenuto/client/app-1.web":  {KindClient, "app-1.web"},
		"tenuto://tenuto/client/":           {},
		"tenuto://tenuto/client/a/b":        {},
		"tenuto://tenuto/local/n1":          {},
		"tenuto://other/node/n1":            {},
		"tenuto://tenuto/node/n1?x":         {},
		"tenuto://tenuto/node/n1#x":         {},
		"tenuto://x@tenuto/node/n1":         {},
		"tenuto://tenuto:1/node/n1":         {},
		"tenuto://tenuto/node/%6e1":         {},
		"tenuto:node/n1":                    {},
		"https://tenuto/node/n1":            {},
		"TENUTO://tenuto/node/n1":           {KindNode, "n1"}, // schemes are read without regard to case
		"tenuto://TENUTO/node/n1":           {},
		"tenuto://tenuto/node/-":            {},
		"tenuto://tenuto/node/n1%0a":        {},
		"tenuto://tenuto/client/\u202eevil": {},
	} {
		uri, err := url.Parse(identity)
		if err != nil {
			continue // no certificate is read that has it
		}
		got, err := principalOf(&x509.Certificate{URIs: []*url.URL{uri}}, "tenuto")
		if got != want || (err == nil) != (want != Principal{}) {
			t.Errorf("%s: %v, %v; want %v", identity, got, err, want)
		}
	}
}

// Whatever a certificate holds, the name of its owner cannot be changed by another part of it.
func FuzzPrincipalOf(f *testing.F) {
	f.Add("tenuto://tenuto/node/n1", "tenuto://tenuto/client/a")
	f.Add("tenuto://tenuto/node/../n1", "https://x")
	f.Fuzz(func(t *testing.T, first, second string) {
		var certificate x509.Certificate
		for _, text := range []string{first, second} {
			if uri, err := url.Parse(text); err == nil {
				certificate.URIs = append(certificate.URIs, uri)
			}
		}
		p, err := principalOf(&certificate, "tenuto")
		if err != nil {
			return
		}
		want := identityURI("tenuto", p)
		if !namePattern.MatchString(p.Name) || (certificate.URIs[0].String() != want && certificate.URIs[1].String() != want) {
			t.Errorf("%q and %q: %v", first, second, p)
		}
	})
}
