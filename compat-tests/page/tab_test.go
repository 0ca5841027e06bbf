package pagesuite

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"leaseway/compat-tests/harness"
)

// patience is how long something may take to be seen: the page looks every two seconds.
const patience = 30 * time.Second

// tab is a page in a browser context of its own: nobody else's storage, logins or windows.
type tab struct {
	t       *testing.T
	browser *browser
	session string
	origin  string

	mu sync.Mutex
	// complaints are errors and warnings on the console, refusals by the content security policy among them.
	complaints []string
	// tolerated are parts of complaints that the test has asked for.
	tolerated []string
	requests  []string
}

// open makes a tab and goes to the page of a server. When the test ends, whatever the browser complained about
// and every request to somebody else fails it.
func open(t *testing.T, url, hash string) *tab {
	t.Helper()
	p := newTab(t, url)
	if failed := p.navigate(url + "/ui" + hash); failed != "" {
		t.Fatalf("%s: %s", url, failed)
	}
	return p
}

func newTab(t *testing.T, origin string) *tab {
	t.Helper()
	b := theBrowser(t)
	p := &tab{t: t, browser: b, origin: origin}
	var made struct {
		BrowserContextID string `json:"browserContextId"`
		TargetID         string `json:"targetId"`
		SessionID        string `json:"sessionId"`
	}
	type object = map[string]any
	p.must(b.call("", "Target.createBrowserContext", object{}, &made))
	p.must(b.call("", "Target.createTarget", object{
		"url": "about:blank", "browserContextId": made.BrowserContextID, "newWindow": true,
	}, &made))
	p.must(b.call("", "Target.attachToTarget", object{"targetId": made.TargetID, "flatten": true}, &made))
	p.session = made.SessionID
	b.mu.Lock()
	b.sessions[p.session] = p.event
	b.mu.Unlock()
	t.Cleanup(func() {
		p.judge()
		_ = b.call("", "Target.disposeBrowserContext", object{"browserContextId": made.BrowserContextID}, nil)
		b.mu.Lock()
		delete(b.sessions, p.session)
		b.mu.Unlock()
	})
	for _, domain := range []string{"Page", "Runtime", "Log", "Network", "Accessibility"} {
		p.call(domain+".enable", nil, nil)
	}
	p.call("Security.setIgnoreCertificateErrors", object{"ignore": true}, nil)
	p.call("Emulation.setFocusEmulationEnabled", object{"enabled": true}, nil)
	p.size(1280, 800)
	p.scheme("light")
	return p
}

func (p *tab) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *tab) call(method string, params map[string]any, out any) {
	p.t.Helper()
	if params == nil {
		params = map[string]any{}
	}
	p.must(p.browser.call(p.session, method, params, out))
}

// event notes what the browser tells of.
func (p *tab) event(got message) {
	var told struct {
		Request struct{ URL string }
		Entry   struct{ Level, Source, Text, URL string }
		Type    string
		Args    []struct{ Value, Description any }
		Details struct {
			Text      string
			Exception struct{ Description string }
		} `json:"exceptionDetails"`
	}
	if json.Unmarshal(got.Params, &told) != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch got.Method {
	case "Network.requestWillBeSent", "Network.webSocketCreated":
		p.requests = append(p.requests, told.Request.URL)
	case "Log.entryAdded":
		if told.Entry.Level == "error" || told.Entry.Level == "warning" {
			p.complaints = append(p.complaints, fmt.Sprintf("%s: %s (%s)", told.Entry.Source, told.Entry.Text, told.Entry.URL))
		}
	case "Runtime.exceptionThrown":
		p.complaints = append(p.complaints, "exception: "+told.Details.Text+" "+told.Details.Exception.Description)
	case "Runtime.consoleAPICalled":
		if slices.Contains([]string{"error", "warning", "assert"}, told.Type) {
			p.complaints = append(p.complaints, fmt.Sprintf("console: %v", told.Args))
		}
	}
}

// tolerate is for complaints that the test provokes.
func (p *tab) tolerate(texts ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tolerated = append(p.tolerated, texts...)
}

