package main

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/operate"
	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/profile"
	"github.com/tenuto-dev/tenuto/replay"
)

// A connection holds the flags for calling a cluster. Each is taken from the command line, else
// from its environment variable, else from the profile.
type connection struct {
	flags   *flag.FlagSet
	profile string
	values  map[string]*string // by name of the flag
}

// A connectionFlag is a flag of every command that calls a cluster.
type connectionFlag struct {
	name, usage, byDefault string
	isPath                 bool
	check                  func(value string) error
}

var connectionFlagList = []connectionFlag{
	{name: "addr", usage: "`host:port` of a node, or several separated by commas"},
	{name: "cluster", usage: "`name` of the cluster (default tenuto)"},
	{name: "cert", usage: "`file` with the certificate of this client; without TLS a node is reached on loopback only", isPath: true},
	{name: "key", usage: "`file` with its private key", isPath: true},
	{name: "ca", usage: "`file` with the authorities of the cluster", isPath: true},
	{name: "timeout", usage: "the longest `duration` of a call, retries included", byDefault: "30s", check: checkTimeout},
	{name: "as", usage: "`name` of the user to record as the principal, in addition to that of the certificate"},
}

const defaultTimeout = 30 * time.Second

func checkTimeout(value string) error {
	if d, err := time.ParseDuration(value); err != nil || d <= 0 {
		return fmt.Errorf("is %q: it must be a duration of more than 0, such as 10s", value)
	}
	return nil
}

// variable returns the environment variable of a flag.
func variable(name string) string { return "TENUTO_" + strings.ToUpper(name) }

// addressVariable is the variable of -addr.
const addressVariable = "TENUTO_ADDR"

// isConnectionFlag reports whether connectionFlags declares a flag.
func isConnectionFlag(name string) bool {
	return name == "profile" || slices.ContainsFunc(connectionFlagList, func(f connectionFlag) bool { return f.name == name })
}

// connectionFlags declares the flags of every command that calls a cluster.
func connectionFlags(flags *flag.FlagSet) *connection {
	c := &connection{flags: flags, values: make(map[string]*string)}
	for _, f := range connectionFlagList {
		c.values[f.name] = flags.String(f.name, f.byDefault, f.usage)
	}
	flags.StringVar(&c.profile, "profile", "", "`name` of the profile to take these from; see tenuto profile")
	return c
}

// A session is a connected client, with the limit of time of its calls.
type session struct {
	*cluster.Client
	streams
	timeout time.Duration
}

// limited returns a context for one call.
func (s *session) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, s.timeout)
}

// withSession makes an action of a function that calls a cluster for as long as it likes.
func withSession(flags *flag.FlagSet, do func(ctx context.Context, s *session, args []string) error) action {
	c := connectionFlags(flags)
	return func(ctx context.Context, to streams, args []string) error {
		s, ctx, err := c.open(ctx, to)
		if err != nil {
			return err
		}
		defer s.Close()
		return do(ctx, s, args)
	}
}

// withClient makes an action of a function whose calls together must not take longer than -timeout.
func withClient(flags *flag.FlagSet, do func(ctx context.Context, client *cluster.Client, s streams, args []string) error) action {
	return withSession(flags, func(ctx context.Context, s *session, args []string) error {
		ctx, cancel := s.limited(ctx)
		defer cancel()
		return do(ctx, s.Client, s.streams, args)
	})
}

// open connects, and returns the context for the calls.
func (c *connection) open(ctx context.Context, to streams) (*session, context.Context, error) {
	config, err := c.config(to)
	if err != nil {
		return nil, nil, err
	}
	client, err := cluster.Dial(ctx, config)
	if err != nil {
		return nil, nil, err
	}
	ctx = operate.WithPrincipal(ctx, *c.values["as"])
	if reason := c.flags.Lookup("reason"); reason != nil {
		ctx = operate.WithReason(ctx, reason.Value.String())
	}
	return &session{client, to, config.CallTimeout}, ctx, nil
}

// resolve sets the flags that are not on the command line.
func (c *connection) resolve(to streams) error {
	given := make(map[string]bool)
	c.flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	recorded, err := c.readProfile(to)
	if err != nil {
		return err
	}
	for _, f := range connectionFlagList {
		source, value := "-"+f.name, c.values[f.name]
		switch fromProfile, inProfile := recorded[f.name]; {
		case given[f.name]:
		case to.env(variable(f.name)) != "":
			source, *value = variable(f.name), to.env(variable(f.name))
		case inProfile:
			*value = fromProfile
		}
		if f.check != nil {
			if err := f.check(*value); err != nil {
				return &usageError{source + " " + err.Error()}
			}
		}
	}
	return nil
}

