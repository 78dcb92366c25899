package discovery

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

// Bounds of a call.
const (
	// AddressesMax bounds the addresses that a call returns.
	AddressesMax = 64
	// Timeout bounds a call.
	Timeout = 5 * time.Second
	// FileBytesMax bounds the size of the file of [File].
	FileBytesMax = 64 << 10
)

// A Func returns the addresses, host:port, at which nodes may be. It may be called concurrently.
// Errors: [*Error] if they cannot be read, [*replay.InvalidError] for an argument that is not
// valid.
type Func = func(ctx context.Context) ([]string, error)

// A Resolver looks up names. [net.Resolver] is one; a nil Resolver stands for net.DefaultResolver.
type Resolver interface {
	LookupHost(ctx context.Context, host string) ([]string, error)
	LookupSRV(ctx context.Context, service, proto, name string) (cname string, records []*net.SRV, err error)
}

// An Error says from where addresses could not be read, and why.
type Error struct {
	Source string // "DNS NAME", "SRV NAME" or "file PATH"
	Err    error
}

func (e *Error) Error() string {
	return fmt.Sprintf("read addresses of nodes: %s: %v", e.Source, e.Err)
}
func (e *Error) Unwrap() error { return e.Err }

// ErrNone: there is no address. In the DNS, the name exists without records or does not exist.
var ErrNone = errors.New("there are no addresses")

// DNS returns the A and AAAA records of a name, each with a port, 1 to 65535. resolver may be nil.
func DNS(name string, port int, resolver Resolver) Func {
	return func(ctx context.Context) ([]string, error) {
		if err := errors.Join(checkName("name", name), checkPort(port)); err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, Timeout)
		defer cancel()
		hosts, err := orDefault(resolver).LookupHost(ctx, name)
		if err != nil {
			return nil, &Error{"DNS " + name, lookupError(err)}
		}
		var addresses []string
		for _, host := range hosts {
			addresses = append(addresses, net.JoinHostPort(host, strconv.Itoa(port)))
		}
		return bounded("DNS "+name, addresses)
	}
}

// SRV returns the targets of the SRV records _service._proto.name, each with its port. proto is
// "tcp" for Tenuto. With service and proto "", the records of name itself are looked up. In
// Kubernetes, service is the name of the port in the Service. resolver may be nil.
func SRV(service, proto, name string, resolver Resolver) Func {
	source := "SRV " + name
	if service != "" {
		source = fmt.Sprintf("SRV _%s._%s.%s", service, proto, name)
	}
	return func(ctx context.Context) ([]string, error) {
		if err := checkName("name", name); err != nil {
			return nil, err
		}
		if (service == "") != (proto == "") {
			return nil, &replay.InvalidError{Field: "service", Reason: "and proto must both be set, or none"}
		}
		ctx, cancel := context.WithTimeout(ctx, Timeout)
		defer cancel()
		_, records, err := orDefault(resolver).LookupSRV(ctx, service, proto, name)
		if err != nil && len(records) == 0 { // err may only say that some records are not valid
			return nil, &Error{source, lookupError(err)}
		}
		var addresses []string
		for _, record := range records {
			addresses = append(addresses, net.JoinHostPort(strings.TrimSuffix(record.Target, "."), strconv.Itoa(int(record.Port))))
		}
		return bounded(source, addresses)
	}
}

// File returns the addresses in a file, host:port, one a line. Empty lines and those that begin
// with "#" are ignored. The file is read at each call, so it may change; write it under another
// name and rename it. It has at most [FileBytesMax] bytes.
func File(path string) Func {
	return func(ctx context.Context) ([]string, error) {
		if err := checkName("path", path); err != nil {
			return nil, err
		}
		source := "file " + path
		if err := ctx.Err(); err != nil {
			return nil, &Error{source, err}
		}
		info, err := os.Stat(path)
		switch {
		case err != nil:
			return nil, &Error{source, err}
		case !info.Mode().IsRegular():
			return nil, &Error{source, errors.New("is not a regular file")}
		case info.Size() > FileBytesMax:
			return nil, &Error{source, fmt.Errorf("has %d bytes: at most %d are allowed", info.Size(), FileBytesMax)}
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, &Error{source, err}
		}
		var addresses []string
		for number, line := range strings.Split(string(content), "\n") {
			line = strings.TrimSpace(line)
			if line == "" || strings.HasPrefix(line, "#") {
				continue
			}
			if _, _, err := net.SplitHostPort(line); err != nil {
				return nil, &Error{source, fmt.Errorf("line %d is not host:port: %w", number+1, err)}
			}
			addresses = append(addresses, line)
		}
		return bounded(source, addresses)
	}
}

// bounded returns at most AddressesMax addresses, sorted, each once, or an error if there are none.
func bounded(source string, addresses []string) ([]string, error) {
	if len(addresses) == 0 {
		return nil, &Error{source, ErrNone}
	}
	slices.Sort(addresses)
	addresses = slices.Compact(addresses)
	return addresses[:min(len(addresses), AddressesMax)], nil
}

// lookupError adds ErrNone to the error of a name that does not exist.
func lookupError(err error) error {
	var lookup *net.DNSError
	if errors.As(err, &lookup) && lookup.IsNotFound {
		return fmt.Errorf("%w: %w", ErrNone, err)
	}
	return err
}

func orDefault(resolver Resolver) Resolver {
	if resolver == nil {
		return net.DefaultResolver
	}
	return resolver
}

// nameMax bounds names and paths, in bytes.
const nameMax = 4096

func checkName(field, value string) error {
	if value == "" || len(value) > nameMax {
		return &replay.InvalidError{Field: field, Reason: fmt.Sprintf("has %d bytes: 1 to %d are allowed", len(value), nameMax)}
	}
	return nil
}

func checkPort(port int) error {
	if port < 1 || port > 65535 {
		return &replay.InvalidError{Field: "port", Reason: fmt.Sprintf("is %d: 1 to 65535 are allowed", port)}
	}
	return nil
}
