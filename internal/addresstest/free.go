package addresstest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
)

// Free returns a loopback address that is free now. Its port is not one that the system gives out,
// so that a stopped node finds it free again.
func Free(t *testing.T) string {
	t.Helper()
	for range 100 {
		listener, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", 10_000+rand.IntN(20_000)))
		if err != nil {
			continue
		}
		if err := listener.Close(); err != nil {
			t.Fatal(err)
		}
		return listener.Addr().String()
	}
	t.Fatal("no free port")
	return ""
}
