package index

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func byTags(keys ...string) *Counts {
	var by []Grouping
	for _, key := range keys {
		by = append(by, Grouping{DimensionTag, key})
	}
	return NewCounts(by)
}

// A count ends as soon as it has too many groups, and takes no memory for the rest.
func TestCounts_GroupsAreBoundedWhileCounted(t *testing.T) {
	few := byTags("k")
	for i := range GroupsMax + 1 {
		err := few.Add(&Row{Tags: map[string]string{"k": fmt.Sprint(i)}}, 1)
		if errors.Is(err, ErrTooManyGroups) != (i == GroupsMax) {
			t.Fatalf("group %d: %v", i+1, err)
		}
	}
	if err := few.Add(&Row{Tags: map[string]string{"k": "7"}}, 1); err != nil || len(few.Groups()) != GroupsMax {
		t.Errorf("a known group: %v, %d groups", err, len(few.Groups()))
	}
	long := byTags("k")
	for i := range 5 {
		err := long.Add(&Row{Tags: map[string]string{"k": strings.Repeat(fmt.Sprint(i), GroupBytesMax/4)}}, 1)
		if errors.Is(err, ErrTooManyGroups) != (i == 4) {
			t.Fatalf("group %d: %v", i+1, err)
		}
	}
}

// The values of tags may hold any byte.
func TestCounts_ValuesWithZeroBytesAreDistinct(t *testing.T) {
	c := byTags("a", "b")
	for _, row := range []*Row{
		{Tags: map[string]string{"a": "x\x00", "b": "y"}},
		{Tags: map[string]string{"a": "x", "b": "\x00y"}},
		{Tags: map[string]string{"a": "x\x00\x01y", "b": ""}},
	} {
		if err := c.Add(row, 1); err != nil {
			t.Fatal(err)
		}
	}
	if groups := c.Groups(); len(groups) != 3 {
		t.Errorf("groups %+v", groups)
	}
}
