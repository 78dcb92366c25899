package measure

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// A Machine describes the machine of a measurement. Unknown fields are empty.
type Machine struct {
	CPU        string `json:"cpu"`
	Cores      int    `json:"cores"`
	GOMAXPROCS int    `json:"gomaxprocs"`
	OS         string `json:"os"`
	Kernel     string `json:"kernel"`
	FileSystem string `json:"file_system"` // of the data
	Go         string `json:"go"`
	Commit     string `json:"commit"` // "+" at the end: with local changes
}

// ThisMachine describes this machine, with data in a directory. It reads /proc on Linux.
func ThisMachine(dir string) Machine {
	return Machine{
		CPU:        cpuModel(),
		Cores:      runtime.NumCPU(),
		GOMAXPROCS: runtime.GOMAXPROCS(0),
		OS:         runtime.GOOS + "/" + runtime.GOARCH,
		Kernel:     firstLine("/proc/sys/kernel/osrelease"),
		FileSystem: fileSystem(dir),
		Go:         runtime.Version(),
		Commit:     commit(),
	}
}

func cpuModel() string {
	for fields := range fieldsOf("/proc/cpuinfo", ":") {
		if fields[0] == "model name" && len(fields) > 1 {
			return fields[1]
		}
	}
	return ""
}

// fileSystem returns the type of the file system that contains a directory.
func fileSystem(dir string) string {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return ""
	}
	found, at := "", ""
	for fields := range fieldsOf("/proc/mounts", " ") {
		if len(fields) < 3 || len(fields[1]) < len(at) {
			continue
		}
		if relative, err := filepath.Rel(fields[1], dir); err == nil && filepath.IsLocal(relative) {
			at, found = fields[1], fields[2]
		}
	}
	return found
}

// fieldsOf yields the lines of a file, split into trimmed fields; nothing if the file cannot
// be read.
func fieldsOf(name, separator string) func(yield func([]string) bool) {
	return func(yield func([]string) bool) {
		file, err := os.Open(name)
		if err != nil {
			return
		}
		defer file.Close()
		for lines := bufio.NewScanner(file); lines.Scan(); {
			fields := strings.Split(lines.Text(), separator)
			for i := range fields {
				fields[i] = strings.TrimSpace(fields[i])
			}
			if !yield(fields) {
				return
			}
		}
	}
}

func firstLine(name string) string {
	content, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(content), "\n")
	return line
}

// commit asks git, because a binary of "go run" does not contain the commit.
func commit() string {
	head, err := exec.Command("git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return ""
	}
	changes, err := exec.Command("git", "status", "--porcelain", "--untracked-files=no").Output()
	if err != nil || len(changes) > 0 {
		return strings.TrimSpace(string(head)) + "+"
	}
	return strings.TrimSpace(string(head))
}
