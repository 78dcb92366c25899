package diskfile

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"
)

const (
	// SectorSize is the size of a sector, which ends with the CRC-32C of the bytes before it.
	// SectorContent is the number of those bytes.
	SectorSize    = 512
	SectorContent = SectorSize - crc32.Size
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// IsValidSector reports whether the checksum of a sector matches.
func IsValidSector(sector []byte) bool {
	return crc32.Checksum(sector[:SectorContent], castagnoli) == binary.BigEndian.Uint32(sector[SectorContent:])
}

// SetSectorChecksum sets the checksum of a sector, and returns the sector.
func SetSectorChecksum(sector []byte) []byte {
	binary.BigEndian.PutUint32(sector[SectorContent:], crc32.Checksum(sector[:SectorContent], castagnoli))
	return sector
}

// OverwriteSynced writes a sector in place.
func OverwriteSynced(path string, sector []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(sector, 0)
	return errors.Join(err, f.Sync(), f.Close())
}
