package io

import (
	"context"
	"database/sql"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/tenuto-dev/tenuto/replay"
	"rules/shop"
)

func buy(ctx *replay.Context, db *sql.DB) (int, error) {
	_, err := os.ReadFile("prices") // want `^calls os\.ReadFile: do it in an activity$`
	f, _ := os.Open("prices")       // want `calls os\.Open`
	f.Read(nil)                     // want `calls os\.File\.Read`
	http.Get("http://shop")         // want `calls http\.Get`
	new(http.Client).Do(nil)        // want `calls http\.Client\.Do`
	net.Dial("tcp", "shop:80")      // want `calls net\.Dial`
	exec.Command("true").Run()      // want `calls exec\.Cmd\.Run`
	filepath.Glob("*")              // want `calls filepath\.Glob`
	db.Query("select 1")            // want `calls sql\.DB\.Query`

	_ = load // an activity that is only named
	remove := func(ctx context.Context, name string) error { return os.Remove(name) }
	_, _ = remove, activities()
	_, _ = os.IsNotExist(err), errors.Is(err, fs.ErrNotExist)
	_ = net.JoinHostPort("shop", "80")
	_ = filepath.Join("a", "b")
	_ = http.StatusText(http.StatusOK)
	return 0, nil
}

func load(ctx context.Context, name string) ([]byte, error) { return os.ReadFile(name) }

// Code in literals that are activities does not run in the function around them.
func activities() []replay.Definition {
	return []replay.Definition{
		shop.Charge.Bind(func(ctx context.Context, name string) (int, error) { return 0, os.Remove(name) }),
	}
}
