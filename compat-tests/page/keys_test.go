package pagesuite

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"leaseway/compat-tests/harness"
)

const (
	rows  = "#view tbody tr"
	names = "#view tbody td.name"
	field = "input.key"
	value = ".detail pre"
)

func put(t *testing.T, client *clientv3.Client, key, value string, options ...clientv3.OpOption) {
	t.Helper()
	if _, err := client.Put(harness.Context(t, patience), key, value, options...); err != nil {
		t.Fatal(err)
	}
}

// keyHash is the address of a folder and of a key in it.
func keyHash(prefix, key string) string {
	encode := base64.RawURLEncoding.EncodeToString
	return "#keys/" + encode([]byte(prefix)) + "/" + encode([]byte(key))
}

func listed(p *tab, want ...string) {
	p.t.Helper()
	encoded, _ := json.Marshal(want)
	p.eventually(fmt.Sprintf("the list is %s", encoded), fmt.Sprintf(
		`JSON.stringify([...document.querySelectorAll("%s")].map((e) => e.innerText)) === JSON.stringify(%s)`, names, encoded))
}

// TestOffByDefault: unless it is asked for, the page is as unknown as to etcd.
func TestOffByDefault(t *testing.T) {
	t.Parallel()
	server := harness.Start(t)
	for _, path := range []string{"/ui", "/ui/", "/ui/api/status", "/ui/api/keys"} {
		request, err := http.NewRequest("GET", server.URL()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("X-Leaseway-Ui", "1")
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		if answer.StatusCode != 404 || string(body) != "404 page not found\n" {
			t.Errorf("%s: %d %q", path, answer.StatusCode, body)
		}
	}
}

func TestKeysByFolder(t *testing.T) {
	t.Parallel()
	server := ours(t)
	client := server.Client()
	for _, key := range []string{"/registry/pods/default/a", "/registry/pods/default/b", "/registry/version", "plain"} {
		put(t, client, key, "value of "+key)
	}
	p := open(t, server.URL(), "")
	listed(p, "/registry/", "plain")
	p.shows("#view", "4 keys")
	p.click(names+" a", "/registry/")
	listed(p, "pods/", "version")
	p.click(names+" a", "pods/")
	listed(p, "default/")
	p.click(names+" a", "default/")
	listed(p, "a", "b")
	p.shows("#view", "2 keys")
	if got := p.text(".path"); strings.Join(strings.Fields(got), " ") != "all keys/registry/pods/default/" &&
		strings.ReplaceAll(strings.ReplaceAll(got, "\n", ""), " ", "") != "allkeys/registry/pods/default/" {
		t.Errorf("the path is %q", got)
	}
	p.click(names+" a", "b")
	p.shows(value, "value of /registry/pods/default/b")
	p.shows(".detail", "/registry/pods/default/b")
	p.holds("only the chosen row is marked", `[...document.querySelectorAll("tr.chosen")].map((e) => e.cells[0].innerText).join() === "b"`)
	p.click(".path a", "pods/")
	listed(p, "default/")
	p.click("label.check", "no folders")
	listed(p, "default/a", "default/b")
	p.click("label.check", "no folders")
	p.enter(field, "/registry/v")
	p.press("Enter")
	listed(p, "ersion")
	p.holds("the field keeps what was typed and the focus", `document.activeElement.value === "/registry/v"`)
	p.enter(field, "nothing")
	p.press("Enter")
	p.shows("#view", "No key begins with this.")
	p.enter(field, "")
	p.press("Enter")
	listed(p, "/registry/", "plain")
	// The browser's way back.
	p.eval(`history.back()`, nil)
	p.shows("#view", "No key begins with this.")
}

// TestManyKeys: a page has a hundred; the others come when they are asked for, and stay when something changes.
func TestManyKeys(t *testing.T) {
	t.Parallel()
	server := ours(t)
	client := server.Client()
	const many = 250
	for from := 0; from < many; from += 50 {
		var puts []clientv3.Op
		for number := from; number < from+50; number++ {
			puts = append(puts, clientv3.OpPut(fmt.Sprintf("many/%04d", number), "v"))
		}
		if _, err := client.Txn(harness.Context(t, patience)).Then(puts...).Commit(); err != nil {
			t.Fatal(err)
		}
	}
	p := open(t, server.URL(), keyHash("many/", ""))
	count := func(want int) {
		t.Helper()
		p.eventually(fmt.Sprintf("%d rows", want), fmt.Sprintf(`document.querySelectorAll("%s").length === %d`, rows, want))
	}
	count(100)
	p.shows("#view", "250 keys")
	p.click("button", "Show more")
	count(200)
	p.click("button", "Show more")
	count(250)
	p.holds("nothing more is offered", `![...document.querySelectorAll("button")].some((e) => e.innerText === "Show more")`)
	want := make([]string, many)
	for number := range want {
		want[number] = fmt.Sprintf("%04d", number)
	}
	if got := p.texts(names); !slices.Equal(got, want) {
		t.Fatalf("the list is %q", got)
	}
	put(t, client, "many/0000a", "v")
	count(251)
	p.shows("#view", "251 keys")
	p.click(names+" a", "0249")
	p.shows(".detail", "many/0249")
}

// TestBytes: keys and values need not be text.
func TestBytes(t *testing.T) {
	t.Parallel()
	server := ours(t)
	client := server.Client()
	put(t, client, "\x00", "first")
	put(t, client, "\xff\xfe/\x01", "last\x00\xff")
	put(t, client, "bin/\x80\x00", strings.Repeat("\xab", 6000))
	put(t, client, "turned\u202eback", "v")
	put(t, client, "snow/\u2603", "\u2603")
	p := open(t, server.URL(), "")
	listed(p, `\u0000`, `bin/`, `snow/`, `turned\u202eback`, `\xff\xfe/`)
	p.click(names+" a", `\u0000`)
	p.shows(value, "first")
	p.click(names+" a", `\xff\xfe/`)
	listed(p, `\u0001`)
	p.click(names+" a", `\u0001`)
	p.shows(".detail", `\xff\xfe/\x01`)
	p.shows(value, "000000  6c 61 73 74 00 ff")
	p.shows(".detail dl", "6 B of bytes")
	p.click(".path a", "all keys")
	p.click(names+" a", "snow/")
	p.click(names+" a", "\u2603")
	p.shows(value, "\u2603")
	p.shows(".detail dl", "3 B of text")
	p.navigate(server.URL() + "/ui" + keyHash("bin/", "bin/\x80\x00"))
	p.shows(".detail", `bin/\x80\x00`)
	p.shows(value, "000ff0  ab ab")
	p.holds("a long dump ends", `document.querySelector(".detail pre").innerText.trim().endsWith("\u2026")`)
	// Nonsense in the address is everything, and no error.
	// So are names that every object has in JavaScript.
	for _, hash := range []string{"#keys/!!!/???", "#__proto__", "#constructor/x"} {
		p.navigate("about:blank")
		p.navigate(server.URL() + "/ui" + hash)
		listed(p, `\u0000`, `bin/`, `snow/`, `turned\u202eback`, `\xff\xfe/`)
	}
	put(t, client, "later", "v")
	listed(p, `\u0000`, `bin/`, "later", `snow/`, `turned\u202eback`, `\xff\xfe/`)
}

// TestValuesAreText: whatever is in keys and values is shown and never becomes a part of the page.
func TestValuesAreText(t *testing.T) {
	t.Parallel()
	server := ours(t)
	client := server.Client()
	const evilKey = `<img src=x onerror="window.owned=1">`
	const evilValue = `</pre><script>window.owned=1</script><svg onload="window.owned=1">` + "\n" + `<a href="javascript:window.owned=1">x</a>`
	put(t, client, evilKey, evilValue)
	put(t, client, "folder<script>window.owned=1</script>/k", "v")
	put(t, client, "json", `{"a":[1,{"b":"<b>bold</b>"}]}`)
	put(t, client, "empty", "")
	put(t, client, "large", strings.Repeat("line of text\n", 10_000))
	granted, err := client.Grant(harness.Context(t, patience), 1000)
	if err != nil {
		t.Fatal(err)
	}
	put(t, client, evilKey+"leased", "v", clientv3.WithLease(granted.ID))
	client.Watch(harness.Context(t, 10*time.Minute), evilKey)

	p := open(t, server.URL(), "")
	p.shows(names, evilKey)
	p.shows(names, "folder<script>window.owned=1<")
	var before int
	p.eval(`document.querySelectorAll("script, style, link, meta").length`, &before)
	p.click(names+" a", evilKey)
	p.eventually("the value is shown as it is", `document.querySelector(".detail pre")?.textContent === `+quote(evilValue))
	p.shot("values-are-text")
	for _, view := range []string{"#leases", "#watchers", "#members", keyHash(evilKey, evilKey)} {
		p.eval(`location.hash = `+quote(view), nil)
		if view != "#members" {
			p.shows("#view", evilKey)
		} else {
			p.shows("#view", "this one")
		}
		p.holds("nothing became an element", `!document.querySelector("#view img, #view script, #view svg, #view b, #view [onerror]")`)
	}
	p.holds("nothing ran", fmt.Sprintf(`window.owned === undefined && document.querySelectorAll("script, style, link, meta").length === %d`, before))

	p.navigate(server.URL() + "/ui" + keyHash("", "json"))
	p.eventually("JSON is indented", `document.querySelector(".detail pre")?.textContent === JSON.stringify({a: [1, {b: "<b>bold</b>"}]}, null, 2)`)
	p.eval(`location.hash = `+quote(keyHash("", "empty")), nil)
	p.shows(".detail", "The value is empty.")
	p.eval(`location.hash = `+quote(keyHash("", "large")), nil)
	p.shows(".detail dl", "127 KiB of text, the first 64.0 KiB shown")
	p.eval(`location.hash = `+quote(keyHash("", "not there")), nil)
	p.shows(".detail", "This key does not exist.")
}

// TestLiveUpdate: the page follows the server without being loaded again, and lets alone what somebody is at.
func TestLiveUpdate(t *testing.T) {
	t.Parallel()
	server := ours(t)
	client := server.Client()
	put(t, client, "b", "old")
	p := open(t, server.URL(), keyHash("", "b"))
	p.eval(`window.loadedOnce = true`, nil)
	listed(p, "b")
	p.shows(value, "old")
	p.shows("#pulse", "live")

	// Somebody types, and has selected something.
	p.enter(field, "half a pre")
	p.eval(`getSelection().selectAllChildren(document.querySelector("td.name a"))`, nil)
	p.eval(`window.row = document.querySelector("tbody tr"); document.querySelector("`+field+`").focus()`, nil)
	put(t, client, "a", "v")
	put(t, client, "c", "v")
	put(t, client, "b", "new")
	listed(p, "a", "b", "c")
	p.shows(value, "new")
	p.shows("#view", "3 keys")
	p.holds("the row is the one it was", `window.row.isConnected && window.row.cells[0].innerText === "b"`)
	p.holds("what was typed is there", `document.activeElement.value === "half a pre"`)
	p.shows("#figures", "5")

	ctx := harness.Context(t, patience)
	if _, err := client.Delete(ctx, "b"); err != nil {
		t.Fatal(err)
	}
	listed(p, "a", "c")
	p.shows(".detail", "This key does not exist.")

	granted, err := client.Grant(ctx, 2)
	if err != nil {
		t.Fatal(err)
	}
	put(t, client, "short", "v", clientv3.WithLease(granted.ID))
	listed(p, "a", "c", "short")
	listed(p, "a", "c")

	// Away and back.
	p.tolerate("ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE", "ERR_CONNECTION_CLOSED",
		"ERR_INCOMPLETE_CHUNKED_ENCODING", "status of 503")
	server.Stop()
	p.shows("#pulse", "not connected")
	p.shows("#trouble", "the server does not answer")
	p.shot("not-connected")
	server.Resume()
	p.shows("#pulse", "live")
	p.hides("#trouble", "answer")
	put(t, server.Client(), "back", "v")
	listed(p, "a", "back", "c")
	p.holds("it was never loaded again", `window.loadedOnce`)
}
