package main

import (
	"reflect"
	"slices"
	"testing"

	"github.com/tenuto-dev/tenuto/cluster"
)

// The command shows and sets every field of cluster.Settings.
func TestSettingsAreComplete(t *testing.T) {
	var check func(of reflect.Type, prefix string)
	check = func(of reflect.Type, prefix string) {
		for field := range of.Fields() {
			name := prefix + field.Name
			if field.Type.Kind() == reflect.Struct {
				check(field.Type, name+".")
				continue
			}
			known := slices.ContainsFunc(clusterSettings, func(s setting) bool { return s.name == name })
			if !known && name+"." != ratePrefix {
				t.Errorf("tenuto settings does not know %s", name)
			}
		}
	}
	check(reflect.TypeFor[cluster.Settings](), "")
}

// A placement is set by its name, or in the form in which tables show it.
func TestSettingActivityPlacement(t *testing.T) {
	for _, text := range []string{"workers first", "workers-first"} {
		var s cluster.Settings
		if err := assign(&s, "ActivityPlacement="+text); err != nil {
			t.Fatal(err)
		}
		if s.ActivityPlacement != "workers first" {
			t.Errorf("ActivityPlacement is %q", s.ActivityPlacement)
		}
	}
}
