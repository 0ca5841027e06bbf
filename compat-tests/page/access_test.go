package pagesuite

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"leaseway/compat-tests/harness"
)

// people makes root, and ann who may read what begins with ann/.
func people(t *testing.T, client *clientv3.Client) {
	t.Helper()
	ctx := harness.Context(t, patience)
	for _, step := range []func() error{
		func() error { _, err := client.RoleAdd(ctx, "reads"); return err },
		func() error {
			_, err := client.RoleGrantPermission(ctx, "reads", "ann/", "ann0", clientv3.PermissionType(clientv3.PermRead))
			return err
		},
		func() error { _, err := client.UserAdd(ctx, "root", "root's"); return err },
		func() error { _, err := client.UserAdd(ctx, "ann", "ann's: \u00e4"); return err },
		func() error { _, err := client.UserGrantRole(ctx, "root", "root"); return err },
		func() error { _, err := client.UserGrantRole(ctx, "ann", "reads"); return err },
		func() error { _, err := client.AuthEnable(ctx); return err },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
}

func (p *tab) logIn(name, password string) {
	p.t.Helper()
	p.shows("#login", "Log in")
	p.enter("#login-name", name)
	p.enter("#login-password", password)
	p.press("Enter")
}

// TestLogin: with authentication on, everybody sees what they may read, and nobody what somebody else has seen.
func TestLogin(t *testing.T) {
	t.Parallel()
	server := ours(t, "--bcrypt-cost=4")
	client := server.Client()
	put(t, client, "ann/own", "hers")
	put(t, client, "secret", "not hers")
	lease := grant(t, client, 1000)
	put(t, client, "secret/leased", "not hers", clientv3.WithLease(lease))
	people(t, client)

	p := open(t, server.URL(), keyHash("", "secret"))
	p.tolerate("status of 400", "status of 401", "status of 403")
	p.shows("#pulse", "waiting for a login")
	p.holds("nothing is shown before", `!document.getElementById("inside").checkVisibility() && !document.body.innerText.includes("secret")`)
	p.holds("the field for the name has the focus", `document.activeElement.id === "login-name"`)
	p.shot("login")
	p.logIn("ann", "wrong")
	p.shows("#login-error", "etcdserver: authentication failed, invalid user ID or password")
	p.logIn("nobody", "wrong")
	p.shows("#login-error", "etcdserver: authentication failed, invalid user ID or password")
	p.logIn("ann", "ann's: \u00e4")
	p.shows("#user", "ann")
	p.hides("#login", "Log in")
	p.shows("#view .card", "etcdserver: permission denied")
	p.shows(".detail", "etcdserver: permission denied")
	p.holds("no key of others", `!document.getElementById("view").innerText.includes("not hers")`)
	p.enter(field, "ann/")
	p.press("Enter")
	listed(p, "own")
	p.click(names+" a", "own")
	p.shows(value, "hers")
	for _, view := range []string{"Leases", "Watchers"} {
		p.click("nav a", view)
		p.shows("#view", "permission denied")
		p.holds("nothing of others", `!document.getElementById("view").innerText.includes("secret")`)
	}
	p.click("nav a", "Members")
	p.shows(rows, "this one")

	// The tab keeps the token over a reload; nothing else does.
	p.eval(`window.before = true`, nil)
	p.call("Page.reload", nil, nil)
	p.eventually("it is loaded again", `window.before === undefined`)
	p.shows("#user", "ann")
	p.holds("no password, cookie or lasting storage", `document.cookie === "" && localStorage.length === 0 &&
		!JSON.stringify(sessionStorage).includes("ann's") && !location.href.includes(sessionStorage.getItem("leaseway-token"))`)

	p.click("#logout", "Log out")
	p.shows("#login", "Log in")
	p.holds("the token is forgotten", `sessionStorage.length === 0`)
	p.eval(`location.hash = `+quote(keyHash("", "secret")), nil)
	p.logIn("root", "root's")
	p.shows("#user", "root")
	p.shows(value, "not hers")
	p.click("nav a", "Leases")
	p.shows(rows, "secret/leased")
	p.eval(`location.hash = `+quote(keyHash("", "secret")), nil)
	p.shows(value, "not hers")

	// Who comes after root at the same screen sees nothing of what root saw, not even for a moment.
	p.click("#logout", "Log out")
	p.shows("#login", "Log in")
	p.eval(`new MutationObserver(() => { window.leaked ||= document.getElementById("view").textContent.includes("not hers"); })
		.observe(document.body, { subtree: true, childList: true, characterData: true })`, nil)
	p.logIn("ann", "ann's: \u00e4")
	p.shows("#user", "ann")
	p.shows(".detail", "permission denied")
	p.holds("nothing of root's was shown", `!window.leaked && !document.documentElement.outerHTML.includes("not hers")`)

	// What she may see changes, and nothing else does.
	root := server.ClientWith(clientv3.Config{Username: "root", Password: "root's"})
	ctx := harness.Context(t, patience)
	if _, err := root.RoleGrantPermission(ctx, "reads", "secret", "", clientv3.PermissionType(clientv3.PermRead)); err != nil {
		t.Fatal(err)
	}
	p.shows(value, "not hers")
	if _, err := root.RoleRevokePermission(ctx, "reads", "secret", ""); err != nil {
		t.Fatal(err)
	}
	p.shows(".detail", "permission denied")

	// A tab of its own is somebody of its own.
	q := open(t, server.URL(), "")
	q.tolerate("status of 400")
	q.shows("#login", "Log in")

	// Somebody who is deleted is out.
	if _, err := root.UserDelete(ctx, "ann"); err != nil {
		t.Fatal(err)
	}
	p.shows("#login", "Log in")
}

// bridge takes plain connections and passes them on by TLS, as a browser with these certificates does.
func bridge(t *testing.T, target string, config *tls.Config) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			plain, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer plain.Close()
				secure, err := tls.Dial("tcp", target, config)
				if err != nil {
					return
				}
				defer secure.Close()
				go func() {
					_, _ = io.Copy(secure, plain)
					secure.Close()
				}()
				_, _ = io.Copy(plain, secure)
			}()
		}
	}()
	return "http://" + listener.Addr().String()
}

