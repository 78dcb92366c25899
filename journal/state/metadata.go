package state

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// NewestProtocol is the newest protocol whose records a machine applies. A leader must not propose
// a record that needs a newer protocol than that of the cluster.
const NewestProtocol = 4

// ErrSettingsVersion means that the settings were changed since the version that the caller read.
// Nothing was changed.
var ErrSettingsVersion = errors.New("the settings have another version")

// ErrRolesVersion means that other roles of members were recorded since the version that the caller
// read. Nothing was changed.
var ErrRolesVersion = errors.New("the roles of the members have another version")

// metadata is the state of the partition itself, beside the instances. It is replaced and never
// changed in place, so a copy is a consistent view.
type metadata struct {
	clock    clustertime.Time // the latest that was recorded
	removed  []string         // removed nodes, which must not rejoin; sorted
	tokens   []joinToken      // join tokens, used or not; sorted by key
	protocol uint32           // of the cluster; 0 means 1
	settings versioned        // the settings of the cluster
	roles    versioned        // the roles of its members
	// completionKey is the secret key for signed tokens, nil if none is recorded. It never changes.
	completionKey []byte
	lineages      []*journalpb.Lineage    // the latest, oldest first; the slice is never changed in place
	cut           uint64                  // the latest cut recorded, 0 before the first
	backup        *journalpb.BackupRecord // of scheduled backups, nil before the first; never changed in place
	comparison    comparison
	quarantines   []*journalpb.Quarantine // in order of instances and nodes; the slice is never changed in place
	ready         readyProtocol
}

// readyProtocol is a protocol above that of the cluster which all members speak, and since when;
// the zero value if there is none.
type readyProtocol struct {
	protocol uint32
	since    clustertime.Time
}

// comparison is the latest comparison of the replicas, the zero value before the first.
type comparison struct {
	number uint64
	from   string // the ID at which it begins
}

// quarantinesMax bounds the quarantines of a partition. They are written with each flush.
const quarantinesMax = 256

// ErrTooManyQuarantines means that a partition has as many quarantines as are allowed. Nothing was
// changed.
var ErrTooManyQuarantines = errors.New("256 replicas of instances are in quarantine: no more can be recorded")

// ErrStopped is the reason for rejecting a record that would change an instance whose replicas
// disagree without a majority.
var ErrStopped = errors.New("the instance is stopped: its replicas disagree")

// lineagesMax is how many lineages are kept.
const lineagesMax = 16

// versioned is a value that the machine does not decode.
type versioned struct {
	encoded []byte // as it was proposed; never changed in place
	version uint64 // how often it was recorded; 0: never
}

// replace returns the value that replaces v, or rejected unless it has the next version. Repeating
// the latest change changes nothing.
func (v versioned) replace(next versioned, rejected error) (versioned, error) {
	switch {
	case next.version == v.version+1:
		return next, nil
	case next.version == v.version && bytes.Equal(next.encoded, v.encoded):
		return v, nil
	}
	return v, rejected
}

// append appends the value with its version, unless it was never recorded.
func (v versioned) append(b []byte, number protowire.Number) []byte {
	if v.version == 0 {
		return b
	}
	b = protowire.AppendTag(b, number, protowire.BytesType)
	b = protowire.AppendBytes(b, v.encoded)
	return appendUint(b, number+1, v.version)
}

// metadataChange is a decoded MetadataChange, or the clock of an Epoch.
type metadataChange struct {
	epoch                  uint64
	clock                  clustertime.Time
	removedNode            string
	issuedToken, usedToken *journalpb.JoinToken
	protocol               uint32
	startedInstance        string // the instance of a chained start that was started in another partition
	revokedToken           []byte // the public key of a token
	settings, roles        versioned
	completionKey          []byte
	lineage                *journalpb.Lineage
	cut                    uint64
	comparison             comparison
	quarantine, lifted     *journalpb.Quarantine
	backup                 *journalpb.BackupRecord
	ready                  readyProtocol // replaces the recorded one if since is not zero
	leaderSpeaks           uint32        // the newest protocol of the leader whose epoch begins
	beginsEpoch            bool
}

