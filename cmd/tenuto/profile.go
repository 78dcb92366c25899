package main

import (
	"context"
	"flag"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/output"
	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/profile"
)

// shownProfile is a profile as -o json shows it.
type shownProfile struct {
	Name    string          `json:"name"`
	Current bool            `json:"current,omitempty"`
	Fields  profile.Profile `json:"fields"`
}

// withProfiles makes an action of a function that needs the file with the profiles.
func withProfiles(do func(s streams, file *profile.File, args []string) error) action {
	return func(_ context.Context, s streams, args []string) error {
		file, err := loadProfiles(s)
		if err != nil {
			return err
		}
		return do(s, file, args)
	}
}

func listProfiles(flags *flag.FlagSet) action {
	d := displayFlags(flags, output.Table, output.JSON, output.YAML, output.IDs)
	return withProfiles(func(s streams, file *profile.File, _ []string) error {
		columns := []output.Column[shownProfile]{
			{Name: "NAME", Cell: func(p shownProfile) string { return output.Cell(p.Name) }},
			{Name: "CURRENT", Cell: func(p shownProfile) string {
				if p.Current {
					return "yes"
				}
				return "-"
			}},
		}
		for _, f := range connectionFlagList {
			columns = append(columns, output.Column[shownProfile]{Name: strings.ToUpper(f.name), Cell: func(p shownProfile) string { return output.Cell(p.Fields[f.name]) }})
		}
		printer := output.NewPrinter(s.out, d.format, columns, func(p shownProfile) string { return p.Name })
		for _, name := range file.Names() {
			if err := printer.Write(shownProfile{name, name == file.Current, file.Profiles[name]}); err != nil {
				return err
			}
		}
		return printer.Flush()
	})
}

func showProfile(flags *flag.FlagSet) action {
	d := displayFlags(flags, output.Table, output.JSON, output.YAML)
	return withProfiles(func(s streams, file *profile.File, args []string) error {
		name := file.Current
		if len(args) > 0 {
			name = args[0]
		}
		if name == "" {
			return &usageError{"no profile is current; see tenuto profile use -h"}
		}
		fields, err := file.Get(name)
		if err != nil {
			return &usageError{err.Error()}
		}
		if !d.isTable() {
			return s.documents(d.format).Write(shownProfile{name, name == file.Current, fields})
		}
		table := output.NewRows(s.out)
		table.Add("name", output.Line(name))
		for _, f := range connectionFlagList {
			if fields[f.name] != "" {
				table.Add(f.name, output.Line(fields[f.name]))
			}
		}
		return table.Flush()
	})
}

func setProfile(flags *flag.FlagSet) action {
	for _, f := range connectionFlagList {
		flags.String(f.name, "", f.usage)
	}
	return withProfiles(func(s streams, file *profile.File, args []string) (err error) {
		name := args[0]
		set := file.Profiles[name]
		if set == nil {
			set = make(profile.Profile)
			file.Profiles[name] = set
		}
		flags.Visit(func(f *flag.Flag) {
			i := slices.IndexFunc(connectionFlagList, func(c connectionFlag) bool { return c.name == f.Name })
			value := f.Value.String()
			switch declared := connectionFlagList[i]; {
			case err != nil:
			case value == "":
				delete(set, f.Name)
				return
			case declared.check != nil:
				if invalid := declared.check(value); invalid != nil {
					err = &usageError{"-" + f.Name + " " + invalid.Error()}
				}
			case declared.isPath:
				value, err = filepath.Abs(value)
			}
			set[f.Name] = value
		})
		if err != nil {
			return err
		}
		if file.Current == "" {
			file.Current = name
			printMessage(s, fmt.Sprintf("%s is now the current profile", name))
		}
		return file.Save()
	})
}

func useProfile(*flag.FlagSet) action {
	return withProfiles(func(_ streams, file *profile.File, args []string) error {
		if _, err := file.Get(args[0]); err != nil {
			return &usageError{err.Error()}
		}
		file.Current = args[0]
		return file.Save()
	})
}

func removeProfile(*flag.FlagSet) action {
	return withProfiles(func(_ streams, file *profile.File, args []string) error {
		if _, err := file.Get(args[0]); err != nil {
			return &usageError{err.Error()}
		}
		delete(file.Profiles, args[0])
		if file.Current == args[0] {
			file.Current = ""
		}
		return file.Save()
	})
}