func TestTLS(t *testing.T) {
	t.Parallel()
	authority := harness.NewAuthority(t)
	server := ours(t, authority.ServerFlags()...)
	client := server.ClientWith(clientv3.Config{TLS: authority.Client()})
	put(t, client, "k", "over TLS")
	p := open(t, server.URL(), keyHash("", "k"))
	p.shows(value, "over TLS")
	p.holds("by HTTP/2", `((all) => all.length > 0 && all.every((e) => e.nextHopProtocol === "h2"))(performance.getEntriesByType("resource"))`)
	put(t, client, "k", "changed")
	p.shows(value, "changed")
}

// TestClientCertificates: without one there is no page, and the name in one is somebody's.
func TestClientCertificates(t *testing.T) {
	t.Parallel()
	authority := harness.NewAuthority(t)
	flags := append(authority.ServerFlags(), "--client-cert-auth", "--trusted-ca-file="+authority.File, "--bcrypt-cost=4")
	server := ours(t, flags...)
	ann := authority.Client(authority.Issue("ann"))
	client := server.ClientWith(clientv3.Config{TLS: authority.Client(authority.Issue("operator"))})
	put(t, client, "ann/own", "hers")
	put(t, client, "secret", "not hers")

	without := newTab(t, server.URL())
	without.tolerate("ERR_", "chrome-error:")
	// With TLS 1.3 the browser may have sent its request by the time it is refused, and finds the connection closed.
	if failed := without.navigate(server.URL() + "/ui"); !strings.Contains(failed, "ERR_") {
		t.Errorf("without a certificate: %q", failed)
	}
	p := open(t, bridge(t, server.Endpoint, ann), keyHash("", "secret"))
	p.shows(value, "not hers")
	p.holds("nobody is logged in", `!document.getElementById("user").checkVisibility()`)
	p.tolerate("status of 400", "status of 401", "status of 403")
	people(t, client)
	p.shows("#user", "ann")
	p.shows(".detail", "permission denied")
	p.enter(field, "ann/")
	p.press("Enter")
	listed(p, "own")
}

