package cluster

import (
	"errors"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A build that speaks only protocol 3 ignores the fields of protocol 4, so it must reject a request
// that has them.
func TestRequests_RejectedByBuildsThatIgnoreTheirOptions(t *testing.T) {
	header := []*journalpb.Header{{Name: "tenant", Value: "acme"}}
	start := func(s *clusterpb.StartRequest) *clusterpb.Request {
		return &clusterpb.Request{Call: &clusterpb.Request_Start{Start: s}}
	}
	old, present := Config{NodeID: "old", protocol: 3}, Config{NodeID: "new", protocol: 4}
	for name, request := range map[string]*clusterpb.Request{
		"start with headers":      start(&clusterpb.StartRequest{Headers: header}),
		"start with a policy":     start(&clusterpb.StartRequest{Retry: new(journalpb.RetryPolicy)}),
		"start with a summary":    start(&clusterpb.StartRequest{Summary: "s"}),
		"start with a deadline":   start(&clusterpb.StartRequest{Deadline: time.Now().UnixNano()}),
		"start for an update":     start(&clusterpb.StartRequest{Update: true}),
		"start with an update":    start(&clusterpb.StartRequest{BeginWith: new(clusterpb.UpdateRequest)}),
		"start, event's headers":  start(&clusterpb.StartRequest{Send: &clusterpb.SendRequest{Headers: header}}),
		"event with headers":      {Call: &clusterpb.Request_Send{Send: &clusterpb.SendRequest{Headers: header}}},
		"update with headers":     {Call: &clusterpb.Request_Update{Update: &clusterpb.UpdateRequest{Headers: header}}},
		"update of a run":         {Call: &clusterpb.Request_Update{Update: &clusterpb.UpdateRequest{FirstExecution: 1}}},
		"list by attributes":      {Call: &clusterpb.Request_List{List: &clusterpb.ListRequest{Attributes: map[string]string{"a": "b"}}}},
		"list updated from":       {Call: &clusterpb.Request_List{List: &clusterpb.ListRequest{UpdatedFrom: 1}}},
		"list updated before":     {Call: &clusterpb.Request_List{List: &clusterpb.ListRequest{UpdatedBefore: 1}}},
		"list ended from":         {Call: &clusterpb.Request_List{List: &clusterpb.ListRequest{EndedFrom: 1}}},
		"list ended before":       {Call: &clusterpb.Request_List{List: &clusterpb.ListRequest{EndedBefore: 1}}},
		"list by error code":      {Call: &clusterpb.Request_List{List: &clusterpb.ListRequest{ErrorCode: "x"}}},
		"list of waiting ones":    {Call: &clusterpb.Request_List{List: &clusterpb.ListRequest{Waiting: new(clusterpb.WaitingFilter)}}},
		"list of failing ones":    {Call: &clusterpb.Request_List{List: &clusterpb.ListRequest{Failing: new(clusterpb.FailingFilter)}}},
		"list in another order":   {Call: &clusterpb.Request_List{List: &clusterpb.ListRequest{Order: "updated"}}},
		"list in reverse":         {Call: &clusterpb.Request_List{List: &clusterpb.ListRequest{Descending: true}}},
		"count in groups":         {Call: &clusterpb.Request_List{List: &clusterpb.ListRequest{Count: true, GroupBy: []string{"name"}}}},
		"event with a reason":     {Reason: "r", Call: &clusterpb.Request_Send{Send: new(clusterpb.SendRequest)}},
		"completion with a token": {Call: &clusterpb.Request_Complete{Complete: &clusterpb.CompleteRequest{SignedToken: "t3.x"}}},
	} {
		protocol := requestProtocol(4, request)
		if err := old.checkProtocol(protocol); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: a node of protocol 3 accepts it: %v", name, err)
		}
		if err := present.checkProtocol(protocol); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, request := range map[string]*clusterpb.Request{
		"start":  start(&clusterpb.StartRequest{Tags: map[string]string{"a": "b"}}),
		"event":  {Call: &clusterpb.Request_Send{Send: new(clusterpb.SendRequest)}},
		"update": {Call: &clusterpb.Request_Update{Update: new(clusterpb.UpdateRequest)}},
		"list":   {Call: &clusterpb.Request_List{List: &clusterpb.ListRequest{States: []string{"failed"}, After: "a", AcceptsShort: true}}},
	} {
		if err := old.checkProtocol(requestProtocol(4, request)); err != nil {
			t.Errorf("%s: a node of protocol 3 rejects it: %v", name, err)
		}
	}
}
