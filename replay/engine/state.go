package engine

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/internal/host"
)

// Bounds of the attributes and of the key-value maps of an instance.
const (
	AttributesMax     = 32
	attributeBytesMax = 256 // of text
	valuesMax         = 100
	valueBytesMax     = 16 << 10  // of JSON
	valuesBytesMax    = 256 << 10 // of all maps: names, keys and JSON
)

// A valueKey identifies a value in the key-value maps of an instance.
type valueKey struct{ kv, key string }

func (k valueKey) compare(other valueKey) int {
	return cmp.Or(strings.Compare(k.kv, other.kv), strings.Compare(k.key, other.key))
}

// bytes returns what a value counts for valuesBytesMax.
func (k valueKey) bytes(value *journalpb.Payload) int {
	return len(k.kv) + len(k.key) + len(value.GetData())
}

// An instanceState holds the attributes and the values of key-value maps that an instance has, as
// its code has set them or as they are recorded. The zero value is empty.
type instanceState struct {
	attributes  map[string]*journalpb.AttributeValue
	values      map[valueKey]*journalpb.Payload
	valuesBytes int
}

// restore takes what an execution has from the previous one.
func (s *instanceState) restore(started *journalpb.OrchestrationStarted) {
	for _, attribute := range started.Attributes {
		s.setAttribute(attribute)
	}
	for _, value := range started.Values {
		s.setValue(value)
	}
}

func (s *instanceState) setAttribute(set *journalpb.AttributeSet) {
	if set.Value == nil {
		delete(s.attributes, set.Name)
		return
	}
	if s.attributes == nil {
		s.attributes = make(map[string]*journalpb.AttributeValue)
	}
	s.attributes[set.Name] = set.Value
}

func (s *instanceState) setValue(set *journalpb.ValueSet) {
	key := valueKey{set.Map, set.Key}
	s.valuesBytes += s.growth(key, set.Value)
	if set.Value == nil {
		delete(s.values, key)
		return
	}
	if s.values == nil {
		s.values = make(map[valueKey]*journalpb.Payload)
	}
	s.values[key] = set.Value
}

// replaceByRecord makes a value what is recorded for it, whose encoding may differ from today's.
func (s *instanceState) replaceByRecord(requested, recorded *journalpb.ValueSet) {
	if key := (valueKey{requested.Map, requested.Key}); requested.Value != nil && s.values[key] == requested.Value {
		s.setValue(recorded)
	}
}

// growth returns by how many bytes the maps grow if the value of a key is set, or deleted if it is
// nil.
func (s *instanceState) growth(key valueKey, value *journalpb.Payload) (bytes int) {
	if present, ok := s.values[key]; ok {
		bytes -= key.bytes(present)
	}
	if value != nil {
		bytes += key.bytes(value)
	}
	return bytes
}

// carryOver sets what the next execution needs.
func (s *instanceState) carryOver(started *journalpb.OrchestrationStarted) {
	for _, name := range slices.Sorted(maps.Keys(s.attributes)) {
		started.Attributes = append(started.Attributes, &journalpb.AttributeSet{Name: name, Value: s.attributes[name]})
	}
	for _, key := range slices.SortedFunc(maps.Keys(s.values), valueKey.compare) {
		started.Values = append(started.Values, &journalpb.ValueSet{Map: key.kv, Key: key.key, Value: s.values[key]})
	}
}

// checkAttribute returns why an attribute must not be set to a value; nil removes it.
func (s *instanceState) checkAttribute(name string, value any) error {
	field := fmt.Sprintf("attribute %q", name)
	if value != nil && s.attributes[name] == nil && len(s.attributes) == AttributesMax {
		return &replay.InvalidError{Field: field, Reason: fmt.Sprintf("is one too many: an instance has at most %d", AttributesMax)}
	}
	switch v := value.(type) {
	case string:
		if len(v) > attributeBytesMax {
			return &replay.InvalidError{Field: field, Reason: fmt.Sprintf("has %d bytes: at most %d are allowed", len(v), attributeBytesMax)}
		}
		if !utf8.ValidString(v) {
			return &replay.InvalidError{Field: field, Reason: "is not UTF-8"}
		}
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return &replay.InvalidError{Field: field, Reason: fmt.Sprintf("is %v: it must be finite", v)}
		}
	case time.Time:
		if !time.Unix(0, v.UnixNano()).Equal(v) {
			return &replay.InvalidError{Field: field, Reason: fmt.Sprintf("is %v: it must be between the years 1678 and 2262", v)}
		}
	}
	return nil
}