func (c *metadataChange) parse(b []byte) bool {
	var message journalpb.MetadataChange
	if proto.Unmarshal(b, &message) != nil {
		return false
	}
	*c = metadataChange{
		epoch: message.Epoch, clock: clustertime.FromUnixNano(message.Clock), removedNode: message.Removed,
		issuedToken: message.Issued, usedToken: message.Used, revokedToken: message.Revoked,
		protocol: message.Protocol, startedInstance: message.Started,
		settings: versioned{message.Settings, message.SettingsVersion}, completionKey: message.CompletionKey,
		roles:   versioned{message.Roles, message.RolesVersion},
		lineage: message.Lineage, cut: message.Cut, backup: message.Backup,
		comparison: comparison{message.Comparison.GetNumber(), message.Comparison.GetFrom()},
		quarantine: message.Quarantine, lifted: message.Lifted,
		ready: readyProtocol{message.ReadyProtocol, clustertime.FromUnixNano(message.ReadySince)},
	}
	return true
}

// parseEpoch reads the clock and the protocol of an Epoch.
func (c *metadataChange) parseEpoch(b []byte) bool {
	*c = metadataChange{beginsEpoch: true}
	return eachField(b, func(number protowire.Number, wire protowire.Type, value []byte) {
		if wire != protowire.VarintType {
			return
		}
		switch field, _ := protowire.ConsumeVarint(value); number {
		case 2:
			c.clock = clustertime.FromUnixNano(int64(field))
		case 44:
			c.leaderSpeaks = uint32(field)
		}
	})
}

func (m *Machine) changeMetadata(c *metadataChange) error {
	if c.epoch != m.epoch {
		return &StaleEpochError{Epoch: c.epoch, Current: m.epoch}
	}
	next, err := m.metadata.apply(c)
	if err != nil {
		return err
	}
	m.metadata = next
	if c.settings.version+c.roles.version > 0 {
		m.watchers.notify(settingsKey, true)
	}
	if c.startedInstance != "" {
		m.removeChainedStart(c.startedInstance)
	}
	return nil
}

// apply returns the metadata after a change, or the reason for rejecting it.
func (m metadata) apply(c *metadataChange) (metadata, error) {
	if c.clock.After(m.clock) {
		m.clock = c.clock
	}
	m.protocol = max(m.protocol, c.protocol)
	m.ready = m.nextReady(c)
	if at, known := slices.BinarySearch(m.removed, c.removedNode); c.removedNode != "" && !known {
		m.removed = slices.Insert(slices.Clone(m.removed), at, c.removedNode)
	}
	var err error
	if c.issuedToken != nil {
		m.tokens, err = issueToken(m.tokens, c.issuedToken, m.clock)
	}
	if c.usedToken != nil && err == nil {
		m.tokens, err = useToken(m.tokens, c.usedToken, m.clock)
	}
	if len(c.revokedToken) > 0 && err == nil {
		m.tokens, err = revokeToken(m.tokens, c.revokedToken)
	}
	if c.settings.version > 0 && err == nil {
		m.settings, err = m.settings.replace(c.settings, ErrSettingsVersion)
	}
	if c.roles.version > 0 && err == nil {
		m.roles, err = m.roles.replace(c.roles, ErrRolesVersion)
	}
	if len(c.completionKey) > 0 && len(m.completionKey) == 0 {
		m.completionKey = c.completionKey
	}
	if c.lineage != nil && err == nil {
		kept := m.lineages[max(len(m.lineages)+1-lineagesMax, 0):]
		begun := proto.CloneOf(c.lineage)
		begun.Clock = m.clock.UnixNano()
		m.lineages = append(slices.Clone(kept), begun)
		m.backup = nil // no backup is one of the new lineage
	}
	m.cut = max(m.cut, c.cut)
	if c.comparison.number > m.comparison.number {
		m.comparison = c.comparison
	}
	if c.lifted != nil {
		if at, known := m.findQuarantine(c.lifted.Instance, c.lifted.Node); known {
			m.quarantines = slices.Delete(slices.Clone(m.quarantines), at, at+1)
		}
	}
	if c.quarantine != nil && err == nil {
		m.quarantines, err = m.withQuarantine(c.quarantine)
	}
	if c.backup != nil && err == nil {
		m.backup = nextBackup(m.backup, c.backup)
	}
	return m, err
}

// nextReady returns the protocol that all members speak after a change.
func (m *metadata) nextReady(c *metadataChange) readyProtocol {
	next := m.ready
	if !c.ready.since.IsZero() {
		next = c.ready
	}
	if next.protocol <= m.protocol || c.beginsEpoch && c.leaderSpeaks < next.protocol {
		return readyProtocol{}
	}
	return next
}

// findQuarantine returns the place of the quarantine of an instance and a node in the order.
func (m *metadata) findQuarantine(instance, node string) (at int, known bool) {
	return slices.BinarySearchFunc(m.quarantines, instance, func(q *journalpb.Quarantine, _ string) int {
		return cmp.Or(cmp.Compare(q.Instance, instance), cmp.Compare(q.Node, node))
	})
}

