package journal

import (
	"context"
	"fmt"
	"time"

	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/journal/internal/clock"
	"github.com/tenuto-dev/tenuto/journal/internal/entry"
	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// metadata commits changes of the partition metadata: clock, tokens, protocol, settings.
type metadata struct {
	clock       *clock.Clock
	machine     *state.Machine
	leaderships *leaderships
	proposer    *proposer
	// reconcileDue is the channel of the same name in members.
	reconcileDue chan struct{}
}

// ForgetChainedStart removes a chained start, or that of an abandoned child, whose instance was
// started in another partition; the state machine cannot detect that itself. done and the
// errors are as in Append; the only rejection of the state machine is *state.StaleEpochError.
// Repeating it changes nothing.
func (m *metadata) ForgetChainedStart(epoch uint64, target string, done func(error)) {
	m.proposeMetadata(&leadership{epoch: epoch}, &journalpb.MetadataChange{Started: target}, done)
}

// IssueToken records a token by its public key. It must be called on the leader. One node may join
// with the token until it expires, by the cluster time. IssueToken returns the time at which it
// expires. Repeating the call changes nothing.
//
// Errors: ErrTooManyTokens, ErrNotLeader, ErrUnknownOutcome, ErrBusy, ErrClosed, or ctx's, after
// which it may be recorded or not.
func (m *metadata) IssueToken(ctx context.Context, key []byte, valid time.Duration) (expires clustertime.Time, err error) {
	token := &journalpb.JoinToken{Key: key, ExpiresAt: m.clock.Now().Add(valid).UnixNano()}
	if err := m.changeMetadata(ctx, &journalpb.MetadataChange{Issued: token}); err != nil {
		return clustertime.Time{}, fmt.Errorf("issue token: %w", err)
	}
	return m.machine.TokenExpiry(key), nil
}

// revokeProtocol is the protocol that introduced revoking tokens.
const revokeProtocol = 3

// RevokeToken deletes a token: no node can join with it, and it no longer counts toward the limit.
// It must be called on the leader, and needs protocol 3.
//
// Errors: ErrTokenUnknown, ErrRevokeProtocol, and those of IssueToken except ErrTooManyTokens.
func (m *metadata) RevokeToken(ctx context.Context, key []byte) error {
	if m.Protocol() < revokeProtocol {
		return fmt.Errorf("revoke token: %w", ErrRevokeProtocol)
	}
	if err := m.changeMetadata(ctx, &journalpb.MetadataChange{Revoked: key}); err != nil {
		return fmt.Errorf("revoke token: %w", err)
	}
	return nil
}

// Tokens returns the tokens that this node knows from the entries it has applied, sorted by public
// key.
func (m *metadata) Tokens() []*journalpb.JoinToken { return m.machine.Tokens() }

// UseToken records that a node uses a token. It must be called on the leader. Repeating it for the
// same node changes nothing.
//
// Errors: ErrTokenUnknown, ErrTokenExpired, ErrTokenUsed, and those of IssueToken except
// ErrTooManyTokens.
func (m *metadata) UseToken(ctx context.Context, key []byte, node string) error {
	token := &journalpb.JoinToken{Key: key, Node: node}
	if err := m.changeMetadata(ctx, &journalpb.MetadataChange{Used: token}); err != nil {
		return fmt.Errorf("use token: %w", err)
	}
	return nil
}

// SettingsProtocol is the protocol that introduced recorded settings.
const SettingsProtocol = 4

// ChangeSettings records the settings of the cluster, in a form that the journal does not
// interpret. It must be called on the leader, and needs [SettingsProtocol]. version is the recorded
// one plus 1; 1 if none are recorded. Repeating the latest change is no error.
//
// Errors: ErrSettingsVersion, ErrSettingsProtocol, and those of IssueToken except ErrTooManyTokens.
func (m *metadata) ChangeSettings(ctx context.Context, version uint64, encoded []byte) error {
	if m.Protocol() < SettingsProtocol {
		return fmt.Errorf("change settings: %w", ErrSettingsProtocol)
	}
	if err := m.changeMetadata(ctx, &journalpb.MetadataChange{Settings: encoded, SettingsVersion: version}); err != nil {
		return fmt.Errorf("change settings: %w", err)
	}
	return nil
}

// Settings returns the settings of the cluster that this node knows from the entries it has
// applied, and their version; 0 if none are. The slice must not be changed.
func (m *metadata) Settings() (encoded []byte, version uint64) { return m.machine.Settings() }

// WatchSettings returns a channel that receives a value after this node has applied other settings
// or roles; see state.Machine.Watch.
func (m *metadata) WatchSettings() (changed <-chan struct{}, cancel func()) {
	return m.machine.WatchSettings()
}

// RolesProtocol is the protocol that introduced recorded roles of members.
const RolesProtocol = 4

// ChangeRoles records the roles of the members, in a form that the journal does not interpret. It
// must be called on the leader, and needs [RolesProtocol]. version is the recorded one plus 1; 1 if
// none are recorded. Repeating the latest change is no error.
//
// Errors: ErrRolesVersion, ErrRolesProtocol, and those of IssueToken except ErrTooManyTokens.
func (m *metadata) ChangeRoles(ctx context.Context, version uint64, encoded []byte) error {
	if m.Protocol() < RolesProtocol {
		return fmt.Errorf("change roles: %w", ErrRolesProtocol)
	}
	if err := m.changeMetadata(ctx, &journalpb.MetadataChange{Roles: encoded, RolesVersion: version}); err != nil {
		return fmt.Errorf("change roles: %w", err)
	}
	return nil
}

// Roles returns the roles of the members that this node knows from the entries it has applied, and
// their version; 0 if none are recorded. The slice must not be changed.
func (m *metadata) Roles() (encoded []byte, version uint64) { return m.machine.Roles() }

// CompletionKeyProtocol is the protocol that introduced the completion key.
const CompletionKeyProtocol = 4

// completionKeySize is the size of the completion key, in bytes.
const completionKeySize = 32

// RecordCompletionKey records the completion key, which is secret: 32 random bytes. It must be
// called on the leader, and needs [CompletionKeyProtocol]. If a key is recorded, it changes nothing
// and returns nil.
//
// Errors: ErrCompletionKey, ErrCompletionKeyProtocol, and those of IssueToken except
// ErrTooManyTokens.
func (m *metadata) RecordCompletionKey(ctx context.Context, key []byte) error {
	switch {
	case len(key) != completionKeySize:
		return fmt.Errorf("record completion key of %d bytes: %w", len(key), ErrCompletionKey)
	case m.Protocol() < CompletionKeyProtocol:
		return fmt.Errorf("record completion key: %w", ErrCompletionKeyProtocol)
	}
	if err := m.changeMetadata(ctx, &journalpb.MetadataChange{CompletionKey: key}); err != nil {
		return fmt.Errorf("record completion key: %w", err)
	}
	return nil
}

// CompletionKey returns the completion key that this node knows from the entries it has applied;
// empty if none is recorded. The slice must not be changed. The key must not be logged.
func (m *metadata) CompletionKey() []byte { return m.machine.CompletionKey() }

// RecordCut records a cut of the cluster; see journalpb.PartitionMetadata. It must be called on the
// leader. A cut that is not above the recorded one changes nothing.
//
// Errors: those of IssueToken except ErrTooManyTokens.
func (m *metadata) RecordCut(ctx context.Context, cut uint64) error {
	if m.machine.Cut() >= cut {
		return nil
	}
	if err := m.changeMetadata(ctx, &journalpb.MetadataChange{Cut: cut}); err != nil {
		return fmt.Errorf("record cut %d: %w", cut, err)
	}
	return nil
}

// Cut returns the latest cut that this node has applied, 0 before the first.
func (m *metadata) Cut() uint64 { return m.machine.Cut() }

// ComparisonProtocol is the protocol that introduced comparisons of replicas, and quarantines.
const ComparisonProtocol = 4

// RecordComparison records a comparison of the replicas, which begins at an instance ID; see
// PrepareView. It must be called on the leader, and needs [ComparisonProtocol]. A number that is
// not above the recorded one changes nothing.
//
// Errors: ErrComparisonProtocol, and those of IssueToken except ErrTooManyTokens.
func (m *metadata) RecordComparison(ctx context.Context, number uint64, from string) error {
	return m.changeComparisons(ctx, "record comparison", &journalpb.MetadataChange{Comparison: &journalpb.Comparison{Number: number, From: from}})
}

func (m *metadata) changeComparisons(ctx context.Context, what string, c *journalpb.MetadataChange) error {
	err := error(ErrComparisonProtocol)
	if m.Protocol() >= ComparisonProtocol {
		err = m.changeMetadata(ctx, c)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// BackupProtocol is the protocol that introduced records of scheduled backups.
const BackupProtocol = 4

// RecordBackup records the outcome of a scheduled backup; see journalpb.BackupRecord. It must be
// called on the leader, and needs [BackupProtocol].
//
// Errors: one that wraps ErrProtocol, and those of IssueToken except ErrTooManyTokens.
func (m *metadata) RecordBackup(ctx context.Context, outcome *journalpb.BackupRecord) error {
	if m.Protocol() < BackupProtocol {
		return fmt.Errorf("record backup: %w: every member must speak protocol %d", ErrProtocol, BackupProtocol)
	}
	if err := m.changeMetadata(ctx, &journalpb.MetadataChange{Backup: outcome}); err != nil {
		return fmt.Errorf("record backup: %w", err)
	}
	return nil
}

// Comparison returns the latest comparison that this node has applied; see
// state.Machine.Comparison.
func (m *metadata) Comparison() (number uint64, from string) { return m.machine.Comparison() }

// Quarantine records a quarantine, at the cluster time. It must be called on the leader, and needs
// [ComparisonProtocol].
//
// Errors: ErrTooManyQuarantines, ErrComparisonProtocol, and those of IssueToken except
// ErrTooManyTokens.
func (m *metadata) Quarantine(ctx context.Context, q *journalpb.Quarantine) error {
	q.Since = m.clock.Now().UnixNano()
	return m.changeComparisons(ctx, "record quarantine", &journalpb.MetadataChange{Quarantine: q})
}

// LiftQuarantine ends the quarantine of an instance and a node. It must be called on the leader,
// and needs [ComparisonProtocol]. It is no error if there is none.
//
// Errors: as RecordComparison.
func (m *metadata) LiftQuarantine(ctx context.Context, instance, node string) error {
	return m.changeComparisons(ctx, "lift quarantine", &journalpb.MetadataChange{Lifted: &journalpb.Quarantine{Instance: instance, Node: node}})
}

// Quarantines returns the quarantines that this node has applied, in order of instances and nodes.
// They must not be changed.
func (m *metadata) Quarantines() []*journalpb.Quarantine { return m.machine.Quarantines() }

// BackupRecord returns what this node knows of scheduled backups from the entries it has applied,
// nil before the first. It must not be changed.
func (m *metadata) BackupRecord() *journalpb.BackupRecord { return state.BackupRecord(m.machine) }

// Lineages returns the latest lineages of the partition; see state.Machine.Lineages.
func (m *metadata) Lineages() []*journalpb.Lineage { return m.machine.Lineages() }

// Protocol returns the protocol that the cluster uses, as far as this node has applied the journal;
// 1 at first. It never decreases.
func (m *metadata) Protocol() uint32 { return m.machine.Protocol() }

// RaiseProtocol records that the cluster uses a protocol which every member speaks. It must be
// called on the leader. A node that does not speak it fails. A smaller protocol than before changes
// nothing.
//
// Errors: ErrNotLeader, ErrUnknownOutcome, ErrBusy, ErrClosed, or ctx's, after which it may be
// recorded or not.
func (m *metadata) RaiseProtocol(ctx context.Context, to uint32) error {
	if err := m.changeMetadata(ctx, &journalpb.MetadataChange{Protocol: to}); err != nil {
		return fmt.Errorf("raise protocol to %d: %w", to, err)
	}
	notify(m.reconcileDue) // there may be identities to record
	return nil
}

// ReadyProtocol returns a protocol above that of the cluster which all members speak, and since
// when; 0 if there is none, as far as this node has applied the journal.
func (m *metadata) ReadyProtocol() (protocol uint32, since clustertime.Time) {
	return state.ReadyProtocol(m.machine)
}

// RecordReadyProtocol records that from now on all members speak a protocol above that of the
// cluster, or with 0, that they do not. It must be called on the leader.
//
// Errors: those of RaiseProtocol.
func (m *metadata) RecordReadyProtocol(ctx context.Context, protocol uint32) error {
	change := &journalpb.MetadataChange{ReadyProtocol: protocol, ReadySince: m.clock.Now().UnixNano()}
	switch err := m.changeMetadata(ctx, change); {
	case err != nil && protocol == 0:
		return fmt.Errorf("record that a member does not speak the next protocol: %w", err)
	case err != nil:
		return fmt.Errorf("record that all members speak protocol %d: %w", protocol, err)
	}
	return nil
}

// recordClock proposes a record of the cluster time if this node leads, and returns a channel that
// is closed when the outcome is decided. The outcome does not matter: the next record is due soon.
func (m *metadata) recordClock() <-chan struct{} {
	decided := make(chan struct{})
	r := m.leaderships.leadership.Load()
	if r == nil {
		close(decided)
		return decided
	}
	m.proposeMetadata(r, &journalpb.MetadataChange{}, func(error) { close(decided) })
	return decided
}

// proposeMetadata proposes a metadata change at the cluster time.
func (m *metadata) proposeMetadata(r *leadership, c *journalpb.MetadataChange, done func(error)) {
	c.Epoch, c.Clock = r.epoch, m.clock.Now().UnixNano()
	record, err := entry.EncodeMetadataChange(c)
	if err != nil {
		done(err)
		return
	}
	m.proposer.propose(proposal{record: record, done: done})
}

// changeMetadata commits a metadata change, on the leader.
func (m *metadata) changeMetadata(ctx context.Context, c *journalpb.MetadataChange) error {
	r := m.leaderships.leadership.Load()
	if r == nil {
		return ErrNotLeader
	}
	result := make(chan error, 1)
	m.proposeMetadata(r, c, func(err error) { result <- err })
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
