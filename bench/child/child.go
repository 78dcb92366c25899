package child

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
)

// Start starts this program with settings, encoded as JSON, in an environment variable. The caller
// reads out, and waits for the command.
func Start(variable string, settings any) (command *exec.Cmd, in io.WriteCloser, out io.Reader, err error) {
	encoded, err := json.Marshal(settings)
	if err != nil {
		return nil, nil, nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, nil, nil, err
	}
	command = exec.Command(program)
	command.Env = append(os.Environ(), variable+"="+string(encoded))
	command.Stderr = os.Stderr
	if in, err = command.StdinPipe(); err != nil {
		return nil, nil, nil, err
	}
	if out, err = command.StdoutPipe(); err != nil {
		return nil, nil, nil, err
	}
	return command, in, out, command.Start()
}