func (p *tab) judge() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, complaint := range p.complaints {
		if !slices.ContainsFunc(p.tolerated, func(text string) bool { return strings.Contains(complaint, text) }) {
			p.t.Errorf("the browser complains: %s", complaint)
		}
	}
	for _, url := range p.requests {
		own := strings.HasPrefix(url, p.origin+"/ui") || strings.HasPrefix(url, "data:") || url == "about:blank"
		if !own && !slices.ContainsFunc(p.tolerated, func(text string) bool { return strings.Contains(url, text) }) {
			p.t.Errorf("the page asked for %s", url)
		}
	}
}

// navigate goes to a URL and returns why that failed, if it did.
func (p *tab) navigate(url string) string {
	p.t.Helper()
	var told struct {
		ErrorText string `json:"errorText"`
	}
	p.call("Page.navigate", map[string]any{"url": url}, &told)
	if told.ErrorText == "" {
		p.eventually("loaded", `document.readyState === "complete"`)
	}
	return told.ErrorText
}

// eval evaluates an expression, awaiting it if it is a promise, and decodes what it gives.
func (p *tab) eval(expression string, out any) {
	p.t.Helper()
	p.must(p.try(expression, out))
}

func (p *tab) try(expression string, out any) error {
	var told struct {
		Result struct {
			Value json.RawMessage `json:"value"`
		} `json:"result"`
		Details *struct {
			Text      string `json:"text"`
			Exception struct {
				Description string `json:"description"`
			} `json:"exception"`
		} `json:"exceptionDetails"`
	}
	err := p.browser.call(p.session, "Runtime.evaluate", map[string]any{
		"expression": expression, "returnByValue": true, "awaitPromise": true,
	}, &told)
	if err != nil {
		return err
	}
	if told.Details != nil {
		return fmt.Errorf("%s: %s %s", expression, told.Details.Text, told.Details.Exception.Description)
	}
	if out == nil {
		return nil
	}
	if len(told.Result.Value) == 0 {
		return fmt.Errorf("%s: nothing", expression)
	}
	return json.Unmarshal(told.Result.Value, out)
}

// truth makes a promise of true or false of an expression, which may be a promise itself.
func truth(expression string) string {
	return "(async () => !!(await (" + expression + ")))()"
}

