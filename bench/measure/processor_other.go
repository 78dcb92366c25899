//go:build !unix

package measure

import "time"

// ProcessorTime is not known here.
func ProcessorTime() time.Duration { return 0 }
