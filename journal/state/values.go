package state

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// publishedState is what the code of the latest run has published with attributes and key-value
// maps.
type publishedState struct {
	attributes map[string]string // encoded AttributeValues, by name
	// Where the latest execution holds each value: in the ValueSet with that event_id, or in its
	// first event.
	values map[valueKey]uint64
}

// A valueKey identifies a value of an instance.
type valueKey struct{ kv, key string }

func (k valueKey) compare(other valueKey) int {
	return cmp.Or(strings.Compare(k.kv, other.kv), strings.Compare(k.key, other.key))
}

// begin sets what an execution begins with.
func (p *publishedState) begin(started *journalpb.OrchestrationStarted) {
	*p = publishedState{}
	for _, attribute := range started.Attributes {
		p.setAttribute(attribute)
	}
	for _, value := range started.Values {
		p.setValue(value, 1)
	}
}

// apply applies an AttributeSet or a ValueSet. It returns the rule that the event breaks, "" if it
// breaks none.
func (p *publishedState) apply(e eventFields) (reason string) {
	if e.eventType == journalpb.TypeAttributeSet {
		var attribute journalpb.AttributeSet
		if proto.Unmarshal(e.body, &attribute) != nil {
			return "AttributeSet does not decode"
		}
		p.setAttribute(&attribute)
		return ""
	}
	var value journalpb.ValueSet
	if proto.Unmarshal(e.body, &value) != nil {
		return "ValueSet does not decode"
	}
	p.setValue(&value, e.id)
	return ""
}

func (p *publishedState) setAttribute(set *journalpb.AttributeSet) {
	if set.Value == nil {
		delete(p.attributes, set.Name)
		return
	}
	if p.attributes == nil {
		p.attributes = make(map[string]string)
	}
	encoded, _ := proto.Marshal(set.Value) // it was decoded, so it encodes
	p.attributes[set.Name] = string(encoded)
}

// attributeMessages returns the attributes, in order of their names.
func (p *publishedState) attributeMessages() (attributes []*journalpb.AttributeSet) {
	if len(p.attributes) == 0 {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(p.attributes)) {
		set := &journalpb.AttributeSet{Name: name, Value: new(journalpb.AttributeValue)}
		_ = proto.Unmarshal([]byte(p.attributes[name]), set.Value) // setAttribute encoded it
		attributes = append(attributes, set)
	}
	return attributes
}

func (p *publishedState) setValue(set *journalpb.ValueSet, eventID uint64) {
	key := valueKey{set.Map, set.Key}
	if set.Value == nil {
		delete(p.values, key)
		return
	}
	if p.values == nil {
		p.values = make(map[valueKey]uint64)
	}
	p.values[key] = eventID
}

// The fields of a value in a header.
const (
	fieldValueMap   = 1
	fieldValueKey   = 2
	fieldValueEvent = 3
)

func (p *publishedState) appendTo(b []byte) []byte {
	for name, value := range p.attributes {
		b = appendPair(b, fieldHeaderAttribute, name, func(b []byte) []byte { return appendText(b, fieldSecond, value) })
	}
	for key, eventID := range p.values {
		b = appendNested(b, fieldHeaderValue, func(b []byte) []byte {
			b = appendText(appendText(b, fieldValueMap, key.kv), fieldValueKey, key.key)
			return appendUint(b, fieldValueEvent, eventID)
		})
	}
	return b
}

func (p *publishedState) addAttribute(b []byte) (ok bool) {
	name, ok := stringField(b, fieldFirst)
	var value []byte
	eachField(b, func(number protowire.Number, wire protowire.Type, field []byte) {
		if number == fieldSecond && wire == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(field)
		}
	})
	if p.attributes == nil {
		p.attributes = make(map[string]string)
	}
	p.attributes[name] = string(value)
	return ok
}

func (p *publishedState) addValue(b []byte) (ok bool) {
	var set journalpb.ValueSet
	var keyOK, eventOK bool
	set.Map, ok = stringField(b, fieldValueMap)
	set.Key, keyOK = stringField(b, fieldValueKey)
	eventID, eventOK := intField(b, fieldValueEvent)
	set.Value = new(journalpb.Payload)
	p.setValue(&set, uint64(eventID))
	return ok && keyOK && eventOK
}

// Values returns the values of a key-value map of an instance, in order of their keys; none for an
// unknown instance. It is a consistent view, unless the ID is purged and reused meanwhile. The
// caller owns the messages.
func (re *reads) Values(id, kv string) ([]*journalpb.ValueSet, error) {
	var execution uint64
	var where map[valueKey]uint64
	if _, err := re.lookup(id, func(in *instance) { execution, where = in.execution, maps.Clone(in.values) }); err != nil {
		return nil, err
	}
	var values []*journalpb.ValueSet
	events := make(map[uint64]*journalpb.Event) // the first event of an execution holds many values
	for _, key := range slices.SortedFunc(maps.Keys(where), valueKey.compare) {
		if key.kv != kv {
			continue
		}
		event := events[where[key]]
		if event == nil {
			var err error
			if event, err = re.Event(id, execution, where[key]); err != nil {
				return nil, err
			}
			events[where[key]] = event
		}
		if value := valueIn(event, key); value != nil { // otherwise the ID was purged and reused meanwhile
			values = append(values, value)
		}
	}
	return values, nil
}

// valueIn returns the value of a key in the event that holds it; nil if the event holds none.
func valueIn(event *journalpb.Event, key valueKey) *journalpb.ValueSet {
	sets := event.GetOrchestrationStarted().GetValues()
	if set := event.GetValueSet(); set != nil {
		sets = []*journalpb.ValueSet{set}
	}
	for _, set := range sets {
		if set.Map == key.kv && set.Key == key.key && set.Value != nil {
			return set
		}
	}
	return nil
}
