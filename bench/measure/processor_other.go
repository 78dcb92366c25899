//go:build !unix

package measure

import "time"

// ProcessorTime returns 0: it is not known on this system.
func ProcessorTime() time.Duration { return 0 }
