package browser

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/bulk"
	"github.com/tenuto-dev/tenuto/cluster/operate"
	"github.com/tenuto-dev/tenuto/cluster/schedule"
	"github.com/tenuto-dev/tenuto/replay"
)

// attack sets the global variable __hostile or opens a dialog where a page takes it for markup,
// script or a template. Elements with the ID __hostile would be that variable, too.
const attack = `<script>window.__hostile=1;alert(1)</script>"'><img src=x onerror="window.__hostile=1">` +
	`<svg/onload=window.__hostile=1><iframe srcdoc="<script>parent.__hostile=1</script>"></iframe>` +
	`<a id=__hostile href="javascript:window.__hostile=1">x</a><form name=__hostile></form><base href=//x.invalid/>` +
	`<body onload=alert(1)><style>*{display:none}</style><meta http-equiv=refresh content="0;url=javascript:alert(1)">` +
	`</script></style></textarea></title></pre></code></main></body></html>--></template>]]>` +
	`javascript:window.__hostile=1 ${window.__hostile=1} {{window.__hostile=1}} \u003cscript>window.__hostile=1</script> ` +
	"\u2028window.__hostile=1\u2029window.__hostile=1//\u202e\u2066\ufeff\u0000\u0007\u001b[2J\r\n"

// Attacks for texts that are bounded, in bytes: names 128, summaries 200 without control
// characters.
const (
	attackName    = `<img src=x onerror=window.__hostile=1><a id=__hostile>` + "\u2028\u202e"
	attackSummary = attackName + `<script>window.__hostile=1</script>javascript:window.__hostile=1`
)

// attackPayload is JSON of the largest size, with bytes that are no UTF-8.
func attackPayload() json.RawMessage {
	const invalid = "\xff\xfe\xc0\xaf\xed\xa0\x80<script>window.__hostile=1</script>"
	escaped := strings.NewReplacer("<", `\u003c`, ">", `\u003e`).Replace(invalid)
	unit, _ := json.Marshal(attack)
	unit = unit[1 : len(unit)-1]
	room := replay.PayloadMax - len(`""`) - len(escaped)
	text := strings.Repeat(string(unit), room/len(unit))
	return json.RawMessage(`"` + text + strings.Repeat("x", room-len(text)) + invalid + `"`)
}

var (
	mirror       = replay.Orchestration[json.RawMessage, json.RawMessage](attackName)
	attacked     = replay.Orchestration[json.RawMessage, json.RawMessage](attackName + "fails")
	mirrorParent = replay.Orchestration[json.RawMessage, json.RawMessage](attackName + "parent")
	mirrorEvent  = replay.Event[json.RawMessage](attackName)
	mirrorQuery  = replay.Query[json.RawMessage, json.RawMessage](attackName)
	mirrorUpdate = replay.Update[json.RawMessage, json.RawMessage](attackName)
	mirrorMap    = replay.KV[string](attackName)
	mirrorText   = replay.Attribute[string](attackName)
	echo         = replay.Activity[json.RawMessage, json.RawMessage](attackName)
	otherEcho    = replay.Activity[json.RawMessage, json.RawMessage](attackName + "other")
	refuse       = replay.Activity[json.RawMessage, json.RawMessage](attackName + "refuse")
)

func (l *lab) hostileDefinitions() []replay.Definition {
	same := func(_ context.Context, input json.RawMessage) (json.RawMessage, error) { return input, nil }
	return []replay.Definition{
		mirror.Bind(l.mirrorBody), echo.Bind(same), otherEcho.Bind(same),
		refuse.Bind(func(ctx context.Context, input json.RawMessage) (json.RawMessage, error) {
			return nil, errors.Join(replay.Heartbeat(ctx, input), replay.NewError(attackName, attack))
		}),
		attacked.Bind(func(ctx *replay.Context, input json.RawMessage) (json.RawMessage, error) {
			again := replay.Retry(replay.RetryPolicy{InitialInterval: time.Hour})
			if _, err := refuse.Call(ctx, input, again); err != nil {
				return nil, replay.NewError(attackName, strings.Repeat(attack, 10))
			}
			return input, nil
		}),
		mirrorParent.Bind(func(ctx *replay.Context, input json.RawMessage) (json.RawMessage, error) {
			return mirror.Call(ctx, input, replay.Summary(attackName))
		}),
	}
}