// eventually waits until an expression is true.
func (p *tab) eventually(what, expression string) {
	p.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		var is bool
		err := p.try(truth(expression), &is)
		if err == nil && is {
			return
		}
		if time.Now().After(deadline) {
			p.shot("failed")
			p.t.Fatalf("%s: not within %v (%v). The page says:\n%s", what, patience, err, p.text("body"))
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// holds fails the test unless an expression is true now.
func (p *tab) holds(what, expression string) {
	p.t.Helper()
	var is bool
	p.eval(truth(expression), &is)
	if !is {
		p.shot("failed")
		p.t.Fatalf("%s does not hold. The page says:\n%s", what, p.text("body"))
	}
}

// shows waits until a visible element has a text in what it shows.
func (p *tab) shows(selector, text string) {
	p.t.Helper()
	p.eventually(fmt.Sprintf("%s shows %q", selector, text), fmt.Sprintf(
		`[...document.querySelectorAll(%s)].some((e) => e.checkVisibility() && e.innerText.includes(%s))`, quote(selector), quote(text)))
}

// hides waits until no visible element has a text.
func (p *tab) hides(selector, text string) {
	p.t.Helper()
	p.eventually(fmt.Sprintf("%s does not show %q", selector, text), fmt.Sprintf(
		`![...document.querySelectorAll(%s)].some((e) => e.checkVisibility() && e.innerText.includes(%s))`, quote(selector), quote(text)))
}

// text is what the first element of a selector shows.
func (p *tab) text(selector string) string {
	p.t.Helper()
	var text string
	p.eval(fmt.Sprintf(`(document.querySelector(%s) || {innerText: ""}).innerText`, quote(selector)), &text)
	return text
}

// texts are what all elements of a selector show.
func (p *tab) texts(selector string) []string {
	p.t.Helper()
	var texts []string
	p.eval(fmt.Sprintf(`[...document.querySelectorAll(%s)].map((e) => e.innerText)`, quote(selector)), &texts)
	return texts
}

// click presses the mouse on the first visible element of a selector that has a text.
func (p *tab) click(selector, text string) {
	p.t.Helper()
	find := fmt.Sprintf(`[...document.querySelectorAll(%s)].find((e) => e.checkVisibility() && e.innerText.includes(%s))`, quote(selector), quote(text))
	p.eventually(fmt.Sprintf("there is %q in %s", text, selector), find)
	var at struct {
		X, Y float64
		Hit  bool
	}
	p.eval(`(() => { const e = `+find+`; e.scrollIntoView({block: "center"});
		const r = e.getClientRects()[0], x = r.left + Math.min(r.width / 2, 40), y = r.top + r.height / 2;
		const hit = document.elementFromPoint(x, y);
		return {x, y, hit: e === hit || e.contains(hit)}; })()`, &at)
	if !at.Hit {
		p.t.Fatalf("%q in %s is covered by something", text, selector)
	}
	for _, kind := range []string{"mousePressed", "mouseReleased"} {
		p.call("Input.dispatchMouseEvent", map[string]any{
			"type": kind, "x": at.X, "y": at.Y, "button": "left", "clickCount": 1,
		}, nil)
	}
}

// keyCodes are of the keys that the tests press.
var keyCodes = map[string]struct {
	code int
	text string
}{"Tab": {9, ""}, "Enter": {13, "\r"}, "Space": {32, " "}, "Escape": {27, ""}}

// press presses a key by name.
func (p *tab) press(name string) {
	p.t.Helper()
	key := keyCodes[name]
	event := map[string]any{"key": name, "code": name, "windowsVirtualKeyCode": key.code}
	if name == "Space" {
		event["key"] = " "
	}
	down := map[string]any{"type": "keyDown", "text": key.text}
	if key.text == "" {
		down = map[string]any{"type": "rawKeyDown"}
	}
	for _, more := range []map[string]any{down, {"type": "keyUp"}} {
		for name, value := range event {
			more[name] = value
		}
		p.call("Input.dispatchKeyEvent", more, nil)
	}
}

// enter replaces the text of the field that a selector names.
func (p *tab) enter(selector, text string) {
	p.t.Helper()
	p.eventually(selector, fmt.Sprintf(`document.querySelector(%s)?.checkVisibility()`, quote(selector)))
	p.eval(fmt.Sprintf(`(() => { const e = document.querySelector(%s); e.focus(); e.select(); })()`, quote(selector)), nil)
	p.call("Input.insertText", map[string]any{"text": text}, nil)
}

// size is that of the window's inside, in CSS pixels.
func (p *tab) size(width, height int) {
	p.t.Helper()
	p.call("Emulation.setDeviceMetricsOverride", map[string]any{
		"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600,
	}, nil)
}

// scheme is light or dark.
func (p *tab) scheme(name string) {
	p.t.Helper()
	p.call("Emulation.setEmulatedMedia", map[string]any{
		"features": []map[string]any{{"name": "prefers-color-scheme", "value": name}},
	}, nil)
}

// shot saves what is seen as NAME.png among the test's artifacts.
func (p *tab) shot(name string) {
	p.t.Helper()
	var told struct {
		Data string `json:"data"`
	}
	p.call("Page.captureScreenshot", map[string]any{"format": "png", "optimizeForSpeed": false}, &told)
	image, err := base64.StdEncoding.DecodeString(told.Data)
	p.must(err)
	if len(image) < 2000 {
		p.t.Errorf("a picture of %d bytes", len(image))
	}
	p.must(os.WriteFile(filepath.Join(p.t.ArtifactDir(), name+".png"), image, 0o644))
}

func quote(text string) string {
	quoted, _ := json.Marshal(text)
	return string(quoted)
}

// ours starts a server with the page. etcd has none.
func ours(t *testing.T, flags ...string) *harness.Server {
	t.Helper()
	if !harness.CurrentSubject(t).IsOurs() {
		t.Skip("etcd has no such page")
	}
	return harness.Start(t, append([]string{"--enable-ui"}, flags...)...)
}
