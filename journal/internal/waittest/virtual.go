package waittest

import (
	"testing"
	"testing/synctest"
)

// InSynctest runs a test in virtual time. Time passes only when all goroutines wait, so a slow
// machine does not look like a slow network, a slow disk or a lost leader.
func InSynctest(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, test)
}