// mirrorBody puts its input wherever code can put something.
func (l *lab) mirrorBody(ctx *replay.Context, input json.RawMessage) (json.RawMessage, error) {
	err := errors.Join(
		mirrorQuery.Handle(ctx, func(json.RawMessage) (json.RawMessage, error) { return input, nil }),
		mirrorUpdate.Handle(ctx, nil, func(*replay.Context, json.RawMessage) (json.RawMessage, error) { return input, nil }),
		replay.SetStatus(ctx, input), mirrorMap.Set(ctx, attackName, attack), mirrorText.Set(ctx, attackSummary),
	)
	if err != nil {
		return nil, err
	}
	if _, err := replay.SideEffect(ctx, attackName, func() (string, error) { return attack, nil }); err != nil {
		return nil, err
	}
	call := echo
	if l.broken.Load() {
		call = otherEcho
	}
	if _, err := call.Call(ctx, input); err != nil {
		return nil, err
	}
	return mirrorEvent.Wait(ctx)
}

// A hostileTest is a cluster that is full of attacks, and a user who looks at its pages.
type hostileTest struct {
	*user
	payload json.RawMessage
}

// TestHostile_MebibyteRunsNothing shows attacks of the largest size at every place that shows what
// users and code have written. None may run, and the pages must stay usable.
func TestHostile_MebibyteRunsNothing(t *testing.T) {
	if shared.browser == nil {
		t.Skip(`run with "make browser"`)
	}
	l, stop, err := startLab(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop) // after the tab is closed
	h := &hostileTest{&user{openTabOf(t, l), "hostile", ""}, attackPayload()}
	h.expect("the server responded with a status of 40") // for wrong filters and IDs
	h.fillLab()
	for _, path := range h.paths() {
		h.open(path)
		if strings.Contains(path, "&event=") {
			h.await("the event", `document.querySelector('.history-detail dl, .history-rows')`)
		} else {
			h.expandAll()
		}
		h.harmless(path)
	}
	for _, path := range h.payloads() {
		h.run(chromedp.Navigate(l.url + path))
		h.await("the payload", `document.body.innerText.length > 0`)
		h.harmless(path)
	}
	h.answers()
	h.isUsable()
}

// fillLab makes the instances that the pages show.
func (h *hostileTest) fillLab() {
	h.t.Helper()
	tags := cluster.Tags(map[string]string{attackName: attack, "note": attackSummary})
	client := h.lab.client
	begin := func(id string, of replay.OrchestrationHandle[json.RawMessage, json.RawMessage]) {
		ctx := operate.WithReason(h.context(), attack)
		h.check(start(ctx, h.lab, of, id, h.payload, tags, replay.Summary(attackSummary)))
	}
	h.id = "stalled"
	begin(h.id, mirror)
	h.check(h.lab.awaitEvents(h.context(), h.id, 8))
	h.stall()
	h.lab.broken.Store(false) // for the others
	begin("open", mirror)
	begin("ended", mirror)
	begin("failing", attacked)
	begin("failed", attacked)
	begin("parent", mirrorParent)
	h.check(cluster.Send(operate.WithReason(h.context(), attack), client, "ended", mirrorEvent, h.payload))
	h.check(cluster.Send(h.context(), client, "open", replay.Event[json.RawMessage](attackName+"early"), h.payload))
	h.check(h.lab.await(h.context(), "ended", cluster.Completed))
	for _, id := range []string{"failing", "failed"} {
		h.id = id
		h.awaitOperation(func(o *cluster.OpenOperation) bool { return o.FailedAttempts == 1 })
	}
	h.check(operate.Fail(h.context(), client, h.onlyOperation(), replay.NewError(attackName, attack), attack))
	h.check(h.lab.await(h.context(), "failed", cluster.Failed))
	var output json.RawMessage
	status, err := client.Get(h.context(), "ended")
	h.check(err)
	if h.check(status.Output(&output)); len(output) != replay.PayloadMax || utf8.Valid(output) {
		h.t.Fatalf("the output has %d bytes, valid UTF-8: %t; want the largest size and invalid UTF-8", len(output), utf8.Valid(output))
	}
	h.fillJobs()
}

