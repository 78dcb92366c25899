package browser

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// shared are the cluster and the browser of all tests; filling a cluster takes seconds.
var shared struct {
	lab     *lab
	browser context.Context
}

func TestMain(m *testing.M) {
	if config := os.Getenv(nodeEnv); config != "" {
		if err := runNode(config); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if os.Getenv("TENUTO_BROWSER") == "" {
		fmt.Println(`the tests in a browser run with "make browser" only`)
		os.Exit(m.Run()) // each test skips itself
	}
	code, err := runShared(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runShared(m *testing.M) (code int, err error) {
	program := os.Getenv("TENUTO_CHROMIUM")
	if program == "" {
		program = "chromium"
	}
	if _, err := exec.LookPath(program); err != nil {
		return 0, fmt.Errorf("no browser (Debian: apt-get install chromium; or set TENUTO_CHROMIUM): %w", err)
	}
	dir, err := os.MkdirTemp("", "tenuto-browser-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	begun := time.Now()
	lab, stop, err := startFilledLab(ctx, dir)
	if err != nil {
		return 0, err
	}
	defer stop()
	fmt.Printf("the cluster is filled after %v\n", time.Since(begun).Round(time.Millisecond))
	// Chromium's sandbox does not work for root, as in containers. The pages are our own.
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.NoSandbox,
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.WindowSize(1280, 900), chromedp.WSURLReadTimeout(time.Minute))
	allocated, stopAllocator := chromedp.NewExecAllocator(ctx, options...)
	defer stopAllocator()
	browser, closeBrowser := chromedp.NewContext(allocated)
	defer closeBrowser()
	if err := chromedp.Do(browser); err != nil {
		return 0, fmt.Errorf("start %s: %w", program, err)
	}
	shared.lab, shared.browser = lab, browser
	return m.Run(), nil
}

// actionTimeout bounds each use of a tab. It is long because machines of tests are busy.
const actionTimeout = time.Minute

// A tab is a tab of the browser that notes what must not happen in a page.
type tab struct {
	t       *testing.T
	lab     *lab // whose pages the tab shows
	ctx     context.Context
	dialogs chan struct{} // one element while a dialog is to be closed

	mu       sync.Mutex
	problems []string
	requests []string // URLs
	expected []string // parts of problems that a test causes
}

// openTab opens an empty tab. At the end of the test it fails if a page reported a problem.
func openTab(t *testing.T) *tab {
	t.Helper()
	return openTabOf(t, shared.lab)
}

// openTabOf opens a tab for the pages of a cluster.
func openTabOf(t *testing.T, of *lab) *tab {
	t.Helper()
	if shared.browser == nil {
		t.Skip(`run with "make browser"`)
	}
	opened := &tab{t: t, lab: of, dialogs: make(chan struct{}, 1)}
	ctx, cancel := chromedp.NewContext(shared.browser, chromedp.WithListener(opened.note))
	opened.ctx = ctx
	if err := chromedp.Do(ctx); err != nil { // creates the tab, whose life is that of ctx
		t.Fatal(err)
	}
	opened.run(command(network.Enable, network.EnableParams{}), command(log.Enable, cdp.Empty{}))
	var closing sync.WaitGroup
	closing.Go(opened.closeDialogs)
	t.Cleanup(func() {
		cancel()
		closing.Wait()
		opened.mu.Lock()
		defer opened.mu.Unlock()
		for _, problem := range opened.problems {
			t.Error(problem)
		}
	})
	return opened
}

func (b *tab) note(event any) {
	switch event := event.(type) {
	case *runtime.EventExceptionThrown:
		b.problem("exception: " + describe(event.ExceptionDetails))
	case *runtime.EventConsoleAPICalled:
		if event.Type == runtime.ConsoleAPICalledTypeError || event.Type == runtime.ConsoleAPICalledTypeWarning {
			var values []string
			for _, arg := range event.Args {
				values = append(values, string(arg.Value)+arg.Description)
			}
			b.problem("console: " + strings.Join(values, " "))
		}
	case *log.EventEntryAdded: // also violations of the Content-Security-Policy
		if event.Entry.Level == log.EntryLevelError || event.Entry.Level == log.EntryLevelWarning {
			b.problem(fmt.Sprintf("log: %s: %s (%s)", event.Entry.Source, event.Entry.Text, event.Entry.URL))
		}
	case *page.EventJavascriptDialogOpening:
		b.problem("dialog: " + event.Message)
		select { // the listener must not wait for the answer of the browser
		case b.dialogs <- struct{}{}:
		default:
		}
	case *network.EventRequestWillBeSent:
		b.mu.Lock()
		defer b.mu.Unlock()
		b.requests = append(b.requests, event.Request.URL)
	}
}

// closeDialogs closes the dialogs of the page, which each block it, until the tab is closed.
func (b *tab) closeDialogs() {
	for {
		select {
		case <-b.dialogs:
			_ = b.try(command(page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{}))
		case <-b.ctx.Done():
			return
		}
	}
}

func describe(details *runtime.ExceptionDetails) string {
	if details.Exception != nil {
		return details.Text + " " + details.Exception.Description
	}
	return details.Text
}

func (b *tab) problem(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, part := range b.expected {
		if strings.Contains(text, part) {
			return
		}
	}
	b.problems = append(b.problems, text)
}

// expect makes problems that contain a text no failure.
func (b *tab) expect(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expected = append(b.expected, text)
}

func (b *tab) run(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := b.try(actions...); err != nil {
		b.t.Fatal(err)
	}
}

func (b *tab) try(actions ...chromedp.Action[chromedp.Void]) error {
	ctx, cancel := context.WithTimeout(b.ctx, actionTimeout)
	defer cancel()
	return chromedp.Do(ctx, actions...)
}

// command makes an action of a command of the protocol whose result does not matter.
func command[P, R any](c cdp.Command[P, R], params P) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, c, params)
		return err
	})
}

