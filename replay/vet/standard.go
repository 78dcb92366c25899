package vet

import (
	"go/types"
	"regexp"
	"strings"
)

// A verdict judges the functions and variables of a package: by "Name" or
// "Type.Method", else by "*" or "Type.*". A nil rule acquits.
type verdict map[string]*rule

// verdicts stand for the bodies of the standard library and of some other
// modules, which are not looked into.
var verdicts = map[string]verdict{
	"time": {
		"Now": clock, "Since": clock, "Until": clock,
		"Sleep": pause, "After": pause, "AfterFunc": pause, "Tick": pause, "NewTimer": pause, "NewTicker": pause,
		"Local": zone, "Time.Local": zone,
	},
	"math/rand":    {"*": random, "New": nil, "NewSource": nil, "NewZipf": nil, "Rand.*": ordered},
	"math/rand/v2": {"*": random, "New": nil, "NewPCG": nil, "NewChaCha8": nil, "NewZipf": nil, "Rand.*": ordered},
	"crypto/rand":  {"*": random},
	"hash/maphash": {"MakeSeed": random, "Comparable": nil},

	"sync": {"*": lock, "Mutex.*": lock, "Mutex.Unlock": nil, "RWMutex.*": lock, "RWMutex.Unlock": nil, "RWMutex.RUnlock": nil,
		"Locker.*": lock, "Locker.Unlock": nil, "Map.*": lock, "Once.*": lock, "Pool.*": lock, "Cond.*": lock, "Cond.Wait": wait,
		"WaitGroup.*": lock, "WaitGroup.Done": nil, "WaitGroup.Wait": wait, "WaitGroup.Go": goroutine},
	"sync/atomic": {"*": lock, "Bool.*": lock, "Int32.*": lock, "Int64.*": lock, "Pointer.*": lock, "Uint32.*": lock,
		"Uint64.*": lock, "Uintptr.*": lock, "Value.*": lock},
	"golang.org/x/sync/errgroup":     {"WithContext": foreign, "Group.Go": goroutine, "Group.TryGo": goroutine, "Group.Wait": wait},
	"golang.org/x/sync/semaphore":    {"*": lock, "Weighted.*": lock, "Weighted.Acquire": wait},
	"golang.org/x/sync/singleflight": {"Group.*": wait},

	"context": {"*": foreign, "Cause": nil, "Canceled": nil, "DeadlineExceeded": nil},

	"os": {"*": outside,
		"Getenv": machine, "LookupEnv": machine, "Environ": machine, "ExpandEnv": machine, "Setenv": machine, "Unsetenv": machine,
		"Clearenv": machine, "Hostname": machine, "Getwd": machine, "Args": machine, "Executable": machine, "Getpid": machine,
		"Getppid": machine, "Getuid": machine, "Geteuid": machine, "Getgid": machine, "Getegid": machine, "Getpagesize": machine,
		"TempDir": machine, "UserHomeDir": machine, "UserCacheDir": machine, "UserConfigDir": machine,
		"Exit": exit, "Stdout": printing, "Stderr": printing,
		"Expand": nil, "IsExist": nil, "IsNotExist": nil, "IsPermission": nil, "IsTimeout": nil, "IsPathSeparator": nil,
		"NewSyscallError": nil, "SameFile": nil, "DevNull": nil, "Interrupt": nil, "Kill": nil,
		"ErrInvalid": nil, "ErrPermission": nil, "ErrExist": nil, "ErrNotExist": nil, "ErrClosed": nil,
		"ErrNoDeadline": nil, "ErrDeadlineExceeded": nil, "ErrProcessDone": nil,
		"File.*": outside, "File.Name": nil, "Root.*": outside, "Process.*": outside},
	"os/exec":       {"LookPath": outside, "Cmd.Run": outside, "Cmd.Start": outside, "Cmd.Wait": outside, "Cmd.Output": outside, "Cmd.CombinedOutput": outside},
	"os/signal":     {"*": channel},
	"os/user":       {"*": machine},
	"io/ioutil":     {"*": outside, "ReadAll": nil, "NopCloser": nil, "Discard": nil},
	"path/filepath": {"Walk": outside, "WalkDir": outside, "Glob": outside, "EvalSymlinks": outside, "Abs": machine},
	"syscall":       {"*": outside, "Errno.*": nil},
	"runtime": {"NumCPU": machine, "GOMAXPROCS": machine, "NumGoroutine": machine, "ReadMemStats": machine,
		"Goexit": exit, "LockOSThread": exit, "Gosched": wait},

	"net": {"Dial": outside, "DialTimeout": outside, "DialTCP": outside, "DialUDP": outside, "DialUnix": outside, "DialIP": outside,
		"Listen": outside, "ListenPacket": outside, "ListenTCP": outside, "ListenUDP": outside, "ListenUnix": outside,
		"LookupAddr": outside, "LookupCNAME": outside, "LookupHost": outside, "LookupIP": outside, "LookupMX": outside,
		"LookupNS": outside, "LookupPort": outside, "LookupSRV": outside, "LookupTXT": outside,
		"ResolveIPAddr": outside, "ResolveTCPAddr": outside, "ResolveUDPAddr": outside,
		"Interfaces": machine, "InterfaceAddrs": machine, "InterfaceByName": machine,
		"Dialer.*": outside, "Resolver.*": outside, "Conn.*": outside, "PacketConn.*": outside, "Listener.*": outside,
		"TCPConn.*": outside, "UDPConn.*": outside, "UnixConn.*": outside},
	"net/http": {"Get": outside, "Head": outside, "Post": outside, "PostForm": outside, "ListenAndServe": outside,
		"ListenAndServeTLS": outside, "Serve": outside, "ServeTLS": outside, "DefaultClient": outside,
		"Client.*": outside, "Transport.*": outside, "RoundTripper.*": outside, "Server.*": outside},
	"net/rpc":  {"Dial": outside, "DialHTTP": outside, "DialHTTPPath": outside, "Client.*": outside},
	"net/smtp": {"Dial": outside, "SendMail": outside, "Client.*": outside},
	"database/sql": {"Open": outside, "OpenDB": outside, "DB.*": outside, "Conn.*": outside, "Tx.*": outside, "Stmt.*": outside,
		"Row.*": outside, "Rows.*": outside},

	"fmt": {"Print": printing, "Printf": printing, "Println": printing, "Scan": outside, "Scanf": outside, "Scanln": outside},
	"log": {"Print": printing, "Printf": printing, "Println": printing, "Output": printing,
		"Fatal": exit, "Fatalf": exit, "Fatalln": exit},
	"log/slog": {"Debug": printing, "Info": printing, "Warn": printing, "Error": printing, "Log": printing, "LogAttrs": printing,
		"DebugContext": printing, "InfoContext": printing, "WarnContext": printing, "ErrorContext": printing},

	"github.com/google/uuid": {"New": random, "NewString": random, "NewRandom": random, "NewUUID": random, "NewV6": random,
		"NewV7": random, "NewDCEGroup": random, "NewDCEPerson": random, "NewDCESecurity": random},
	"github.com/gofrs/uuid":             {"NewV1": random, "NewV4": random, "NewV6": random, "NewV7": random},
	"github.com/satori/go.uuid":         {"NewV1": random, "NewV2": random, "NewV4": random},
	"github.com/hashicorp/go-uuid":      {"GenerateUUID": random, "GenerateRandomBytes": random},
	"github.com/rs/xid":                 {"New": random},
	"github.com/segmentio/ksuid":        {"New": random, "NewRandom": random},
	"github.com/oklog/ulid":             {"Make": random, "Now": clock, "DefaultEntropy": random},
	"github.com/lithammer/shortuuid":    {"New": random},
	"github.com/matoous/go-nanoid":      {"New": random, "Must": random, "Generate": random, "MustGenerate": random, "Nanoid": random},
	"github.com/teris-io/shortid":       {"Generate": random, "MustGenerate": random},
	"github.com/nrednav/cuid2":          {"Generate": random},
	"github.com/jaevor/go-nanoid":       {"Standard": random},
	"golang.org/x/exp/rand":             {"*": random, "New": nil, "NewSource": nil, "NewZipf": nil, "Rand.*": ordered},
	"github.com/benbjohnson/clock":      {"New": clock, "Clock.Now": clock},
	"k8s.io/apimachinery/pkg/util/uuid": {"NewUUID": random},
}

