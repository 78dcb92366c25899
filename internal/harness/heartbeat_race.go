//go:build race

package harness

import "time"

const TestHeartbeatTimeout = 500 * time.Millisecond
