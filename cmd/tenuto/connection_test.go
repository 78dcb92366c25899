package main

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A value is that of the flag, else of the variable, else of the profile, else the default.
func TestConnection_Precedence(t *testing.T) {
	config := filepath.Join(t.TempDir(), "config.json")
	text := `{"current":"a","profiles":{"a":{"addr":"profile:1","timeout":"3s","ca":"ca.crt"},"b":{"addr":"other:1"}}}`
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	relative := filepath.Join(filepath.Dir(config), "ca.crt")
	for _, c := range []struct {
		name string
		env  map[string]string
		line string
		want string // addr timeout ca cluster
	}{
		{"profile and default", nil, "", "profile:1 3s " + relative + " "},
		{"variable before profile", map[string]string{"TENUTO_ADDR": "env:1"}, "", "env:1 3s " + relative + " "},
		{"flag before variable", map[string]string{"TENUTO_ADDR": "env:1", "TENUTO_TIMEOUT": "5s"}, "-addr flag:1", "flag:1 5s " + relative + " "},
		{"flag with its default before variable", map[string]string{"TENUTO_TIMEOUT": "5s"}, "-timeout 30s", "profile:1 30s " + relative + " "},
		{"flag without a value before profile", nil, "-ca=", "profile:1 3s  "},
		{"other variables", map[string]string{"TENUTO_CA": "/x.crt", "TENUTO_CLUSTER": "shop"}, "", "profile:1 3s /x.crt shop"},
		{"profile by variable", map[string]string{"TENUTO_PROFILE": "b"}, "", "other:1 30s  "},
		{"profile by flag", map[string]string{"TENUTO_PROFILE": "a"}, "-profile b", "other:1 30s  "},
		{"no file", map[string]string{"TENUTO_CONFIG": "/nowhere/config.json"}, "", " 30s  "},
	} {
		t.Run(c.name, func(t *testing.T) {
			flags := flag.NewFlagSet("", flag.ContinueOnError)
			connection := connectionFlags(flags)
			if err := flags.Parse(strings.Fields(c.line)); err != nil {
				t.Fatal(err)
			}
			env := func(name string) string {
				if value, ok := c.env[name]; ok || name != "TENUTO_CONFIG" {
					return value
				}
				return config
			}
			if err := connection.resolve(streams{env: env}); err != nil {
				t.Fatal(err)
			}
			v := connection.values
			if got := strings.Join([]string{*v["addr"], *v["timeout"], *v["ca"], *v["cluster"]}, " "); got != c.want {
				t.Errorf("%q; want %q", got, c.want)
			}
		})
	}
}

func TestConnection_PathOfProfiles(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		want string
	}{
		{map[string]string{"TENUTO_CONFIG": "/etc/t.json", "XDG_CONFIG_HOME": "/xdg"}, "/etc/t.json"},
		{map[string]string{"XDG_CONFIG_HOME": "/xdg"}, "/xdg/tenuto/config.json"},
	} {
		got, err := profilesPath(streams{env: func(name string) string { return c.env[name] }})
		if err != nil || filepath.ToSlash(got) != c.want {
			t.Errorf("%v: %q, %v; want %q", c.env, got, err, c.want)
		}
	}
}

func TestConnection_RejectsInvalidProfiles(t *testing.T) {
	config := filepath.Join(t.TempDir(), "config.json")
	for _, c := range []struct{ name, text, want string }{
		{"syntax", "{\n  \"profiles\": {\n    \"a\": {\"addr\": \"x:1\",}\n  }\n}", `:3: profiles.a is not JSON: `},
		{"cut", "{\n \"profiles\": {", ":2: profiles is not JSON: the file ends too early"},
		{"unknown field", "{\n \"profiles\": {\n  \"a\": {\n   \"addr\": \"x:1\",\n   \"adress\": \"x\"}}}", `:5: profiles.a.adress is unknown: the fields are addr, cluster, cert, key, ca, timeout, as`},
		{"unknown part", "{\"profile\": {}}", ":1: profile is unknown: the fields are current and profiles"},
		{"type", "{\"profiles\": {\"a\":\n{\"timeout\": 30}}}", ":2: profiles.a.timeout must be a text in quotes"},
		{"value", "{\"profiles\": {\"a\": {\n\n\"timeout\": \"30\"}}}", `:3: profiles.a.timeout is "30": it must be a duration`},
		{"list", "[]", ":1: must be an object"},
		{"current", "{\n\"profiles\": {},\n\"current\": \"a\"}", `:3: current names "a", which is no profile`},
		{"more", "{}\n{}", ":2: something follows the end of the object"},
		{"twice", "{\"profiles\": {\"a\": {},\n\"a\": {}}}", ":2: profiles.a is there twice"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := os.WriteFile(config, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			for _, line := range []string{"list", "profile list"} {
				o := runAlone(t, map[string]string{"TENUTO_CONFIG": config}, strings.Fields(line)...)
				o.expect(t, statusUsage, config+c.want)
			}
		})
	}
}

func TestProfiles_AreKept(t *testing.T) {
	env := map[string]string{"XDG_CONFIG_HOME": t.TempDir()}
	profile := func(line string) outcome {
		return runAlone(t, env, append([]string{"profile"}, strings.Fields(line)...)...)
	}
	profile("show").expect(t, statusUsage, "no profile is current")
	profile("set a -addr x:1 -timeout 0s").expect(t, statusUsage, `-timeout is "0s"`)
	profile("set a -addr x:1 -ca ca.crt").expect(t, statusOK, "a is now the current profile")
	profile("set b -addr y:1").expect(t, statusOK)
	profile("list -o ids").expect(t, statusOK, "a\nb\n")
	profile("use c").expect(t, statusUsage, `no profile "c"`)
	profile("use b").expect(t, statusOK)
	profile("show -json").expect(t, statusOK, `{"name":"b","current":true,"fields":{"addr":"y:1"}}`)
	absolute, err := filepath.Abs("ca.crt")
	if err != nil {
		t.Fatal(err)
	}
	profile("show a").expect(t, statusOK, "ca    "+absolute+"\n")
	profile("remove b").expect(t, statusOK)
	profile("remove b").expect(t, statusUsage, `no profile "b"`)
	info, err := os.Stat(filepath.Join(env["XDG_CONFIG_HOME"], "tenuto", "config.json"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}
