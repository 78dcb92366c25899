package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/schedule"
	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/output"
)

var completionCommand = command{"completion", "SHELL", "write a script that completes command lines: bash, zsh or fish", 1, 1, noNames, false, completion, `
bash: source <(tenuto completion bash)
zsh:  source <(tenuto completion zsh), after compinit
fish: tenuto completion fish | source`}

// completeWord begins the lines with which the scripts ask. The last word is to be completed. The
// answer has one candidate per line, followed by a tab and its description.
const completeWord = "__complete"

// Scripts use files if there is no candidate.
var completionScripts = map[string]string{
	"bash": `_tenuto() {
	local cur cword words
	if declare -F _get_comp_words_by_ref >/dev/null; then
		_get_comp_words_by_ref -n =: cur words cword
	else
		cur=${COMP_WORDS[COMP_CWORD]} cword=$COMP_CWORD words=("${COMP_WORDS[@]}")
	fi
	local IFS=$'\n'
	COMPREPLY=($(tenuto __complete "${words[@]:1:cword}" 2>/dev/null | cut -f1))
	if declare -F __ltrim_colon_completions >/dev/null; then
		__ltrim_colon_completions "$cur"
	fi
}
complete -o default -F _tenuto tenuto
`,
	"zsh": `#compdef tenuto
_tenuto() {
	local -a candidates
	local line
	while IFS= read -r line; do
		candidates+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
	done < <(tenuto __complete "${(@)words[2,CURRENT]}" 2>/dev/null)
	if (( ${#candidates} )); then
		_describe tenuto candidates
	else
		_files
	fi
}
compdef _tenuto tenuto
`,
	"fish": `function __tenuto_complete
	set -l words (commandline -opc)
	set -e words[1]
	set -l found (tenuto __complete $words (commandline -ct | string collect --allow-empty) 2>/dev/null)
	if test (count $found) -gt 0
		printf '%s\n' $found
	else
		__fish_complete_path (commandline -ct)
	end
end
complete -c tenuto -f -a '(__tenuto_complete)'
`,
}

func completion(*flag.FlagSet) action {
	return func(_ context.Context, s streams, args []string) error {
		script, ok := completionScripts[args[0]]
		if !ok {
			return &usageError{"the shell must be one of: " + strings.Join(slices.Sorted(maps.Keys(completionScripts)), ", ")}
		}
		_, err := io.WriteString(s.out, script)
		return err
	}
}

// A candidate is a word that may follow, with its description.
type candidate struct{ word, description string }

// completeLine writes the candidates for the last word of a line.
func completeLine(ctx context.Context, s streams, line []string) int {
	if len(line) == 0 {
		return statusUsage
	}
	last := line[len(line)-1]
	for _, c := range candidatesFor(ctx, s, line[:len(line)-1], last) {
		if strings.HasPrefix(c.word, last) {
			fmt.Fprintf(s.out, "%s\t%s\n", output.Line(c.word), output.Line(c.description))
		}
	}
	return statusOK
}

func candidatesFor(ctx context.Context, s streams, before []string, last string) []candidate {
	c, rest := findCommand(before)
	var found []candidate
	// A word of a command may follow, also after one that is a command itself ("history").
	if len(before) < 2 && !strings.HasPrefix(last, "-") && len(rest) == 0 {
		found = commandWords(before)
	}
	if c == nil {
		return found
	}
	flags, _ := c.prepare()
	if len(rest) > 0 {
		if f := valueFlag(flags, rest[len(rest)-1]); f != nil {
			return valuesFor(ctx, s, flags, f, rest, last)
		}
	}
	if strings.HasPrefix(last, "-") {
		dashes := "-"
		if strings.HasPrefix(last, "--") {
			dashes = "--"
		}
		flags.VisitAll(func(f *flag.Flag) {
			_, usage := flag.UnquoteUsage(f)
			found = append(found, candidate{dashes + f.Name, usage})
		})
		return found
	}
	args, _ := parseFlags(flags, rest)
	if c.argsMax >= 0 && len(args) >= c.argsMax {
		return nil
	}
	if c.args != instanceIDs && c.args != fileNames && len(args) > 0 && c.argsMax > 0 {
		return found
	}
	return append(found, namesFor(ctx, s, flags, c.args, last)...)
}

