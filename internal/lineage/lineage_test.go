package lineage

import (
	"fmt"
	"slices"
	"testing"
)

func TestCompare(t *testing.T) {
	var many []string
	for i := range 40 {
		many = append(many, fmt.Sprint("l", i))
	}
	for name, c := range map[string]struct {
		own, other []string
		want       Relation
	}{
		"no data":                       {nil, []string{"", "a"}, Unknown},
		"the other has no data":         {[]string{"", "a"}, nil, Unknown},
		"neither was restored":          {[]string{""}, []string{""}, Same},
		"restored":                      {[]string{""}, []string{"", "a"}, Later},
		"before it was restored":        {[]string{"", "a"}, []string{""}, Earlier},
		"restored again":                {[]string{"", "a"}, []string{"", "a", "b"}, Later},
		"the same":                      {[]string{"", "a", "b"}, []string{"", "a", "b"}, Same},
		"two restored from one":         {[]string{"", "a"}, []string{"", "b"}, Diverged},
		"restored from an earlier one":  {[]string{"", "a", "b"}, []string{"", "a", "c"}, Diverged},
		"the oldest are dropped":        {many[20:30], many[22:32], Later},
		"the oldest of own are dropped": {many[22:32], many[:25], Earlier},
		"all common ones are dropped":   {append([]string{""}, many[:3]...), append([]string{""}, many[10:20]...), Diverged},
		"dropped, but founded":          {[]string{""}, append([]string{""}, many[24:]...), Later},
	} {
		if got := Compare(c.own, c.other); got != c.want {
			t.Errorf("%s: relation %d of %v to %v, want %d", name, got, c.other, c.own, c.want)
		}
		reverse := map[Relation]Relation{Later: Earlier, Earlier: Later}
		want, ok := reverse[c.want]
		if !ok {
			want = c.want
		}
		if got := Compare(slices.Clone(c.other), c.own); got != want {
			t.Errorf("%s, from the other side: %d, want %d", name, got, want)
		}
	}
}
