package state

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tenuto-dev/tenuto/journal/state/store"
)

// storeFormat is the number in the meta record: the version of every key and
// value that the package comment describes.
const storeFormat = 1

// meta is what the store says of itself.
type meta struct {
	index   uint64 // of the last entry whose records are in the store
	term    uint64 // of that entry
	epoch   uint64
	group   group
	numbers uint64 // that have been given to instances
}

// The fields of the meta record.
const (
	fieldMetaFormat  = 1
	fieldMetaIndex   = 2
	fieldMetaTerm    = 3
	fieldMetaEpoch   = 4
	fieldMetaNumbers = 5
	fieldMetaGroup   = 6
)

func (m *meta) appendTo(b []byte) []byte {
	b = appendUint(b, fieldMetaFormat, storeFormat)
	b = appendUint(b, fieldMetaIndex, m.index)
	b = appendUint(b, fieldMetaTerm, m.term)
	b = appendUint(b, fieldMetaEpoch, m.epoch)
	b = appendUint(b, fieldMetaNumbers, m.numbers)
	b = protowire.AppendTag(b, fieldMetaGroup, protowire.BytesType)
	return protowire.AppendBytes(b, m.group.encode())
}

// parse reads the meta record, or returns a *FormatError.
func (m *meta) parse(record []byte) error {
	format, groupErr := uint64(0), error(nil)
	ok := each(record, func(number protowire.Number, wire protowire.Type, value []byte) {
		v, _ := protowire.ConsumeVarint(value)
		switch {
		case number == fieldMetaGroup && wire == protowire.BytesType:
			encoded, _ := protowire.ConsumeBytes(value)
			m.group, groupErr = parseGroup(encoded)
		case wire != protowire.VarintType:
		case number == fieldMetaFormat:
			format = v
		case number == fieldMetaIndex:
			m.index = v
		case number == fieldMetaTerm:
			m.term = v
		case number == fieldMetaEpoch:
			m.epoch = v
		case number == fieldMetaNumbers:
			m.numbers = v
		}
	})
	if !ok || groupErr != nil {
		return fmt.Errorf("the meta record: %w", ErrCorrupt)
	}
	if format != storeFormat {
		return &FormatError{Format: format}
	}
	return nil
}

// readMeta reads the meta record; that of a new store is empty.
func readMeta(from store.Reader) (m meta, err error) {
	record, err := get(from, []byte{keyMeta})
	if err != nil || record == nil {
		return m, err
	}
	return m, m.parse(record)
}