// open shows a page, by its path below the prefix, and waits until its content is drawn.
func (b *tab) open(path string) {
	b.t.Helper()
	b.run(chromedp.Navigate(b.lab.url + path))
	b.await("no loading notice in "+path, `document.readyState === 'complete' && !document.querySelector('main .loading')`)
}

// await waits until a JavaScript condition holds, also in a document that follows the present one.
func (b *tab) await(what, condition string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, actionTimeout)
	defer cancel()
	ticker := time.NewTicker(25 * time.Millisecond)
	defer ticker.Stop()
	for {
		switch holds, err := b.holds(ctx, condition); {
		case err != nil && ctx.Err() == nil:
			b.t.Fatalf("%s: %v", what, err)
		case holds:
			return
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			text, _ := chromedp.Run(b.ctx, chromedp.Evaluate[string](`document.body.innerText.slice(0, 1500)`))
			b.t.Fatalf("%s: not after %v; the page shows:\n%s", what, actionTimeout, text)
		}
	}
}

// evaluateTimeout bounds one look at a condition. That of a page that the browser keeps for the way
// back has no answer.
const evaluateTimeout = 2 * time.Second

// holds reports whether a condition holds now. It does not while the tab goes from one document to
// the next.
func (b *tab) holds(ctx context.Context, condition string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, evaluateTimeout)
	defer cancel()
	holds, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("Boolean("+condition+")"))
	var refused *cdproto.Error
	if errors.Is(err, context.DeadlineExceeded) || errors.As(err, &refused) && refused.Code == -32000 {
		return false, nil
	}
	return holds, err
}

// awaitText waits until the page shows a text.
func (b *tab) awaitText(text string) {
	b.t.Helper()
	b.await(fmt.Sprintf("the text %q", text), fmt.Sprintf(`document.body.innerText.toLowerCase().includes(%q.toLowerCase())`, text))
}

func evaluate[T any](b *tab, script string) (value T) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, actionTimeout)
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](script, chromedp.EvalAwaitPromise))
	if err != nil {
		b.t.Fatalf("%s: %v", script, err)
	}
	return value
}

// click clicks a button by its text within an element, which must become visible.
func (b *tab) click(within, text string) {
	b.t.Helper()
	find := fmt.Sprintf(`[...document.querySelectorAll(%q)].find((each) => each.textContent.trim() === %q && !each.disabled && each.checkVisibility())`,
		within+" button, "+within+" [role=menuitem], "+within+" summary", text)
	b.await(fmt.Sprintf("the button %q", text), find)
	b.run(chromedp.Evaluate[chromedp.Void]("(" + find + ").click()"))
}

// look sets the color scheme and the width of the window.
func (b *tab) look(scheme string, width int64) {
	b.t.Helper()
	b.run(command(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	}), chromedp.EmulateViewport(width, 900))
}

// pages are all kinds of pages, with a name for their pictures.
var pages = []struct{ name, path, shows string }{
	{"overview", "", "Needs attention"},
	{"instances", "instances", "Instances"},
	{"instances-filtered", "instances?filter=" + url.QueryEscape("state=failed"), "failed-1"},
	{"timeline", "instances/waiter-1", "waiter-1"},
	{"history", "instances/waiter-1?tab=history", "waiter-1"},
	{"pending", "instances/failing-1?tab=pending", "flaky"},
	{"stack", "instances/waiter-1?tab=stack", "waiter-1"},
	{"children", "instances/family-1?tab=children", "family-1"},
	{"stalled", "instances/stalled-1", "stalled"},
	{"fan-out", "instances/fan-out-1", "fan-out-1"},
	{"long", "instances/long-1", "long-1"},
	{"code", "code", "Code"},
	{"schedules", "schedules", "nightly"},
	{"schedule", "schedules/nightly", "nightly"},
	{"jobs", "jobs", "job-1"},
	{"job", "jobs/job-1", "job-1"},
	{"cluster", "cluster", "n3"},
}
