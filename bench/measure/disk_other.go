//go:build !linux

package measure

import (
	"errors"
	"os"
)

func dropCached(*os.File) error { return errors.ErrUnsupported }
