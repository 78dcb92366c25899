package check

import (
	"fmt"
	"slices"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
)

// backupInvariants hold in the state of a backup as at the end of a run with the calls that had
// been acknowledged before the backup began: nothing acknowledged is missing, and each effect has
// its cause, also if that is in another partition.
var backupInvariants = []func(c *checker){
	(*checker).checkGapless,
	(*checker).checkAcknowledged,
	(*checker).checkRecordedOnce,
	(*checker).checkOneCompletion,
	(*checker).checkTimers,
	(*checker).checkChildEnds,
	(*checker).checkParents,
	(*checker).checkStarters,
	(*checker).checkReplay,
	(*checker).checkContinueAsNew,
	(*checker).checkMessages,
}

// checkBackups checks the restored backups.
func (c *checker) checkBackups() {
	for i := range c.record.Replicas {
		r := &c.record.Replicas[i]
		if !r.Restored {
			continue
		}
		at, err := c.atBackup(r)
		if err != nil {
			c.addViolation("%s: %v", r.Node, err)
			continue
		}
		for _, check := range backupInvariants {
			check(at)
		}
		for _, violation := range at.violations {
			c.addViolation("%s, begun at %v: %s", r.Node, r.Begin, violation.Detail)
		}
	}
}

// atBackup returns a checker of a run that ended with a backup.
func (c *checker) atBackup(restored *evidence.Replica) (*checker, error) {
	record := *c.record
	record.Calls = slices.DeleteFunc(slices.Clone(record.Calls), func(call evidence.Call) bool {
		return call.Kind != evidence.Purge && call.End > restored.Begin
	})
	whole := *restored
	whole.Stale, whole.Complete = false, true
	record.Replicas = []evidence.Replica{whole}
	at, err := newChecker(&record, c.registry)
	if err != nil {
		return nil, fmt.Errorf("unreadable: %w", err)
	}
	at.invariant = c.invariant
	return at, nil
}