// withQuarantine returns the quarantines with one more, which replaces that of the same instance
// and node.
func (m *metadata) withQuarantine(q *journalpb.Quarantine) ([]*journalpb.Quarantine, error) {
	at, known := m.findQuarantine(q.Instance, q.Node)
	switch {
	case known:
		next := slices.Clone(m.quarantines)
		next[at] = q
		return next, nil
	case len(m.quarantines) >= quarantinesMax:
		return m.quarantines, ErrTooManyQuarantines
	}
	return slices.Insert(slices.Clone(m.quarantines), at, q), nil
}

// isStopped reports whether an instance must not change, because its replicas disagree without a
// majority.
func (m *metadata) isStopped(instance string) bool {
	if len(m.quarantines) == 0 {
		return false
	}
	_, stopped := m.findQuarantine(instance, "")
	return stopped
}

// nextBackup returns what is recorded of scheduled backups after one of them.
func nextBackup(recorded, outcome *journalpb.BackupRecord) *journalpb.BackupRecord {
	next := new(journalpb.BackupRecord)
	if recorded != nil {
		next = proto.CloneOf(recorded)
	}
	switch {
	case outcome.Id == "":
		next.Failed++
		next.Failures++
		next.Error = outcome.Error
	case outcome.Id != next.Id:
		next.Id, next.Time, next.Duration = outcome.Id, outcome.Time, outcome.Duration
		next.Bytes, next.StateBytes = outcome.Bytes, outcome.StateBytes
		next.Succeeded++
		next.Failures, next.Error = 0, ""
	}
	return next
}

func (m metadata) message() *journalpb.PartitionMetadata {
	message := &journalpb.PartitionMetadata{
		Clock: m.clock.UnixNano(), Removed: m.removed, Protocol: m.protocol,
		Settings: m.settings.encoded, SettingsVersion: m.settings.version, CompletionKey: m.completionKey,
		Lineages: m.lineages, Cut: m.cut, Quarantines: m.quarantines, Backup: m.backup,
		Roles: m.roles.encoded, RolesVersion: m.roles.version,
		ReadyProtocol: m.ready.protocol, ReadySince: m.ready.since.UnixNano(),
	}
	if m.comparison.number != 0 {
		message.Comparison = &journalpb.Comparison{Number: m.comparison.number, From: m.comparison.from}
	}
	for _, t := range m.tokens {
		message.Tokens = append(message.Tokens, &journalpb.JoinToken{Key: []byte(t.key), ExpiresAt: t.expires.UnixNano(), Node: t.node})
	}
	return message
}

func metadataOf(message *journalpb.PartitionMetadata) metadata {
	md := metadata{
		clock: clustertime.FromUnixNano(message.GetClock()), removed: message.GetRemoved(), protocol: message.GetProtocol(),
		settings: versioned{message.GetSettings(), message.GetSettingsVersion()}, completionKey: message.GetCompletionKey(),
		roles:    versioned{message.GetRoles(), message.GetRolesVersion()},
		lineages: message.GetLineages(), cut: message.GetCut(), quarantines: message.GetQuarantines(), backup: message.GetBackup(),
		comparison: comparison{message.GetComparison().GetNumber(), message.GetComparison().GetFrom()},
		ready:      readyProtocol{message.GetReadyProtocol(), clustertime.FromUnixNano(message.GetReadySince())},
	}
	for _, t := range message.GetTokens() {
		md.tokens = append(md.tokens, tokenOf(t))
	}
	return md
}

// encode returns the encoded PartitionMetadata.
func (m metadata) encode() []byte {
	b := []byte(nil)
	if !m.clock.IsZero() {
		b = appendUint(b, 1, uint64(m.clock.UnixNano()))
	}
	for _, node := range m.removed {
		b = protowire.AppendTag(b, 2, protowire.BytesType)
		b = protowire.AppendString(b, node)
	}
	for _, t := range m.tokens {
		b = protowire.AppendTag(b, 3, protowire.BytesType)
		b = protowire.AppendBytes(b, t.encode())
	}
	if m.protocol != 0 {
		b = appendUint(b, 4, uint64(m.protocol))
	}
	b = m.settings.append(b, 5)
	if len(m.completionKey) > 0 {
		b = protowire.AppendTag(b, 7, protowire.BytesType)
		b = protowire.AppendBytes(b, m.completionKey)
	}
	for _, of := range m.lineages {
		b = protowire.AppendTag(b, 8, protowire.BytesType)
		b = protowire.AppendBytes(b, encodeLineage(of))
	}
	if m.cut != 0 {
		b = appendUint(b, 9, m.cut)
	}
	if m.backup != nil {
		b = protowire.AppendTag(b, 10, protowire.BytesType)
		b = protowire.AppendBytes(b, encodeBackup(m.backup))
	}
	b = m.roles.append(b, 14)
	if m.comparison.number != 0 {
		b = appendNested(b, 23, func(b []byte) []byte {
			return appendText(appendUint(b, 1, m.comparison.number), 2, m.comparison.from)
		})
	}
	for _, q := range m.quarantines {
		b = appendNested(b, 24, func(b []byte) []byte {
			b = appendText(appendText(b, 1, q.Instance), 2, q.Node)
			b = appendUint(appendUint(b, 3, q.Execution), 4, q.EventId)
			return appendText(appendUint(appendText(b, 5, q.Reason), 6, uint64(q.Since)), 7, q.Accepted)
		})
	}
	if m.ready.protocol != 0 {
		b = appendUint(appendUint(b, 26, uint64(m.ready.protocol)), 27, uint64(m.ready.since.UnixNano()))
	}
	return b
}

