package instances

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/journal/state/index"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// shortPages answers a request as one partition, with pages of random length, also empty ones.
func shortPages(random *rand.Rand, q *index.Query, r *clusterpb.ListRequest, rows []index.Cursor) *clusterpb.ListResult {
	slices.SortFunc(rows, q.Compare)
	result, examined := new(clusterpb.ListResult), 0
	for _, at := range rows {
		if after := CursorOf(r); after != nil && q.Compare(at, *after) <= 0 {
			continue
		}
		if examined == LimitOf(r) || examined > 0 && random.IntN(4) == 0 {
			result.More = true
			return result
		}
		examined++
		result.Next, result.NextKey = at.ID, at.Key
		if random.IntN(3) == 0 && !strings.HasPrefix(at.ID, "match") {
			continue // examined, but it does not match
		}
		if strings.HasPrefix(at.ID, "match") {
			result.Instances = append(result.Instances, &clusterpb.Status{Instance: at.ID})
			result.Keys = append(result.Keys, at.Key)
		}
	}
	return result
}

// Every page of every partition may end early. The merged list has each instance once, in order.
func TestMergeLists_ShortPagesLoseNothing(t *testing.T) {
	for seed := range uint64(500) {
		random := rand.New(rand.NewPCG(seed, 1))
		order := []string{"id", "created"}[random.IntN(2)]
		r := &clusterpb.ListRequest{Order: order, Descending: random.IntN(2) == 0, Limit: uint32(1 + random.IntN(6)), AcceptsShort: true}
		q, err := QueryOf(r)
		if err != nil {
			t.Fatal(err)
		}
		parts := make([][]index.Cursor, 1+random.IntN(5))
		var want []index.Cursor
		for i := range 40 {
			at := index.Cursor{ID: fmt.Sprintf("%s-%02d", []string{"match", "other"}[random.IntN(2)], i)}
			if order != "id" {
				at.Key = random.Int64N(9) - 4
			}
			of := random.IntN(len(parts))
			parts[of] = append(parts[of], at)
			if strings.HasPrefix(at.ID, "match") {
				want = append(want, at)
			}
		}
		slices.SortFunc(want, q.Compare)
		var got []string
		for pages := 0; ; pages++ {
			if pages > 200 {
				t.Fatalf("seed %d: the list does not end", seed)
			}
			var answers []*clusterpb.ListResult
			for _, rows := range parts {
				answers = append(answers, shortPages(random, &q, r, rows))
			}
			merged, err := MergeLists(r, answers)
			if err != nil || len(merged.Instances) > int(r.Limit) {
				t.Fatalf("seed %d: %v, %v", seed, merged, err)
			}
			for _, status := range merged.Instances {
				got = append(got, status.Instance)
			}
			at, more := NextOf(merged)
			if !more {
				break
			}
			r.After, r.AfterKey = "", 0
			if err := SetCursor(r, FormatCursor(r, at)); err != nil {
				t.Fatal(err)
			}
		}
		wanted := make([]string, len(want))
		for i, at := range want {
			wanted[i] = at.ID
		}
		if !slices.Equal(got, wanted) {
			t.Fatalf("seed %d, %s: %v; want %v", seed, orderText(r), got, wanted)
		}
	}
}

// A node of the previous build says only that there is more.
func TestMergeLists_AcceptsPreviousBuild(t *testing.T) {
	status := func(ids ...string) (all []*clusterpb.Status) {
		for _, id := range ids {
			all = append(all, &clusterpb.Status{Instance: id})
		}
		return all
	}
	merged, err := MergeLists(&clusterpb.ListRequest{Limit: 2}, []*clusterpb.ListResult{
		{Instances: status("a", "c"), More: true}, {Instances: status("b", "d"), More: false},
	})
	if at, more := NextOf(merged); err != nil || !more || at.ID != "b" || len(merged.Instances) != 2 {
		t.Errorf("%v, %v", merged, err)
	}
}

func TestCount_BoundsGroups(t *testing.T) {
	group := func(i int) *clusterpb.InstanceGroup {
		return &clusterpb.InstanceGroup{Values: []string{fmt.Sprint(i)}, Count: 1}
	}
	first, second := new(clusterpb.ListResult), new(clusterpb.ListResult)
	for i := range index.GroupsMax {
		first.Groups, second.Groups = append(first.Groups, group(i)), append(second.Groups, group(i))
	}
	r := &clusterpb.ListRequest{Count: true, GroupBy: []string{"tag:order"}}
	merged, err := MergeLists(r, []*clusterpb.ListResult{first, second})
	if err != nil || len(merged.Groups) != index.GroupsMax || merged.Groups[0].Count != 2 {
		t.Errorf("%d groups, %v", len(merged.GetGroups()), err)
	}
	second.Groups = append(second.Groups, group(-1))
	_, err = MergeLists(r, []*clusterpb.ListResult{first, second})
	var invalid *replay.InvalidError
	if !errors.As(err, &invalid) || !strings.Contains(err.Error(), "10000") || !strings.Contains(err.Error(), "tag:order") {
		t.Errorf("%v", err)
	}
}