// fillJobs makes a schedule, a job and a paused activity.
func (h *hostileTest) fillJobs() {
	h.t.Helper()
	client, short := h.lab.client, strings.Repeat(attack, 3)
	text, err := json.Marshal(short)
	h.check(err)
	h.check(schedule.Create(h.context(), client, "attack", schedule.Spec{Every: time.Hour}, mirror, json.RawMessage(text)))
	h.check(schedule.Pause(h.context(), client, "attack", attack))
	id, err := bulk.Start(h.context(), client, bulk.Job{
		ID: "attack-job", Filter: cluster.Filter{Tags: map[string]string{attackName: attack}}, Action: bulk.Release, Reason: short,
	})
	h.check(err)
	_, err = client.Wait(h.context(), id)
	h.check(err)
	h.check(operate.PauseActivity(h.context(), client, attackName, short))
	h.id = "paused"
	h.check(start(h.context(), h.lab, mirror, h.id, h.payload))
	h.awaitOperation(func(o *cluster.OpenOperation) bool { return o.PausedReason == short })
}

// paths returns the paths of the pages.
func (h *hostileTest) paths() []string {
	h.t.Helper()
	filters := []string{attack, "tag.note=" + attackSummary, "name=" + fmt.Sprintf("%q", attackName)}
	paths := []string{"", "instances", "code", "schedules", "schedules/attack", "jobs", "jobs/attack-job", "cluster", "instances/" + url.PathEscape(attackName)}
	for _, filter := range filters {
		paths = append(paths, "instances?filter="+url.QueryEscape(filter))
	}
	for _, view := range []struct{ id, tabs string }{
		{"open", "timeline history pending stack children constructor"}, {"ended", "timeline history"}, {"failed", "timeline history"},
		{"failing", "timeline pending"}, {"parent", "timeline children"}, {"stalled", "timeline pending"}, {"paused", "pending stack"},
	} {
		for tab := range strings.FieldsSeq(view.tabs) {
			paths = append(paths, "instances/"+view.id+"?tab="+tab)
		}
	}
	paths = append(paths, "instances/ended?tab="+url.QueryEscape(attackName), "instances/ended?tab=history&event="+url.QueryEscape(attackName))
	for _, id := range []string{"ended", "failed"} {
		for _, event := range h.events(id) {
			paths = append(paths, fmt.Sprintf("instances/%s?tab=history&event=%d", id, event))
		}
	}
	return paths
}

// events returns the numbers of the events of an instance.
func (h *hostileTest) events(id string) (numbers []uint64) {
	h.t.Helper()
	recorded, err := h.lab.client.History(h.context(), id)
	h.check(err)
	for _, event := range recorded.Events {
		numbers = append(numbers, event.EventID)
	}
	return numbers
}

// payloads returns the paths of payloads that pages link to.
func (h *hostileTest) payloads() (paths []string) {
	h.t.Helper()
	for _, event := range h.events("ended") {
		paths = append(paths, fmt.Sprintf("api/instances/ended/payload?execution=1&event=%d", event))
	}
	return append(paths, "api/instances/ended", "api/instances/ended/history?payloads=true", "api/instances/ended/timeline")
}

// expandAll expands all parts of the page that are collapsed.
func (h *hostileTest) expandAll() {
	h.t.Helper()
	evaluate[int](h.tab, `document.querySelectorAll('main details, main [aria-expanded=false]').forEach((each) => each.open === false ? each.open = true : each.click()), 0`)
	h.await("the page is drawn", `!document.querySelector('main .loading')`)
}