// encodeBackup returns the encoded BackupRecord, the same on every replica.
func encodeBackup(of *journalpb.BackupRecord) []byte {
	b := protowire.AppendTag(nil, 1, protowire.BytesType)
	b = protowire.AppendString(b, of.Id)
	for i, value := range []uint64{uint64(of.Time), uint64(of.Duration), of.Bytes, of.StateBytes, of.Succeeded, of.Failed, of.Failures} {
		b = appendUint(b, protowire.Number(i+2), value)
	}
	b = protowire.AppendTag(b, 9, protowire.BytesType)
	return protowire.AppendString(b, of.Error)
}

// BackupRecord returns what is recorded of scheduled backups, nil before the first. It must not be
// changed.
func BackupRecord(m *Machine) *journalpb.BackupRecord {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.metadata.backup
}

// ReadyProtocol returns a protocol above that of the cluster which all members speak, and since
// when; 0 if there is none.
func ReadyProtocol(m *Machine) (protocol uint32, since clustertime.Time) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.metadata.ready.protocol, m.metadata.ready.since
}

// encodeLineage returns the encoded Lineage, the same on every replica.
func encodeLineage(of *journalpb.Lineage) []byte {
	b := protowire.AppendTag(nil, 1, protowire.BytesType)
	b = protowire.AppendString(b, of.Id)
	b = appendUint(b, 2, uint64(of.Kind))
	b = protowire.AppendTag(b, 3, protowire.BytesType)
	b = protowire.AppendString(b, of.Source)
	b = appendUint(b, 4, of.Index)
	b = appendUint(b, 5, uint64(of.Time))
	return appendUint(b, 6, uint64(of.Clock))
}

func parseMetadata(b []byte) (metadata, error) {
	var message journalpb.PartitionMetadata
	if err := proto.Unmarshal(b, &message); err != nil {
		return metadata{}, fmt.Errorf("decode partition metadata: %w", ErrCorrupt)
	}
	return metadataOf(&message), nil
}

// Clock returns the latest recorded cluster time, the zero time before the first. It never
// decreases.
func (re *reads) Clock() clustertime.Time {
	re.mu.RLock()
	defer re.mu.RUnlock()
	return re.metadata.clock
}

// RemovedNodes returns the nodes that were removed from the partition, sorted by name. The slice is
// shared and must not be changed.
func (re *reads) RemovedNodes() []string {
	re.mu.RLock()
	defer re.mu.RUnlock()
	return re.metadata.removed
}

// Protocol returns the cluster's protocol, 1 or more. It never decreases.
func (re *reads) Protocol() uint32 {
	re.mu.RLock()
	defer re.mu.RUnlock()
	return max(re.metadata.protocol, 1)
}

// Settings returns the encoded settings of the cluster and how often settings were recorded; 0 if
// none are. The slice is shared and must not be changed.
func (re *reads) Settings() (encoded []byte, version uint64) {
	re.mu.RLock()
	defer re.mu.RUnlock()
	return re.metadata.settings.encoded, re.metadata.settings.version
}

// CompletionKey returns the secret key for signed tokens, empty if none is recorded. The slice is
// shared and must not be changed.
func (re *reads) CompletionKey() []byte {
	re.mu.RLock()
	defer re.mu.RUnlock()
	return re.metadata.completionKey
}

// Roles returns the encoded roles of the members and how often roles were recorded; 0 if none are.
// The slice is shared and must not be changed.
func (m *Machine) Roles() (encoded []byte, version uint64) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.metadata.roles.encoded, m.metadata.roles.version
}
