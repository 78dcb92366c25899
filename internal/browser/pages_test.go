package browser

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/tenuto-dev/tenuto/cluster"
)

//go:embed axe/axe.min.js
var axeSource string

// eachPage runs a test for each kind of page, in a tab of its own.
func eachPage(t *testing.T, test func(t *testing.T, b *tab, path string)) {
	for _, page := range pages {
		t.Run(page.name, func(t *testing.T) { test(t, openTab(t), page.path) })
	}
}

func TestPages_ShowTheirContentWithoutErrors(t *testing.T) {
	for _, page := range pages {
		t.Run(page.name, func(t *testing.T) {
			b := openTab(t)
			b.open(page.path)
			b.awaitText(page.shows)
		})
	}
}

func TestPages_AskOnlyBelowThePrefix(t *testing.T) {
	eachPage(t, func(t *testing.T, b *tab, path string) {
		b.open(path)
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, url := range b.requests {
			if !strings.HasPrefix(url, shared.lab.url) && !strings.HasPrefix(url, "data:") {
				t.Errorf("request to %s", url)
			}
		}
	})
}

// The browser keeps the pages that a tab has left, which must not keep their connections: it has
// six to a server.
func TestPages_OneAfterTheOtherInATab(t *testing.T) {
	b := openTab(t)
	const live = `document.querySelector('.connection')?.textContent === 'Live'`
	for _, path := range []string{"", "instances", "schedules", "schedules/nightly", "jobs", "jobs/job-1", "cluster", "instances/waiter-1"} {
		b.open(path)
		b.await(path+" is live", live)
	}
	b.run(chromedp.Evaluate[chromedp.Void](`history.back()`))
	b.await("the page before, live", `location.pathname.endsWith('/cluster') && `+live)
}

// axe returns the violations that axe-core finds, one per line with an element.
func (b *tab) axe() string {
	b.t.Helper()
	b.run(chromedp.Evaluate[chromedp.Void](axeSource))
	return evaluate[string](b, `axe.run(document, {resultTypes: ['violations']}).then(({violations}) => violations.flatMap((each) =>
		each.nodes.slice(0, 3).map((node) => each.id + ': ' + node.target + ': ' + node.failureSummary.replace(/\s+/g, ' '))).join('\n'))`)
}

func TestPages_AreAccessible(t *testing.T) {
	for _, scheme := range []string{"light", "dark"} {
		t.Run(scheme, func(t *testing.T) {
			eachPage(t, func(t *testing.T, b *tab, path string) {
				b.look(scheme, 1280)
				b.open(path)
				if violations := b.axe(); violations != "" {
					t.Error(violations)
				}
			})
		})
	}
}

func TestPages_FitNarrowAndWideWindows(t *testing.T) {
	for _, width := range []int64{360, 2560} {
		t.Run(fmt.Sprint(width), func(t *testing.T) {
			eachPage(t, func(t *testing.T, b *tab, path string) {
				b.look("light", width)
				b.open(path)
				if wide := evaluate[int64](b, `document.documentElement.scrollWidth`); wide > width {
					culprits := evaluate[string](b, `[...document.querySelectorAll('main *')].filter((each) => each.getBoundingClientRect().right > innerWidth + 1)
						.slice(0, 5).map((each) => each.tagName + '.' + each.className).join(', ')`)
					t.Errorf("the page is %d px wide in a window of %d px: %s", wide, width, culprits)
				}
			})
		})
	}
}

func TestPages_HostilePayloadsDoNotRun(t *testing.T) {
	for _, path := range []string{
		"", "instances", "instances/hostile-1", "instances/hostile-1?tab=history", "instances/hostile-1?tab=pending", "instances/hostile-1?tab=stack",
		"instances/hostile-failed", "instances/hostile-failed?tab=history", "instances/hostile-large?tab=history",
		"instances?filter=%3Cimg+src%3Dx+onerror%3D%22window.hostile%3D1%22%3E", "instances/%3Cscript%3Ewindow.hostile=1%3C%2Fscript%3E",
	} {
		t.Run(path, func(t *testing.T) {
			b := openTab(t)
			b.expect("the server responded with a status of 40") // of a filter and an ID that are wrong
			b.open(path)
			evaluate[int](b, `document.querySelectorAll('main details, main [aria-expanded=false]').forEach((each) => each.open === false ? each.open = true : each.click()), 0`)
			b.await("the page is drawn", `!document.querySelector('main .loading')`)
			if strings.HasPrefix(path, "instances/hostile-1") {
				b.awaitText("window.hostile=1") // as text
			}
			if set := evaluate[bool](b, `'hostile' in window`); set {
				t.Error("a payload ran")
			}
			if injected := evaluate[int](b, `document.querySelectorAll('main script, main img[onerror], a[href^="javascript:"]').length`); injected > 0 {
				t.Errorf("%d elements come from payloads", injected)
			}
		})
	}
}

func TestKeyboard(t *testing.T) {
	b := openTab(t)
	b.open("instances")
	b.await("rows", `document.querySelectorAll('[data-row]').length > 3`)
	b.run(chromedp.KeyEvent("j"), chromedp.KeyEvent("j"), chromedp.KeyEvent("k"))
	if at := evaluate[int](b, `[...document.querySelectorAll('[data-row]')].indexOf(document.activeElement)`); at != 0 {
		t.Errorf("after j j k the focus is in row %d, not 0", at)
	}
	b.run(chromedp.KeyEvent("?"))
	b.await("the dialog of keys", `document.querySelector('dialog[open]')`)
	if violations := b.axe(); violations != "" {
		t.Error(violations)
	}
	b.run(chromedp.KeyEvent(kb.Escape))
	b.await("no dialog", `!document.querySelector('dialog[open]')`)
	b.run(chromedp.KeyEvent("/"))
	b.await("the focus in the filter", `document.activeElement.matches('[data-search]')`)
}

