package browser

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// TestScreenshots_OfReadme writes the pictures of the README from the example cluster, when it has
// run for a while.
func TestScreenshots_OfReadme(t *testing.T) {
	dir := os.Getenv("TENUTO_SCREENSHOTS")
	if dir == "" {
		t.Skip(`run with "make screenshots"`)
	}
	url := startExample(t)
	awaitText(t, url+"api/instances/shipment-14", `"failed"`) // some seconds after the start
	for _, page := range []struct{ name, path, shows string }{
		{"readme-instance", "instances/shipment-2", "3 attempts"},
		{"readme-overview", "", "Activities fail again"},
	} {
		b := openTabOf(t, &lab{url: url})
		b.look("light", 1280)
		b.open(page.path)
		b.await(page.shows, "document.body.innerText.includes('"+page.shows+"')")
		png, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, page.name+".png"), png, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// startExample runs the example cluster until the end of the test, and returns the URL of its
// dashboard.
func startExample(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "example")
	build := exec.Command("go", "build", "-o", program, "./examples/cluster")
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	running := exec.Command(program)
	running.Stderr = os.Stderr
	input, err := running.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := running.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := running.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(output)
	lines.Scan()
	var reading sync.WaitGroup
	reading.Go(func() {
		for lines.Scan() { // so that the program is never blocked
		}
	})
	t.Cleanup(func() {
		if err := input.Close(); err != nil { // the program ends
			t.Error(err)
		}
		reading.Wait()
		if err := running.Wait(); err != nil {
			t.Error(err)
		}
	})
	_, url, found := strings.Cut(lines.Text(), "the dashboard: ")
	if !found {
		t.Fatalf("the example prints %q", lines.Text())
	}
	return url
}

// awaitText waits until the answer at a URL contains a text.
func awaitText(t *testing.T, url, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		if response, err := http.Get(url); err == nil {
			body, _ := io.ReadAll(response.Body) // a part of it may be enough
			_ = response.Body.Close()
			if strings.Contains(string(body), text) {
				return
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			t.Fatalf("%s does not contain %s", url, text)
		}
	}
}
