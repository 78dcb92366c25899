package cluster

import (
	"crypto/ed25519"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/cluster/internal/telemetry"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// Bounds of what callers choose, in bytes unless noted. Names and versions have the bounds of
// package replay.
const (
	nameMax      = 128
	versionMax   = 128
	requestIDMax = 128
	tagsMax      = 64 // tags
	tagKeyMax    = 128
	tagValueMax  = 1024
)

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// checkText returns an error if text is too short, too long, or not UTF-8.
func checkText(field, text string, least, most int) error {
	switch {
	case len(text) < least:
		return invalidArgument(field, fmt.Sprintf("has %d bytes: at least %d required", len(text), least))
	case len(text) > most:
		return invalidArgument(field, fmt.Sprintf("has %d bytes: at most %d are allowed", len(text), most))
	case !utf8.ValidString(text):
		return invalidArgument(field, fmt.Sprintf("%.140q is not UTF-8", text))
	}
	return nil
}

// checkName returns an error if a user may not choose that name.
func checkName(field, name string) error {
	if strings.HasPrefix(name, engine.UpdatePrefix) {
		return invalidArgument(field, fmt.Sprintf("%.140q begins with %q, which is reserved for updates", name, engine.UpdatePrefix))
	}
	return checkText(field, name, 1, nameMax)
}

func checkStart(r *clusterpb.StartRequest) error {
	err := firstError(
		checkName("name", r.Name),
		checkText("version", r.Version, 0, versionMax),
		checkText("request ID", r.RequestId, 0, requestIDMax),
		checkText("trace", r.Trace, 0, telemetry.TraceMax),
		checkTags(r.Tags),
	)
	if err == nil && r.Send != nil {
		err = checkSend(r.Send)
	}
	return err
}

func checkTags(tags map[string]string) error {
	if len(tags) > tagsMax {
		return invalidArgument("tags", fmt.Sprintf("are %d: at most %d are allowed", len(tags), tagsMax))
	}
	for key, value := range tags {
		if err := checkText("tag key", key, 1, tagKeyMax); err != nil {
			return err
		}
		if err := checkText(fmt.Sprintf("tag %q", key), value, 0, tagValueMax); err != nil {
			return err
		}
	}
	return nil
}

func checkSend(r *clusterpb.SendRequest) error {
	return firstError(checkName("event name", r.Name), checkText("request ID", r.RequestId, 0, requestIDMax))
}

// checkRequest returns an error for a request that no correct client sends.
func checkRequest(request *clusterpb.Request) error {
	switch call := request.Call.(type) {
	case *clusterpb.Request_List:
		return checkListRequest(call.List)
	case *clusterpb.Request_Purge:
		return checkPurge(call.Purge.GetInstances())
	case *clusterpb.Request_RemoveMember:
		return checkText("node ID", call.RemoveMember.GetNode(), 1, nodeIDMax)
	case *clusterpb.Request_AdoptMember:
		return checkText("node ID", call.AdoptMember.GetNode(), 1, nodeIDMax)
	case *clusterpb.Request_IssueToken:
		return checkIssueToken(call.IssueToken)
	case *clusterpb.Request_ChangeSettings:
		return checkChangeSettings(call.ChangeSettings)
	case *clusterpb.Request_RevokeToken:
		if len(call.RevokeToken.GetKey()) != ed25519.PublicKeySize {
			return invalidArgument("token key", fmt.Sprintf("has %d bytes, not %d", len(call.RevokeToken.GetKey()), ed25519.PublicKeySize))
		}
		return nil
	}
	if namesInstance(request) {
		if err := checkID(request.Instance); err != nil {
			return err
		}
	}
	switch call := request.Call.(type) {
	case *clusterpb.Request_Start:
		return checkStart(call.Start)
	case *clusterpb.Request_Send:
		return checkSend(call.Send)
	case *clusterpb.Request_Control:
		return firstError(checkText("reason", call.Control.Reason, 0, reasonMax), checkText("request ID", call.Control.RequestId, 0, requestIDMax))
	case *clusterpb.Request_Query:
		return checkName("query name", call.Query.Name)
	case *clusterpb.Request_Update:
		return checkUpdate(call.Update)
	}
	return nil
}

// contentTypeMax bounds the content type that a codec gives its payloads, in bytes.
const contentTypeMax = 128

// payloadMax returns the size limit of a received payload, in bytes. A codec may enlarge a value by
// up to a third plus codecOverhead.
func (s *nodeService) payloadMax() int {
	most := s.node.settings.payloadMax()
	if s.node.registry.PayloadConverter().Codec != nil {
		most += most/3 + codecOverhead
	}
	return most
}

// codecOverhead is what a codec may add to each payload, such as the name of a key.
const codecOverhead = 4 << 10

// checkPayloads returns an error if a payload is larger than a correct client sends.
func (s *nodeService) checkPayloads(request *clusterpb.Request) error {
	switch call := request.Call.(type) {
	case *clusterpb.Request_Start:
		return firstError(s.checkPayload("input", call.Start.GetInput()), s.checkPayload("data", call.Start.GetSend().GetData()))
	case *clusterpb.Request_Send:
		return s.checkPayload("data", call.Send.GetData())
	case *clusterpb.Request_Query:
		return s.checkPayload("input", call.Query.GetInput())
	case *clusterpb.Request_Update:
		return s.checkPayload("input", call.Update.GetInput())
	case *clusterpb.Request_Complete:
		if size, most := proto.Size(call.Complete.GetError()), s.payloadMax(); size > most {
			return invalidArgument("failure", fmt.Sprintf("has %d bytes: at most %d are allowed", size, most))
		}
		return s.checkPayload("result", call.Complete.GetResult())
	}
	return nil
}

func (s *nodeService) checkPayload(field string, payload *journalpb.Payload) error {
	if size, most := len(payload.GetData()), s.payloadMax(); size > most {
		return invalidArgument(field, fmt.Sprintf("has %d bytes: at most %d are allowed", size, most))
	}
	return checkText("content type of "+field, payload.GetContentType(), 0, contentTypeMax)
}

// namesInstance reports whether a request concerns a single instance.
func namesInstance(request *clusterpb.Request) bool {
	switch actionOf(request) {
	case "", ActionList, ActionPurge, ActionSeeMembers, ActionRemoveMember, ActionAdoptMember, ActionIssueToken, ActionSeeTokens, ActionRevokeToken,
		ActionSeeSettings, ActionChangeSettings:
		return false
	}
	return true
}

func checkUpdate(r *clusterpb.UpdateRequest) error {
	return firstError(checkName("update name", r.Name), checkText("request ID", r.RequestId, 0, requestIDMax))
}

func checkListRequest(r *clusterpb.ListRequest) error {
	if r.Limit > listMax {
		return invalidArgument("limit", fmt.Sprintf("is %d: 0 to %d are allowed", r.Limit, listMax))
	}
	err := firstError(
		checkText("after", r.After, 0, filterTextMax),
		checkText("filter by name", r.Name, 0, filterTextMax),
		checkText("filter by version", r.Version, 0, filterTextMax),
		checkText("filter by ID prefix", r.IdPrefix, 0, filterTextMax),
		checkText("filter by parent", r.Parent, 0, filterTextMax),
		checkTags(r.Tags),
	)
	for _, state := range r.States {
		err = firstError(err, checkText("filter by state", state, 0, filterTextMax), checkState(state))
	}
	return err
}

// checkState returns an error if no instance can be in the state: a misspelled state must not yield
// an empty list.
func checkState(state string) error {
	if slices.Contains(instanceStates, State(state)) {
		return nil
	}
	names := make([]string, len(instanceStates))
	for i, known := range instanceStates {
		names[i] = string(known)
	}
	return invalidArgument("filter by state", fmt.Sprintf("is %q, which is none of: %s", state, strings.Join(names, ", ")))
}

func checkPurge(ids []string) error {
	if len(ids) > listMax {
		return invalidArgument("IDs", fmt.Sprintf("are %d: at most %d are allowed", len(ids), listMax))
	}
	for _, id := range ids {
		if err := checkID(id); err != nil {
			return err
		}
	}
	return nil
}
