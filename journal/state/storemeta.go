package state

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tenuto-dev/tenuto/journal/state/store"
)

// storeFormat is the version of every key and value that the package comment describes. It is
// stored in the meta record.
const storeFormat = 1

// storeMeta is the meta record of the store.
type storeMeta struct {
	index      uint64 // of the last entry whose records are in the store
	term       uint64 // of that entry
	epoch      uint64
	metadata   metadata
	lastNumber uint64 // the last number given to an instance
}

// The fields of the meta record.
const (
	fieldStoreFormat     = 1
	fieldStoreIndex      = 2
	fieldStoreTerm       = 3
	fieldStoreEpoch      = 4
	fieldStoreLastNumber = 5
	fieldStoreMetadata   = 6
)

func (m *storeMeta) appendTo(b []byte) []byte {
	b = appendUint(b, fieldStoreFormat, storeFormat)
	b = appendUint(b, fieldStoreIndex, m.index)
	b = appendUint(b, fieldStoreTerm, m.term)
	b = appendUint(b, fieldStoreEpoch, m.epoch)
	b = appendUint(b, fieldStoreLastNumber, m.lastNumber)
	b = protowire.AppendTag(b, fieldStoreMetadata, protowire.BytesType)
	return protowire.AppendBytes(b, m.metadata.encode())
}

// parse decodes the meta record, or returns a *FormatError.
func (m *storeMeta) parse(record []byte) error {
	format, metadataErr := uint64(0), error(nil)
	ok := eachField(record, func(number protowire.Number, wire protowire.Type, value []byte) {
		v, _ := protowire.ConsumeVarint(value)
		switch {
		case number == fieldStoreMetadata && wire == protowire.BytesType:
			encoded, _ := protowire.ConsumeBytes(value)
			m.metadata, metadataErr = parseMetadata(encoded)
		case wire != protowire.VarintType:
		case number == fieldStoreFormat:
			format = v
		case number == fieldStoreIndex:
			m.index = v
		case number == fieldStoreTerm:
			m.term = v
		case number == fieldStoreEpoch:
			m.epoch = v
		case number == fieldStoreLastNumber:
			m.lastNumber = v
		}
	})
	if !ok || metadataErr != nil {
		return fmt.Errorf("decode meta record: %w", ErrCorrupt)
	}
	if format != storeFormat {
		return &FormatError{Format: format}
	}
	return nil
}

// readStoreMeta reads the meta record; it is zero for a new store.
func readStoreMeta(from store.Reader) (m storeMeta, err error) {
	record, err := getRecord(from, []byte{keyMeta})
	if err != nil || record == nil {
		return m, err
	}
	return m, m.parse(record)
}
