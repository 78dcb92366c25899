package state

import (
	"bytes"
	"errors"
	"testing"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

func settingsChange(encoded string, version uint64) *journalpb.MetadataChange {
	return &journalpb.MetadataChange{Settings: []byte(encoded), SettingsVersion: version}
}

func rolesChange(encoded string, version uint64) *journalpb.MetadataChange {
	return &journalpb.MetadataChange{Roles: []byte(encoded), RolesVersion: version}
}

// A change of settings, or of roles, applies only to the version that its caller has read, so no
// change is lost.
func TestSettings_ChangeNeedsNextVersion(t *testing.T) {
	t.Run("settings", func(t *testing.T) {
		expectVersions(t, settingsChange, ErrSettingsVersion, (*Machine).Settings)
	})
	t.Run("roles", func(t *testing.T) { expectVersions(t, rolesChange, ErrRolesVersion, (*Machine).Roles) })
}

func expectVersions(t *testing.T, changeTo func(string, uint64) *journalpb.MetadataChange, rejected error, read func(*Machine) ([]byte, uint64)) {
	m := New()
	changed, cancel := m.WatchSettings()
	defer cancel()
	for i, step := range []struct {
		change *journalpb.MetadataChange
		want   error
		now    string
		at     uint64
	}{
		{changeTo("a", 2), rejected, "", 0},
		{changeTo("a", 1), nil, "a", 1},
		{changeTo("b", 1), rejected, "a", 1},
		{changeTo("a", 1), nil, "a", 1}, // repeated
		{changeTo("b", 2), nil, "b", 2},
		{changeTo("a", 1), rejected, "b", 2}, // repeated too late
		{changeTo("c", 4), rejected, "b", 2},
		{new(journalpb.MetadataChange), nil, "b", 2},
	} {
		if err := applyMetadataChange(t, m, 1, step.change); !errors.Is(err, step.want) {
			t.Errorf("step %d: %v, want %v", i, err, step.want)
		}
		if encoded, version := read(m); string(encoded) != step.now || version != step.at {
			t.Errorf("step %d: %q, version %d; want %q, %d", i, encoded, version, step.now, step.at)
		}
		select {
		case <-changed:
			if step.want != nil {
				t.Errorf("step %d was rejected but wakes watchers", i)
			}
		default:
			if step.want == nil && step.change.SettingsVersion+step.change.RolesVersion > 0 {
				t.Errorf("step %d wakes no watcher", i)
			}
		}
	}
}

// A snapshot holds settings and roles byte for byte, and restoring it wakes those who watch them.
func TestSettings_SurviveSnapshot(t *testing.T) {
	m := New()
	if err := applyMetadataChange(t, m, 1, settingsChange("\x00\xff", 1)); err != nil {
		t.Fatal(err)
	}
	if err := applyMetadataChange(t, m, 1, rolesChange("\xff\x00", 1)); err != nil {
		t.Fatal(err)
	}
	var snapshot bytes.Buffer
	if _, err := m.Snapshot().WriteTo(&snapshot); err != nil {
		t.Fatal(err)
	}
	restored := New()
	changed, cancel := restored.WatchSettings()
	defer cancel()
	if err := restored.Restore(&snapshot); err != nil {
		t.Fatal(err)
	}
	<-changed
	if encoded, version := restored.Settings(); string(encoded) != "\x00\xff" || version != 1 {
		t.Errorf("%q, version %d", encoded, version)
	}
	if encoded, version := restored.Roles(); string(encoded) != "\xff\x00" || version != 1 {
		t.Errorf("roles %q, version %d", encoded, version)
	}
}
