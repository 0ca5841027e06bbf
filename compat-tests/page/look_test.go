package pagesuite

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"leaseway/compat-tests/harness"
)

// furnish fills a server with what is found in real ones.
func furnish(t *testing.T, server *harness.Server) {
	t.Helper()
	client := server.Client()
	for number := range 24 {
		put(t, client, fmt.Sprintf("/registry/pods/default/web-%d", number), fmt.Sprintf(
			`{"kind":"Pod","metadata":{"name":"web-%d","namespace":"default","labels":{"app":"web"}},"spec":{"nodeName":"node-%d"}}`, number, number%3))
	}
	put(t, client, "/registry/configmaps/kube-system/a-config-map-with-a-name-that-is-quite-long-as-they-are-made-by-tools-5f9c7d", "k8s\x00\n\x0fbinary")
	put(t, client, "greeting", "hello")
	session := grant(t, client, 90)
	put(t, client, "services/api/10.0.0.1:8080", `{"port":8080}`, clientv3.WithLease(session))
	put(t, client, "services/api/10.0.0.2:8080", `{"port":8080}`, clientv3.WithLease(session))
	put(t, client, "locks/nightly", "worker-7", clientv3.WithLease(grant(t, client, 3600)))
	ctx := t.Context()
	client.Watch(ctx, "/registry/pods/", clientv3.WithPrefix())
	client.Watch(ctx, "services/", clientv3.WithPrefix())
	client.Watch(ctx, "greeting")
}

// views are addresses, each with something that is there once the view is.
func views() []struct{ name, hash, there string } {
	return []struct{ name, hash, there string }{
		{"keys", "", "services/"},
		{"key", keyHash("/registry/pods/default/", "/registry/pods/default/web-13"), `"nodeName"`},
		{"long-name", keyHash("/registry/configmaps/kube-system/",
			"/registry/configmaps/kube-system/a-config-map-with-a-name-that-is-quite-long-as-they-are-made-by-tools-5f9c7d"), "6b 38 73"},
		{"leases", "#leases", "locks/nightly"},
		{"watchers", "#watchers", "services/*"},
		{"members", "#members", "this one"},
	}
}

// contrast finds texts that are hard to read: WCAG 2's ratio against what is behind them is below 4.5.
const contrast = `(() => {
	const parse = (text) => (text.match(/[\d.]+/g) || []).map(Number);
	const light = ([r, g, b]) => [r, g, b].map((c) => c / 255).map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
		.reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
	const behind = (e) => {
		for (; e; e = e.parentElement) {
			const style = getComputedStyle(e).backgroundColor, colour = parse(style);
			if (style.startsWith("rgb") && (colour.length === 3 || colour[3] === 1)) return colour;
		}
		return [255, 255, 255];
	};
	const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), poor = [];
	while (walk.nextNode()) {
		const e = walk.currentNode.parentElement;
		if (!walk.currentNode.data.trim() || !e.checkVisibility()) continue;
		const [a, b] = [light(parse(getComputedStyle(e).color)), light(behind(e))];
		const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
		if (ratio < 4.5) poor.push(walk.currentNode.data.trim() + ": " + ratio.toFixed(2));
	}
	return poor;
})()`

// TestLooks: every view on wide and narrow screens, light and dark: nothing sticks out, everything can be read.
// The pictures are for people to look at.
func TestLooks(t *testing.T) {
	t.Parallel()
	server := ours(t, "--name=looked-at")
	furnish(t, server)
	p := open(t, server.URL(), "")
	p.eventually("the tab is named after the server", `document.title === "looked-at \u00b7 Leaseway"`)
	for _, view := range views() {
		p.size(1280, 800)
		p.scheme("light")
		p.navigate("about:blank")
		p.navigate(server.URL() + "/ui" + view.hash)
		p.shows("#view", view.there)
		for _, scheme := range []string{"light", "dark"} {
			p.scheme(scheme)
			var poor []string
			p.eval(contrast, &poor)
			if len(poor) > 0 {
				t.Errorf("%s, %s, is hard to read: %q", view.name, scheme, poor)
			}
			p.shot(view.name + "-" + scheme)
		}
		p.scheme("light")
		for _, width := range []int{1920, 1024, 768, 390, 320} {
			p.size(width, 800)
			var inside struct{ Content, Window int }
			p.eval(`({content: document.documentElement.scrollWidth, window: innerWidth})`, &inside)
			if inside.Content > width || inside.Window != width {
				t.Errorf("%s at %d pixels is %d wide in a window of %d", view.name, width, inside.Content, inside.Window)
				p.shot(fmt.Sprintf("%s-%d", view.name, width))
			}
			if width == 390 {
				p.shot(view.name + "-narrow")
			}
		}
	}
}

