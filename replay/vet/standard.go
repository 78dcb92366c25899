package vet

import (
	"go/types"
	"regexp"
	"strings"
)

// packageRules maps functions and variables of a package to rules, by "Name" or "Type.Method". "*"
// and "Type.*" hold for those without an entry. A nil rule allows the use.
type packageRules map[string]*rule

const (
	clusterPath  = "github.com/tenuto-dev/tenuto/cluster"
	operatePath  = clusterPath + "/operate"
	proofPath    = clusterPath + "/proof"
	schedulePath = clusterPath + "/schedule"
	bulkPath     = clusterPath + "/bulk"
)

// standardRules holds the rules for the standard library, package cluster and some other modules,
// which are not analyzed.
var standardRules = map[string]packageRules{
	"time": {
		"Now": clock, "Since": clock, "Until": clock,
		"Sleep": sleep, "After": sleep, "AfterFunc": sleep, "Tick": sleep, "NewTimer": sleep, "NewTicker": sleep,
		"Local": zone, "Time.Local": zone, "LoadLocation": zone,
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
	"golang.org/x/sync/errgroup":     {"WithContext": goContext, "Group.Go": goroutine, "Group.TryGo": goroutine, "Group.Wait": wait},
	"golang.org/x/sync/semaphore":    {"*": lock, "Weighted.*": lock, "Weighted.Acquire": wait},
	"golang.org/x/sync/singleflight": {"Group.*": wait},

	"context": {"*": goContext, "Cause": nil, "Canceled": nil, "DeadlineExceeded": nil},

	"os": {"*": externalIO,
		"Getenv": environment, "LookupEnv": environment, "Environ": environment, "ExpandEnv": environment, "Setenv": environment, "Unsetenv": environment,
		"Clearenv": environment, "Hostname": environment, "Getwd": environment, "Args": environment, "Executable": environment, "Getpid": environment,
		"Getppid": environment, "Getuid": environment, "Geteuid": environment, "Getgid": environment, "Getegid": environment, "Getpagesize": environment,
		"TempDir": environment, "UserHomeDir": environment, "UserCacheDir": environment, "UserConfigDir": environment,
		"Exit": exit, "Stdout": printing, "Stderr": printing,
		"Expand": nil, "IsExist": nil, "IsNotExist": nil, "IsPermission": nil, "IsTimeout": nil, "IsPathSeparator": nil,
		"NewSyscallError": nil, "SameFile": nil, "DevNull": nil, "Interrupt": nil, "Kill": nil,
		"ErrInvalid": nil, "ErrPermission": nil, "ErrExist": nil, "ErrNotExist": nil, "ErrClosed": nil,
		"ErrNoDeadline": nil, "ErrDeadlineExceeded": nil, "ErrProcessDone": nil,
		"File.*": externalIO, "File.Name": nil, "Root.*": externalIO, "Process.*": externalIO},
	"os/exec":       {"LookPath": externalIO, "Cmd.Run": externalIO, "Cmd.Start": externalIO, "Cmd.Wait": externalIO, "Cmd.Output": externalIO, "Cmd.CombinedOutput": externalIO},
	"os/signal":     {"*": channel},
	"os/user":       {"*": environment},
	"io/ioutil":     {"*": externalIO, "ReadAll": nil, "NopCloser": nil, "Discard": nil},
	"path/filepath": {"Walk": externalIO, "WalkDir": externalIO, "Glob": externalIO, "EvalSymlinks": externalIO, "Abs": environment},
	"syscall":       {"*": externalIO, "Errno.*": nil},
	"runtime": {"NumCPU": environment, "GOMAXPROCS": environment, "NumGoroutine": environment, "ReadMemStats": environment,
		"Goexit": exit, "LockOSThread": exit, "Gosched": wait},

	"net": {"Dial": externalIO, "DialTimeout": externalIO, "DialTCP": externalIO, "DialUDP": externalIO, "DialUnix": externalIO, "DialIP": externalIO,
		"Listen": externalIO, "ListenPacket": externalIO, "ListenTCP": externalIO, "ListenUDP": externalIO, "ListenUnix": externalIO,
		"LookupAddr": externalIO, "LookupCNAME": externalIO, "LookupHost": externalIO, "LookupIP": externalIO, "LookupMX": externalIO,
		"LookupNS": externalIO, "LookupPort": externalIO, "LookupSRV": externalIO, "LookupTXT": externalIO,
		"ResolveIPAddr": externalIO, "ResolveTCPAddr": externalIO, "ResolveUDPAddr": externalIO,
		"Interfaces": environment, "InterfaceAddrs": environment, "InterfaceByName": environment,
		"Dialer.*": externalIO, "Resolver.*": externalIO, "Conn.*": externalIO, "PacketConn.*": externalIO, "Listener.*": externalIO,
		"TCPConn.*": externalIO, "UDPConn.*": externalIO, "UnixConn.*": externalIO},
	"net/http": {"Get": externalIO, "Head": externalIO, "Post": externalIO, "PostForm": externalIO, "ListenAndServe": externalIO,
		"ListenAndServeTLS": externalIO, "Serve": externalIO, "ServeTLS": externalIO, "DefaultClient": externalIO,
		"Client.*": externalIO, "Transport.*": externalIO, "RoundTripper.*": externalIO, "Server.*": externalIO},
	"net/rpc":  {"Dial": externalIO, "DialHTTP": externalIO, "DialHTTPPath": externalIO, "Client.*": externalIO},
	"net/smtp": {"Dial": externalIO, "SendMail": externalIO, "Client.*": externalIO},
	"database/sql": {"Open": externalIO, "OpenDB": externalIO, "DB.*": externalIO, "Conn.*": externalIO, "Tx.*": externalIO, "Stmt.*": externalIO,
		"Row.*": externalIO, "Rows.*": externalIO},

	// The options of package cluster, its errors and the answers of a Client are harmless.
	clusterPath: {"Call": clusterCall, "CallUpdate": clusterCall, "CompleteActivity": clusterCall, "Dial": clusterCall, "FailActivity": clusterCall,
		"Query": clusterCall, "ReadKV": clusterCall, "Send": clusterCall, "SendOrStart": clusterCall, "Start": clusterCall, "StartRun": clusterCall, "UpdateOrStart": clusterCall,
		"Client.*": clusterCall, "Node.*": clusterCall, "Run.*": clusterCall},
	schedulePath: {"Backfill": clusterCall, "Create": clusterCall, "Delete": clusterCall, "Describe": clusterCall, "List": clusterCall, "Pause": clusterCall,
		"Replace": clusterCall, "Resume": clusterCall, "Trigger": clusterCall, "Update": clusterCall, "Times": zone},
	bulkPath: {"DryRun": clusterCall, "Get": clusterCall, "List": clusterCall, "Pause": clusterCall, "Refusals": clusterCall, "Resume": clusterCall,
		"Start": clusterCall, "Stop": clusterCall},
	proofPath: {"Key": clusterCall, "Prove": clusterCall},
	operatePath: {"AcceptReplica": clusterCall, "Verify": clusterCall, "Adjust": clusterCall, "Audit": clusterCall, "Complete": clusterCall, "Drain": clusterCall, "Fail": clusterCall, "Finalize": clusterCall, "GetProtocols": clusterCall, "FireNow": clusterCall, "Fork": clusterCall,
		"Hold": clusterCall, "PauseActivity": clusterCall, "Pauses": clusterCall, "PlanDrain": clusterCall, "Release": clusterCall,
		"Lineages": clusterCall, "Rerun": clusterCall, "ResumeActivity": clusterCall, "RetryNow": clusterCall, "Rewind": clusterCall, "SetRole": clusterCall, "TransferLeadership": clusterCall, "Workers": clusterCall},

	"fmt": {"Print": printing, "Printf": printing, "Println": printing, "Scan": externalIO, "Scanf": externalIO, "Scanln": externalIO},
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

// ruleFor returns the rule in standardRules that a use of obj breaks.
func ruleFor(obj types.Object) *rule {
	if obj.Pkg() == nil {
		return nil
	}
	found, known := standardRules[unversioned(obj.Pkg().Path())]
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

// unversioned removes the major version from a module path, but not from a standard package.
func unversioned(path string) string {
	if _, known := standardRules[path]; known {
		return path
	}
	return majorVersion.ReplaceAllString(path, "")
}

// receiverName returns the name of the type of which fn is a method, or "".
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

// standardTopLevel are the first path elements of the standard library.
var standardTopLevel = strings.Fields(`archive bufio builtin bytes cmd cmp compress container context crypto database debug embed
	encoding errors expvar flag fmt go hash html image index internal io iter log maps math mime net os path plugin reflect
	regexp runtime simd slices sort strconv strings structs sync syscall testing text time unicode unique unsafe vendor weak`)