// commandWords returns the words that may follow the first words of a command.
func commandWords(before []string) (found []candidate) {
	seen := make(map[string]bool)
	for _, c := range allCommands() {
		words := strings.Fields(c.name)
		if len(words) <= len(before) || !slices.Equal(words[:len(before)], before) {
			continue
		}
		word, summary := words[len(before)], c.summary
		if len(words) > len(before)+1 {
			summary = word + " commands"
		}
		if !seen[word] {
			seen[word] = true
			found = append(found, candidate{word, summary})
		}
	}
	return found
}

// valueFlag returns the flag whose value must follow a word, nil if none.
func valueFlag(flags *flag.FlagSet, word string) *flag.Flag {
	name := strings.TrimPrefix(strings.TrimPrefix(word, "-"), "-")
	if name == word {
		return nil
	}
	f := flags.Lookup(name)
	if f == nil {
		return nil
	}
	if b, ok := f.Value.(interface{ IsBoolFlag() bool }); ok && b.IsBoolFlag() {
		return nil
	}
	return f
}

// valuesFor returns candidates for the value of a flag.
func valuesFor(ctx context.Context, s streams, flags *flag.FlagSet, f *flag.Flag, rest []string, last string) (found []candidate) {
	if c, ok := f.Value.(*choice); ok {
		for _, word := range c.choices {
			found = append(found, candidate{word, ""})
		}
		return found
	}
	_, _ = parseFlags(flags, rest[:len(rest)-1]) // for the connection
	switch f.Name {
	case "profile":
		return namesFor(ctx, s, flags, profileNames, last)
	case "parent":
		return namesFor(ctx, s, flags, instanceIDs, last)
	}
	return nil
}

// The bounds of what a completion asks the cluster.
const (
	completionTimeout = time.Second
	completionMax     = 50
)

// namesFor returns names of that kind, from the cluster that the flags name. Without an answer
// there are none.
func namesFor(ctx context.Context, s streams, flags *flag.FlagSet, kind argKind, last string) (found []candidate) {
	switch kind {
	case noNames, fileNames:
		return nil
	case profileNames:
		file, err := loadProfiles(s)
		if err != nil {
			return nil
		}
		for _, name := range file.Names() {
			found = append(found, candidate{name, file.Profiles[name]["addr"]})
		}
		return found
	}
	c := connectionFlags(flag.NewFlagSet("", flag.ContinueOnError))
	flags.Visit(func(f *flag.Flag) {
		if isConnectionFlag(f.Name) {
			_ = c.flags.Set(f.Name, f.Value.String())
		}
	})
	s.err = io.Discard
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	session, ctx, err := c.open(ctx, s)
	if err != nil {
		return nil
	}
	defer session.Close()
	switch kind {
	case instanceIDs:
		return session.completeInstances(ctx, cluster.Filter{IDPrefix: last})
	case scheduleIDs:
		page, err := schedule.List(ctx, session.Client, cluster.Filter{IDPrefix: last}, "", completionMax)
		if err == nil {
			for _, listed := range page.Schedules {
				found = append(found, candidate{listed.ID, string(listed.State)})
			}
		}
	case nodeIDs:
		members, _ := session.Members(ctx)
		for _, m := range members {
			found = append(found, candidate{m.NodeID, m.Address})
		}
	}
	return found
}

func (s *session) completeInstances(ctx context.Context, f cluster.Filter) (found []candidate) {
	page, err := s.List(ctx, f, "", completionMax, cluster.Stale())
	if err != nil {
		return nil
	}
	for _, status := range page.Instances {
		found = append(found, candidate{status.InstanceID, status.Name + ", " + string(status.State)})
	}
	return found
}