// checkKey returns an error for an invalid name of a map or key.
func checkKey(kv, key string) error {
	if err := checkName("key-value map", kv); err != nil {
		return err
	}
	field := fmt.Sprintf("key of key-value map %q", kv)
	switch {
	case len(key) == 0 || len(key) > host.NameMax:
		return &replay.InvalidError{Field: field, Reason: fmt.Sprintf("has %d bytes: 1 to %d are allowed", len(key), host.NameMax)}
	case !utf8.ValidString(key):
		return &replay.InvalidError{Field: field, Reason: "is not UTF-8"}
	}
	return nil
}

// checkValue returns why a value must not be set.
func (s *instanceState) checkValue(key valueKey, value *journalpb.Payload) error {
	field := fmt.Sprintf("value of key %q in key-value map %q", key.key, key.kv)
	_, exists := s.values[key]
	switch {
	case len(value.Data) > valueBytesMax:
		return &replay.InvalidError{Field: field, Reason: fmt.Sprintf("has %d bytes: at most %d are allowed", len(value.Data), valueBytesMax)}
	case !exists && len(s.values) == valuesMax:
		return &replay.InvalidError{Field: field, Reason: fmt.Sprintf("is one too many: all maps of an instance have at most %d", valuesMax)}
	case s.valuesBytes+s.growth(key, value) > valuesBytesMax:
		return &replay.InvalidError{Field: field, Reason: fmt.Sprintf("has %d bytes: all maps of an instance have at most %d", len(value.Data), valuesBytesMax)}
	}
	return nil
}

// attributeRecord returns the record of a value of host.AttributeOf; nil for nil.
func attributeRecord(value any) *journalpb.AttributeValue {
	switch v := value.(type) {
	case string:
		return &journalpb.AttributeValue{Kind: &journalpb.AttributeValue_Text{Text: v}}
	case bool:
		return &journalpb.AttributeValue{Kind: &journalpb.AttributeValue_Flag{Flag: v}}
	case int64:
		return &journalpb.AttributeValue{Kind: &journalpb.AttributeValue_Integer{Integer: v}}
	case float64:
		return &journalpb.AttributeValue{Kind: &journalpb.AttributeValue_Number{Number: v}}
	case time.Time:
		return &journalpb.AttributeValue{Kind: &journalpb.AttributeValue_Time{Time: v.UnixNano()}}
	}
	return nil
}

// AttributeText returns the text of an attribute's record, as [replay.AttributeHandle.Text] does.
func AttributeText(value *journalpb.AttributeValue) string {
	switch kind := value.GetKind().(type) {
	case *journalpb.AttributeValue_Text:
		return kind.Text
	case *journalpb.AttributeValue_Flag:
		return host.AttributeText(kind.Flag)
	case *journalpb.AttributeValue_Integer:
		return host.AttributeText(kind.Integer)
	case *journalpb.AttributeValue_Number:
		return host.AttributeText(kind.Number)
	case *journalpb.AttributeValue_Time:
		return host.AttributeText(time.Unix(0, kind.Time))
	}
	return ""
}

// AttributeTexts returns the texts of attributes by name; nil if there are none.
func AttributeTexts(attributes []*journalpb.AttributeSet) map[string]string {
	if len(attributes) == 0 {
		return nil
	}
	texts := make(map[string]string, len(attributes))
	for _, attribute := range attributes {
		texts[attribute.Name] = AttributeText(attribute.Value)
	}
	return texts
}

func (v *programView) SetAttribute(name string, value any) error {
	v.calls.current("Attribute")
	if err := checkName("attribute", name); err != nil {
		return err
	}
	if err := v.state.checkAttribute(name, value); err != nil {
		return err
	}
	if v.coroutines.evicting() {
		return replay.ErrEvicting
	}
	set := &journalpb.AttributeSet{Name: name, Value: attributeRecord(value)}
	if set.Value == nil && v.state.attributes[name] == nil {
		return nil
	}
	v.state.setAttribute(set)
	v.operations.queue.add(&journalpb.Event{Body: &journalpb.Event_AttributeSet{AttributeSet: set}}, nil)
	return nil
}

// valueInfo identifies a value for errors and warnings.
func valueInfo(kv, key string) replay.PayloadInfo {
	return replay.PayloadInfo{Kind: "key-value map", Name: kv, Part: "value of key " + key}
}

// DecodeValues decodes the records of a key-value map, by key. The error is a
// [*replay.PayloadError] or a [*replay.CodecError].
func DecodeValues[T any](p PayloadConverter, sets []*journalpb.ValueSet) (map[string]T, error) {
	values := make(map[string]T, len(sets))
	for _, set := range sets {
		var value T
		if err := p.Decode(valueInfo(set.Map, set.Key), set.Value, &value); err != nil {
			return nil, err
		}
		values[set.Key] = value
	}
	return values, nil
}