// The words here are those of the index.
func TestStateWords_MatchIndex(t *testing.T) {
	for _, w := range stateWords {
		if w.text != w.value.String() {
			t.Errorf("%q is %q in the index", w.text, w.value)
		}
	}
}

// The pages of a journal may be short. A caller of an earlier build gets full pages except the
// last.
func TestList_PageIsFullForCallersThatExpectIt(t *testing.T) {
	const instances = 20
	short := func(after *index.Cursor, limit int) (*state.QueryPage, error) {
		from := 0
		if after != nil {
			if _, err := fmt.Sscanf(after.ID, "i-%02d", &from); err != nil {
				return nil, err
			}
			from++
		}
		page := &state.QueryPage{}
		for i := from; i < min(from+min(limit, 3), instances); i++ {
			page.Next.ID = fmt.Sprintf("i-%02d", i)
			if page.More = i < instances-1; i%5 != 0 { // others are examined, but do not match
				page.Rows = append(page.Rows, &index.Row{ID: page.Next.ID})
				page.Instances = append(page.Instances, &journalpb.Instance{Instance: page.Next.ID})
			}
		}
		return page, nil
	}
	for _, c := range []struct {
		r    *clusterpb.ListRequest
		want int
		more bool
	}{
		{&clusterpb.ListRequest{Limit: 7}, 7, true},
		{&clusterpb.ListRequest{Limit: 7, After: "i-10"}, 7, true},
		{&clusterpb.ListRequest{Limit: 7, After: "i-16"}, 3, false},
		{&clusterpb.ListRequest{Limit: 7, AcceptsShort: true}, 2, true},
	} {
		result := new(clusterpb.ListResult)
		if err := fillPage(&index.Query{}, c.r, result, short); err != nil {
			t.Fatal(err)
		}
		if len(result.Instances) != c.want || result.More != c.more {
			t.Errorf("%v: %d instances, more %v; want %d, %v", c.r, len(result.Instances), result.More, c.want, c.more)
		}
	}
}

// A merged page, and a page for a caller of an earlier build, end after about index.PageBytesMax.
func TestList_PageIsBoundedInBytes(t *testing.T) {
	part := func(ids ...string) *clusterpb.ListResult {
		p := new(clusterpb.ListResult)
		for _, id := range ids {
			p.Instances = append(p.Instances, &clusterpb.Status{Instance: id, Summary: strings.Repeat("x", index.PageBytesMax/2)})
		}
		return p
	}
	merged, err := MergeLists(&clusterpb.ListRequest{}, []*clusterpb.ListResult{part("a", "c"), part("b", "d")})
	if at, more := NextOf(merged); err != nil || !more || at.ID != "b" || len(merged.Instances) != 2 {
		t.Errorf("%d instances, next %q, %v", len(merged.Instances), at.ID, err)
	}
	merged, err = MergeLists(&clusterpb.ListRequest{}, []*clusterpb.ListResult{part("a"), part("b")})
	if err != nil || merged.More || len(merged.Instances) != 2 {
		t.Errorf("%d instances, more %v, %v", len(merged.Instances), merged.More, err)
	}
	result := new(clusterpb.ListResult)
	err = fillPage(&index.Query{}, &clusterpb.ListRequest{Limit: 7}, result, func(after *index.Cursor, _ int) (*state.QueryPage, error) {
		if after != nil && after.ID == "b" {
			t.Fatal("a page after a full one")
		}
		id := "a"
		if after != nil {
			id = "b"
		}
		return &state.QueryPage{
			Page:      index.Page{Rows: []*index.Row{{ID: id}}, More: true, Next: index.Cursor{ID: id}},
			Instances: []*journalpb.Instance{{Instance: id}}, Bytes: index.PageBytesMax / 2,
		}, nil
	})
	if err != nil || len(result.Instances) != 2 || !result.More || result.Next != "b" {
		t.Errorf("%d instances, more %v, next %q, %v", len(result.Instances), result.More, result.Next, err)
	}
}