// node is what a screen reader is told of.
type node struct {
	Ignored    bool
	Role, Name struct{ Value any }
}

// TestForEverybody: what a screen reader needs is there, and everything can be done without a mouse.
func TestForEverybody(t *testing.T) {
	t.Parallel()
	server := ours(t)
	furnish(t, server)
	p := open(t, server.URL(), keyHash("/registry/pods/default/", "/registry/pods/default/web-13"))
	p.shows(value, "nodeName")
	p.holds("language and title", `document.documentElement.lang === "en" && document.title.includes("Leaseway")`)
	var tree struct{ Nodes []node }
	p.call("Accessibility.getFullAXTree", nil, &tree)
	roles := map[string][]string{}
	for _, each := range tree.Nodes {
		if !each.Ignored {
			role := fmt.Sprint(each.Role.Value)
			roles[role] = append(roles[role], fmt.Sprint(each.Name.Value))
		}
	}
	for _, role := range []string{"button", "link", "textbox", "checkbox", "table", "progressbar", "navigation"} {
		if role != "progressbar" && len(roles[role]) == 0 {
			t.Errorf("there is no %s: %v", role, roles)
		}
		for _, name := range roles[role] {
			if strings.TrimSpace(name) == "" || name == "<nil>" {
				t.Errorf("a %s has no name", role)
			}
		}
	}
	if len(roles["columnheader"]) != 5 || len(roles["main"]) != 1 || len(roles["banner"]) != 1 {
		t.Errorf("headers, main or banner: %v", roles)
	}
	if !slices.Contains(roles["heading"], "Leaseway") {
		t.Errorf("headings: %q", roles["heading"])
	}

	p.navigate("about:blank")
	p.navigate(server.URL() + "/ui")
	p.shows(names, "greeting")
	// From the top with the tab key, to a key in the list.
	var stops []string
	focused := func() string {
		var told struct {
			Text string
			Seen bool
		}
		p.eval(`(() => { const e = document.activeElement, s = getComputedStyle(e);
			return {text: e.innerText || e.getAttribute("aria-label") || e.type || e.tagName, seen: s.outlineStyle !== "none" && parseFloat(s.outlineWidth) >= 1}; })()`, &told)
		if !told.Seen {
			t.Errorf("%q does not show that it has the focus", told.Text)
		}
		return told.Text
	}
	for range 20 {
		p.press("Tab")
		stops = append(stops, focused())
		if stops[len(stops)-1] == "greeting" {
			break
		}
	}
	for _, stop := range []string{"Keys", "Leases", "Watchers", "Members", "Keys that begin with", "Go", "checkbox", "all keys", "greeting"} {
		if !slices.Contains(stops, stop) {
			t.Fatalf("the tab key does not come to %q: %q", stop, stops)
		}
	}
	p.press("Enter")
	p.shows(value, "hello")
	// It stays there while the page goes on looking, and escape goes back to it.
	for _, text := range []string{"hello again", "and again"} {
		put(t, server.Client(), "greeting", text)
		p.shows(value, text)
		p.holds("the focus stays", `document.activeElement.innerText === "greeting"`)
	}
	p.press("Tab")
	p.press("Escape")
	p.eventually("the key is closed", `!document.querySelector(".detail")`)
	p.holds("back at the key", `document.activeElement.innerText === "greeting"`)

	// The same in leases, whose times are drawn twice a second.
	p.eval(`location.hash = "#leases"`, nil)
	p.shows(rows, "locks/nightly")
	p.eval(`[...document.querySelectorAll("#view a")].find((e) => e.innerText === "locks/nightly").focus()`, nil)
	var before string
	p.eval(`document.querySelector("td.time").innerText`, &before)
	p.eventually("time passes", `document.querySelector("td.time").innerText !== `+quote(before))
	p.holds("the focus stays", `document.activeElement.innerText === "locks/nightly"`)
	p.press("Enter")
	p.shows(value, "worker-7")
}