func (v *programView) SetValue(kv, key string, value host.Value) error {
	v.calls.current("KV")
	if err := checkKey(kv, key); err != nil {
		return err
	}
	p, set := (*program)(v), &journalpb.ValueSet{Map: kv, Key: key}
	if rejection := p.encodeValue(set, value); rejection != nil && !p.isRecorded(set, value.Type) {
		return rejection
	}
	if v.coroutines.evicting() {
		return replay.ErrEvicting
	}
	v.setValue(set).valueType = value.Type
	return nil
}

// encodeValue sets the value of set. It returns why the value must not be recorded.
func (p *program) encodeValue(set *journalpb.ValueSet, value host.Value) error {
	key := valueKey{set.Map, set.Key}
	payload, err := p.encode(valueInfo(set.Map, set.Key), value.Any)
	large := new(replay.PayloadTooLargeError)
	switch {
	case err == nil:
		set.Value = payload
		return p.state.checkValue(key, payload)
	case !errors.As(err, &large):
		return err
	case p.cursor.replaying():
		set.Value, _ = marshal(value.Any, math.MaxInt) // it may be recorded, see isRecorded
	}
	if large.Max >= valueBytesMax {
		return p.state.checkValue(key, &journalpb.Payload{Data: make([]byte, large.Bytes)})
	}
	return err
}

// isRecorded reports whether the history that is being replayed has a value that would be rejected
// today: the bounds apply when a value is recorded, and its encoding may have grown since. The next
// change of a map that is not queued yet must be this value. Otherwise it was rejected then, too:
// a repeated call is rejected until a change of a map comes first.
func (p *program) isRecorded(set *journalpb.ValueSet, valueType reflect.Type) bool {
	if set.Value == nil || !p.cursor.replaying() || p.coroutines.evicting() {
		return false
	}
	if p.cursor.mode == replayingBeforeLookAhead {
		p.coroutines.halt()
	}
	queued := 0
	for _, a := range p.operations.queue.actions {
		if a.event.GetValueSet() != nil {
			queued++
		}
	}
	next := p.valuesAhead.after(p.cursor.eventID, queued)
	if next == nil {
		return false
	}
	recorded, err := p.registry.payloads.OpenEvent(next)
	if err != nil {
		return false // the cursor will stop there
	}
	meaning := comparison{id: p.id, valueType: valueType}
	return meaning.sameValueSet(recorded.GetValueSet(), set)
}

// valuesAhead are the changes of maps in the rest of the history that is being replayed.
type valuesAhead struct{ events []*journalpb.Event }

func newValuesAhead(rest []*journalpb.Event) *valuesAhead {
	v := new(valuesAhead)
	for _, event := range rest {
		if event.GetValueSet() != nil {
			v.events = append(v.events, event)
		}
	}
	return v
}

// after returns a change that follows the event with that event_id, after skipping some changes;
// nil if there is none.
func (v *valuesAhead) after(eventID uint64, skipped int) *journalpb.Event {
	if v == nil {
		return nil
	}
	at, _ := slices.BinarySearchFunc(v.events, eventID+1, func(event *journalpb.Event, id uint64) int { return cmp.Compare(event.EventId, id) })
	if at += skipped; at >= len(v.events) {
		return nil
	}
	return v.events[at]
}

func (v *programView) DeleteValue(kv, key string) error {
	v.calls.current("KV")
	if err := checkKey(kv, key); err != nil {
		return err
	}
	if v.coroutines.evicting() {
		return replay.ErrEvicting
	}
	if _, exists := v.state.values[valueKey{kv, key}]; exists {
		v.setValue(&journalpb.ValueSet{Map: kv, Key: key})
	}
	return nil
}

func (v *programView) setValue(set *journalpb.ValueSet) *action {
	v.state.setValue(set)
	return v.operations.queue.add(&journalpb.Event{Body: &journalpb.Event_ValueSet{ValueSet: set}}, nil)
}

func (v *programView) GetValue(kv, key string, into any) (ok bool, err error) {
	v.calls.checkRead("KV")
	payload, ok := v.state.values[valueKey{kv, key}]
	if !ok {
		return false, checkKey(kv, key)
	}
	return true, deserialize(valueInfo(kv, key), payload, into)
}

func (v *programView) Keys(kv string) (keys []string) {
	v.calls.checkRead("KV")
	for key := range v.state.values {
		if key.kv == kv {
			keys = append(keys, key.key)
		}
	}
	slices.Sort(keys)
	return keys
}
