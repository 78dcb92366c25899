//go:build !race

package harness

import "time"

// TestHeartbeatTimeout is that of test clusters unless a test sets another: 0, which is that of
// nodes, or 500 ms with -race. There nodes are so slow that on a busy machine they would often lose
// leadership.
const TestHeartbeatTimeout time.Duration = 0