func TestInstances_FilterIsInTheURL(t *testing.T) {
	b := openTab(t)
	b.open("instances?filter=state%3Dterminated")
	b.awaitText("terminated-1")
	if shown := evaluate[bool](b, `document.querySelector('main').innerText.includes('waiter-1')`); shown {
		t.Error("the list shows instances that the filter excludes")
	}
	if value := evaluate[string](b, `document.querySelector('[data-search]').value`); !strings.Contains(value, "state=terminated") {
		t.Errorf("the field shows the filter %q", value)
	}
}

// A new instance and the count are shown by the stream: the list is read once.
func TestInstances_AreShownByTheStream(t *testing.T) {
	b := openTab(t)
	b.open("instances?filter=id%3Dstreamed-*")
	b.await("the stream", `document.querySelector('.connection.live')`)
	ctx, cancel := context.WithTimeout(t.Context(), actionTimeout)
	defer cancel()
	if _, err := cluster.StartRun(ctx, shared.lab.client, waiter, "streamed-1", ""); err != nil {
		t.Fatal(err)
	}
	b.awaitText("streamed-1")
	b.awaitText("1 match")
	reads := evaluate[int](b, `performance.getEntriesByType('resource').filter((each) => /api\/instances(\/count)?[?]/.test(each.name)).length`)
	if reads > 2 {
		t.Errorf("the page has read the list and the count %d times; want once each", reads)
	}
}

// TestInstance_ButtonsActAtOnce uses buttons of an instance and checks the cluster and the page,
// which is not loaded again.
func TestInstance_ButtonsActAtOnce(t *testing.T) {
	b := openTab(t)
	b.open("instances/waiter-2")
	evaluate[int](b, `window.notReloaded = 1`)
	for _, step := range []struct {
		button, confirm string
		state           cluster.State
		shows           string
	}{
		{"Suspend…", "Suspend", cluster.Suspended, "suspended"},
		{"Resume…", "Resume", cluster.Running, "running"},
		{"Cancel…", "Cancel the run", cluster.Canceled, "canceled"},
		{"Rerun…", "Rerun", cluster.Running, "running"},
	} {
		b.click(".instance-head, main", step.button)
		b.run(chromedp.WaitVisible(chromedp.CSS("dialog[open] #field-reason")),
			chromedp.SendKeys(chromedp.CSS("dialog[open] #field-reason"), "as the test wants"))
		b.click("dialog[open]", step.confirm)
		ctx, cancel := context.WithTimeout(t.Context(), actionTimeout)
		if err := shared.lab.await(ctx, "waiter-2", step.state); err != nil {
			t.Errorf("%s: %v", step.confirm, err)
		}
		cancel()
		b.await(step.confirm+" shows "+step.shows, fmt.Sprintf(
			`!document.querySelector('dialog[open]') && [...document.querySelectorAll('main .badge')].some((each) => each.textContent.trim().toLowerCase() === %q)`, step.shows))
	}
	if kept := evaluate[bool](b, `window.notReloaded === 1`); !kept {
		t.Error("the page was loaded again")
	}
}

// TestInstance_LongHistory prints how soon the page of 50,000 events can be used. Times depend on
// the machine, so that they are no condition.
func TestInstance_LongHistory(t *testing.T) {
	for _, view := range []string{"timeline", "history"} {
		b := openTab(t)
		b.open("instances/long-1?tab=" + view)
		b.await("rows", `document.querySelectorAll('.timeline-rows .timeline-name, .history-rows .history-id').length > 3`)
		t.Logf("%s: first rows of %d events %.0f ms after the navigation", view, longEvents, evaluate[float64](b, `performance.now()`))
		if nodes := evaluate[int](b, `document.querySelectorAll('*').length`); nodes > 5000 {
			t.Errorf("%s: %d elements: the rows are not virtual", view, nodes)
		}
	}
}

// TestScreenshots writes a picture of each page in both color schemes into TENUTO_SCREENSHOTS.
func TestScreenshots(t *testing.T) {
	dir := os.Getenv("TENUTO_SCREENSHOTS")
	if dir == "" {
		t.Skip(`run with "make screenshots"`)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, scheme := range []string{"light", "dark"} {
		for _, page := range pages {
			// A tab of its own, closed before the next: over HTTP/1.1 a browser has six connections
			// to a server, and each open page keeps one for its stream.
			t.Run(page.name+"-"+scheme, func(t *testing.T) {
				b := openTab(t)
				b.look(scheme, 1440)
				b.open(page.path)
				png, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, page.name+"-"+scheme+".png"), png, 0o644); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

// TestLeader_StopsWhileAPageIsOpen is the last test: the cluster has two nodes afterwards.
func TestLeader_StopsWhileAPageIsOpen(t *testing.T) {
	b := openTab(t)
	b.open("instances/waiter-3?tab=history")
	evaluate[int](b, `window.notReloaded = 1`)
	for _, node := range shared.lab.nodes {
		if node.IsLeader() {
			if err := node.Close(); err != nil {
				t.Fatal(err)
			}
			break
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), actionTimeout)
	defer cancel()
	if err := cluster.Send(ctx, shared.lab.client, "waiter-3", goAhead, "after the leader"); err != nil {
		t.Fatal(err)
	}
	b.await("the end of the instance", `[...document.querySelectorAll('main .badge')].some((each) => each.textContent.trim().toLowerCase() === 'completed')`)
	if kept := evaluate[bool](b, `window.notReloaded === 1`); !kept {
		t.Error("the page was loaded again")
	}
}