// readProfile returns the profile that -profile, $TENUTO_PROFILE or the file names; nil if there is
// none.
func (c *connection) readProfile(to streams) (profile.Profile, error) {
	name := cmp.Or(c.profile, to.env(variable("profile")))
	if _, err := profilesPath(to); err != nil && name == "" {
		return nil, nil // a user without a directory has no file
	}
	file, err := loadProfiles(to)
	if err != nil {
		return nil, err
	}
	if name = cmp.Or(name, file.Current); name == "" {
		return nil, nil
	}
	recorded, err := file.Get(name)
	if err != nil {
		return nil, &usageError{err.Error()}
	}
	return recorded, nil
}

// loadProfiles reads the file with the profiles.
func loadProfiles(to streams) (*profile.File, error) {
	path, err := profilesPath(to)
	if err != nil {
		return nil, err
	}
	var fields []profile.Field
	for _, f := range connectionFlagList {
		fields = append(fields, profile.Field{Name: f.name, IsPath: f.isPath, Check: f.check})
	}
	file, err := profile.Load(path, fields)
	var invalid *profile.Error
	if errors.As(err, &invalid) {
		return nil, &usageError{err.Error()}
	}
	return file, err
}

// profilesPath returns the path of the file with the profiles.
func profilesPath(to streams) (string, error) {
	if path := to.env("TENUTO_CONFIG"); path != "" {
		return path, nil
	}
	dir := to.env("XDG_CONFIG_HOME")
	if dir == "" {
		var err error
		if dir, err = os.UserConfigDir(); err != nil {
			return "", fmt.Errorf("%w; name a file by TENUTO_CONFIG", err)
		}
	}
	return filepath.Join(dir, "tenuto", "config.json"), nil
}

func (c *connection) config(to streams) (cluster.DialConfig, error) {
	var config cluster.DialConfig
	if err := c.resolve(to); err != nil {
		return config, err
	}
	timeout, err := time.ParseDuration(*c.values["timeout"])
	if err != nil {
		return config, err
	}
	config = cluster.DialConfig{
		ClusterID:        *c.values["cluster"],
		CallTimeout:      timeout,
		PayloadConverter: replay.PayloadConverter{Codec: foreignCodec{}},
		Logger:           slog.New(slog.NewTextHandler(to.err, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	if *c.values["addr"] == "" {
		return config, &usageError{"name a node of the cluster: -addr host:port, " + addressVariable + " or a profile"}
	}
	for address := range strings.SplitSeq(*c.values["addr"], ",") {
		config.Addresses = append(config.Addresses, strings.TrimSpace(address))
	}
	certificate, key, authorities := *c.values["cert"], *c.values["key"], *c.values["ca"]
	switch {
	case certificate == "" && key == "" && authorities == "":
	case certificate == "" || key == "" || authorities == "":
		return config, &usageError{"-cert, -key and -ca belong together"}
	default:
		config.TLS = cluster.KeyFiles(certificate, key, authorities)
	}
	return config, nil
}

// A foreignCodec shows payloads that the codec of the cluster has encoded as what they are, and
// encodes none: nodes read payloads that are not encoded, whatever their codec.
type foreignCodec struct{}

// An encodedPayload is a payload that only the codec of the cluster can read.
type encodedPayload struct {
	Data        []byte `json:"data"` // in base64
	ContentType string `json:"contentType"`
}

func (foreignCodec) Encode(data []byte) ([]byte, string, error) { return data, "", nil }

func (foreignCodec) Decode(encoded []byte, contentType string) ([]byte, error) {
	return json.Marshal(encodedPayload{encoded, contentType})
}

// describeEncoded returns a text for a payload of foreignCodec, "" for others.
func describeEncoded(payload json.RawMessage) string {
	var e struct {
		Data        *string `json:"data"`
		ContentType string  `json:"contentType"`
	}
	if unmarshalStrict(string(payload), &e) != nil || e.Data == nil || e.ContentType == "" {
		return ""
	}
	data, err := base64.StdEncoding.DecodeString(*e.Data)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("(%d bytes of %s)", len(data), e.ContentType)
}

// staleFlag declares the -stale flag of commands that read.
func staleFlag(flags *flag.FlagSet) func() []replay.Option {
	stale := flags.Bool("stale", false, "read from any node, without the leader; may be out of date")
	return func() []replay.Option {
		if *stale {
			return []replay.Option{cluster.Stale()}
		}
		return nil
	}
}
