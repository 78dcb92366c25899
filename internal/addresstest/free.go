package addresstest

import (
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
)

// Ports are below those that the system gives out, so that a stopped node finds its port free
// again.
const (
	portFirst = 10_000
	portCount = 20_000
)

// ports counts the ports that this process has tried.
var ports atomic.Int64

// host returns a loopback address that no other process of tests uses, which could take a port
// before its node is started, or while it is stopped. Where the system has only one loopback
// address, it is that.
var host = sync.OnceValue(func() string {
	pid := os.Getpid()
	ports.Store(int64(pid) * 61)
	own := fmt.Sprintf("127.%d.%d.1", 208+pid/250%40, 1+pid%250)
	listener, err := net.Listen("tcp", own+":0")
	if err != nil {
		return "127.0.0.1"
	}
	_ = listener.Close()
	return own
})

// Free returns a loopback address that is free now and stays so, another one at each call.
func Free(t *testing.T) string {
	t.Helper()
	at := host()
	for range portCount {
		address := fmt.Sprintf("%s:%d", at, portFirst+ports.Add(1)%portCount)
		listener, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		if err := listener.Close(); err != nil {
			t.Fatal(err)
		}
		return address
	}
	t.Fatal("no free port")
	return ""
}
