package certificate

import (
	"fmt"
	"strings"
)

// Commands returns a shell script that makes the same certificates with openssl. In production, run
// each part on the machine that needs its key.
func Commands(r Request) (string, error) {
	if err := r.Validate(); err != nil {
		return "", err
	}
	days := max(1, int(r.ValidFor.Hours()/24))
	var b strings.Builder
	fmt.Fprintf(&b, `# The authority, on a machine of its own. Without -nodes, openssl encrypts the key with a passphrase:
# do that in production, and copy only ca.crt to nodes and clients.
umask 077
openssl req -x509 -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days %d \
  -subj '/CN=tenuto authority of %s' -keyout ca.key -out ca.crt \
  -addext keyUsage=critical,keyCertSign,cRLSign
`, days, r.Cluster)
	for _, o := range r.owners() {
		usage := "clientAuth"
		if o.kind == "node" {
			usage += ",serverAuth"
		}
		fmt.Fprintf(&b, `
# The %[1]s %[2]s: the key and the request on its machine, the signature on that of the authority.
openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj '/CN=%[2]s' \
  -keyout %[3]s.key -out %[3]s.csr
printf 'subjectAltName=URI:%[4]s\nkeyUsage=critical,digitalSignature\nextendedKeyUsage=%[5]s\n' > %[3]s.ext
openssl x509 -req -in %[3]s.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days %[6]d \
  -extfile %[3]s.ext -out %[3]s.crt
`, o.kind, o.name, o.fileName(), o.uri(r.Cluster), usage, days)
	}
	return b.String(), nil
}