// harmless checks that no attack has run and that no element comes from one. The tab notes
// dialogs, and violations of the Content-Security-Policy.
func (h *hostileTest) harmless(where string) {
	h.t.Helper()
	if evaluate[bool](h.tab, `'__hostile' in window || document.getElementById('__hostile') !== null`) {
		h.t.Errorf("%.200s: an attack ran", where)
	}
	found := evaluate[string](h.tab, `[...document.querySelectorAll('*')].filter((each) => each.matches('iframe, object, embed, base, meta[http-equiv], img[src=x]')
		|| (each.matches('script') && !(each.src.startsWith(location.origin) && each.text === ''))
		|| [...each.attributes].some(({name, value}) => name.startsWith('on') || (['href', 'src', 'action'].includes(name) && /^\W*javascript:/i.test(value))))
		.map((each) => each.outerHTML.slice(0, 200)).join('\n')`)
	if found != "" {
		h.t.Errorf("%.200s: elements come from an attack:\n%s", where, found)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, problem := range h.problems {
		h.t.Errorf("%.200s: %.1000s", where, problem)
	}
	h.problems = nil
}

// answers shows attacks in dialogs: of a query, an update, a map, and an error.
func (h *hostileTest) answers() {
	h.t.Helper()
	h.open("instances/open")
	for _, dialog := range []struct {
		item   string
		fields []string
		shows  string
	}{
		{"Query…", []string{"name", attackName}, "Answer of the query"},
		{"Update…", []string{"name", attackName, "reason", attackSummary}, "Answer of the update"},
		{"Read key-value map…", []string{"name", attackName}, "Values"},
	} {
		h.pressKey(".instance-actions .menu > button", "Actions")
		h.await("the focus in the menu", `document.activeElement.closest('.menu-items') !== null`)
		h.pressKey(".instance-actions .menu-items button", dialog.item)
		h.fill(dialog.fields...)
		h.pressKey("dialog[open] [data-action=confirm]", "")
		h.shows("dialog[open] h2", dialog.shows)
		h.shows("dialog[open] pre", "window.__hostile=1")
		h.harmless(dialog.item)
		h.pressKey("dialog[open] [data-action=confirm]", "Close")
		h.await("no dialog", `!document.querySelector('dialog[open]')`)
	}
	h.pressKey(".instance-actions .menu > button", "Actions")
	h.await("the focus in the menu", `document.activeElement.closest('.menu-items') !== null`)
	h.pressKey(".instance-actions .menu-items button", "Query…")
	h.fill("name", attackName+"unknown")
	h.pressKey("dialog[open] [data-action=confirm]", "")
	h.shows("dialog[open] .notice", "window.__hostile=1")
	h.harmless("an error in a dialog")
	h.run(chromedp.KeyEvent(kb.Escape))
	h.await("no dialog", `!document.querySelector('dialog[open]')`)
}

// isUsable uses the page of an instance full of attacks: its tabs, an event, a button, the keys.
func (h *hostileTest) isUsable() {
	h.t.Helper()
	h.id = "open"
	h.show("instances/open")
	for _, tab := range []string{"history", "pending", "stack", "children", "timeline", "history"} {
		h.pressKey("#tab-"+tab, "")
		h.await("the tab "+tab, fmt.Sprintf(`document.querySelector('#panel-%s') && !document.querySelector('main .loading')`, tab))
	}
	h.pressKey(".history-id", "3")
	h.await("the event", `document.querySelector('.history-detail .payload-text, .history-detail .payload-note')`)
	h.pressKey(".instance-actions [data-action=cancel]", "")
	h.fill("reason", attackSummary)
	h.pressKey("dialog[open] [data-action=confirm]", "")
	h.becomes(cluster.Canceled)
	h.run(chromedp.KeyEvent("?"))
	h.await("the dialog of keys", `document.querySelector('dialog[open]')`)
	h.harmless("a page in use")
}
