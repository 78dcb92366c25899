package browser

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAxe_IsThePinnedPackage(t *testing.T) {
	sources, err := os.ReadFile("axe/SOURCES")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(sources)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		if len(fields) != 4 {
			t.Fatalf("%q has not four fields", line)
		}
		content, err := os.ReadFile(filepath.Join("axe", fields[0]))
		if err != nil {
			t.Fatal(err)
		}
		if sum := fmt.Sprintf("%x", sha256.Sum256(content)); sum != fields[3] {
			t.Errorf("%s has the checksum %s", fields[0], sum)
		}
	}
}