// judge returns the rule that a use of obj breaks, by the verdicts alone.
func judge(obj types.Object) *rule {
	if obj.Pkg() == nil {
		return nil
	}
	found, known := verdicts[unversioned(obj.Pkg().Path())]
	if !known {
		return nil
	}
	name, rest := obj.Name(), "*"
	switch obj := obj.(type) {
	case *types.Func:
		if receiver := receiverName(obj); receiver != "" {
			name, rest = receiver+"."+name, receiver+".*"
		}
	case *types.Var:
		if obj.IsField() {
			return nil
		}
	default: // types and constants are harmless
		return nil
	}
	if r, exact := found[name]; exact {
		return r
	}
	return found[rest]
}

var majorVersion = regexp.MustCompile(`/v[0-9]+$`)

// unversioned cuts the major version off the path of a module, and leaves that
// of a standard package.
func unversioned(path string) string {
	if _, known := verdicts[path]; known {
		return path
	}
	return majorVersion.ReplaceAllString(path, "")
}

// receiverName returns the name of the type that fn is a method of, "" if none.
func receiverName(fn *types.Func) string {
	receiver := fn.Signature().Recv()
	if receiver == nil {
		return ""
	}
	t := types.Unalias(receiver.Type())
	if pointer, ok := t.(*types.Pointer); ok {
		t = types.Unalias(pointer.Elem())
	}
	if named, ok := t.(*types.Named); ok {
		return named.Obj().Name()
	}
	return ""
}

// topOfStandard are the first elements of the standard library's paths.
var topOfStandard = strings.Fields(`archive bufio builtin bytes cmd cmp compress container context crypto database debug embed
	encoding errors expvar flag fmt go hash html image index internal io iter log maps math mime net os path plugin reflect
	regexp runtime simd slices sort strconv strings structs sync syscall testing text time unicode unique unsafe vendor weak`)