// TestSelfContained: the page can neither be used by other sites nor use any.
func TestSelfContained(t *testing.T) {
	t.Parallel()
	server := ours(t)
	put(t, server.Client(), "k", "v")
	answer, err := http.Get(server.URL() + "/ui")
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	policy := answer.Header.Get("Content-Security-Policy")
	for _, rule := range []string{"default-src 'none'", "script-src 'sha256-", "style-src 'sha256-", "connect-src 'self'",
		"frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'", "require-trusted-types-for 'script'"} {
		if !strings.Contains(policy, rule) {
			t.Errorf("no %q in %q", rule, policy)
		}
	}
	if strings.Contains(policy, "unsafe") {
		t.Errorf("the policy is %q", policy)
	}

	var reached atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/frame" {
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprintf(w, `<title>other</title><iframe id=f src="%s/ui"></iframe>`, server.URL())
			return
		}
		if r.URL.Path != "/favicon.ico" { // asked for by the browser, for the page with the frame
			reached.Add(1)
		}
	}))
	t.Cleanup(other.Close)
	p := open(t, server.URL(), "")
	listed(p, "k")
	p.tolerate("Content Security Policy", "TrustedScript", "TrustedHTML", "Trusted Type", "violates", other.URL)
	p.holds("whatever gets into the page can't ask others, nor run", fmt.Sprintf(`(async () => {
		const other = %s;
		const asked = await fetch(other + "/fetched").then(() => "asked", () => "refused");
		const image = new Image();
		const shown = await new Promise((tell) => { image.onload = () => tell("shown"); image.onerror = () => tell("refused"); image.src = other + "/image"; });
		let marked = "refused";
		try { document.createElement("div").innerHTML = "<b>x</b>"; marked = "marked"; } catch { }
		try { const s = document.createElement("script"); s.text = "window.ran = 1"; document.body.append(s); } catch { }
		try { const s = document.createElement("button"); s.setAttribute("onclick", "window.ran = 1"); s.click(); } catch { }
		const style = document.createElement("style");
		style.textContent = "body { color: rgb(1, 2, 3) }";
		document.head.append(style);
		const coloured = getComputedStyle(document.body).color === "rgb(1, 2, 3)";
		style.remove();
		return asked === "refused" && shown === "refused" && marked === "refused" && window.ran === undefined && !coloured;
	})()`, quote(other.URL)))

	// Another site's page gets neither at the data nor at the page in a frame.
	q := newTab(t, other.URL)
	q.tolerate("")
	if failed := q.navigate(other.URL + "/frame"); failed != "" {
		t.Fatal(failed)
	}
	q.holds("other sites are told nothing", fmt.Sprintf(`(async () => {
		const url = %s + "/ui/api/keys";
		const plain = await fetch(url).then((a) => a.text(), () => "");
		const marked = await fetch(url, { headers: { "X-Leaseway-Ui": "1" } }).then(() => "answered", () => "refused");
		return marked === "refused" && !plain.includes("entries");
	})()`, quote(server.URL())))
	q.eventually("the frame shows nothing", `(() => { const f = document.getElementById("f");
		try { return f.contentDocument === null || f.contentDocument.body.innerText === ""; } catch { return true; } })()`)
	var frames struct {
		Tree struct {
			Children []struct {
				Frame struct {
					URL            string
					UnreachableURL string `json:"unreachableUrl"`
				}
			} `json:"childFrames"`
		} `json:"frameTree"`
	}
	harness.Eventually(t, patience, "the frame is refused", func() error {
		q.call("Page.getFrameTree", nil, &frames)
		if len(frames.Tree.Children) == 1 && frames.Tree.Children[0].Frame.UnreachableURL == "" {
			return fmt.Errorf("%+v", frames)
		}
		return nil
	})
	if count := reached.Load(); count != 0 {
		t.Errorf("%d requests reached the other server", count)
	}
}
