// Package kubernetessuite runs a real kube-apiserver with the subject as its
// store and uses it as a cluster's components do.
//
// One API server serves all steps, in order: they build on each other's objects,
// and the last ones restart both processes and look for everything again. There
// is no controller manager and no kubelet; what they would do (finalizing a
// namespace, for example) the steps do themselves.
package kubernetessuite

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"leaseway/compat-tests/harness"
)

const (
	requestDeadline = 30 * time.Second
	readyDeadline   = 90 * time.Second
	token           = "compat-tests-token"
	// eventTTL is short, so that a run sees events expire.
	eventTTL = 20 * time.Second
	// compactionInterval is how often the API server compacts the store.
	compactionInterval = 8 * time.Second
)

// apiServer is a cluster as one step sees it: failures are the step's.
type apiServer struct {
	*cluster
	t *testing.T
}

// cluster is a kube-apiserver and the store below it. Both live as long as the
// whole run.
type cluster struct {
	run   *testing.T
	store *harness.Server
	// second is another gateway beside the store, where the store is a gateway.
	second  *harness.Server
	dir     string
	address string
	process *harness.Process
	http    *http.Client
}

// object is a Kubernetes object as decoded JSON.
type object map[string]any

func startAPIServer(t *testing.T) *apiServer {
	t.Helper()
	a := &apiServer{t: t, cluster: &cluster{
		run: t, store: harness.Start(t), dir: t.TempDir(), address: harness.FreeAddress(t),
		// The server signs its own certificate for this run.
		http: &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}},
	}}
	if a.store.Subject() == harness.Gateway {
		a.second = a.store.Another()
	}
	a.writeCredentials()
	a.launch()
	a.awaitReady()
	return a
}

func (a *apiServer) writeCredentials() {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	a.noError(err)
	der, err := x509.MarshalECPrivateKey(key)
	a.noError(err)
	a.noError(os.WriteFile(a.path("service-account.key"), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600))
	a.noError(os.WriteFile(a.path("tokens.csv"), []byte(token+`,admin,admin,"system:masters"`+"\n"), 0o600))
	a.noError(os.WriteFile(a.path("kubeconfig"), fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://%s", insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: %s}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, a.address, token), 0o600))
}

func (a *apiServer) path(name string) string { return filepath.Join(a.dir, name) }

// launch starts the API server without waiting for it.
func (a *apiServer) launch(extra ...string) {
	a.t.Helper()
	_, port, err := net.SplitHostPort(a.address)
	a.noError(err)
	a.process = harness.StartProcess(a.run, "kube-apiserver", nil, harness.KubernetesTool(a.t, "kube-apiserver"), append([]string{
		"--etcd-servers=" + a.storeURLs(),
		"--bind-address=127.0.0.1", "--secure-port=" + port, "--advertise-address=192.0.2.1",
		"--cert-dir=" + a.dir, "--service-cluster-ip-range=10.96.0.0/16",
		"--token-auth-file=" + a.path("tokens.csv"), "--authorization-mode=RBAC", "--anonymous-auth=false",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + a.path("service-account.key"),
		"--service-account-signing-key-file=" + a.path("service-account.key"),
		// Without a controller manager nobody makes the default service accounts.
		"--disable-admission-plugins=ServiceAccount",
		"--event-ttl=" + eventTTL.String(),
		"--etcd-compaction-interval=" + compactionInterval.String(),
		"--etcd-count-metric-poll-period=5s",
	}, extra...)...)
}

// eachStore does something with the store, or with both gateways.
func (a *apiServer) eachStore(do func(*harness.Server)) {
	do(a.store)
	if a.second != nil {
		do(a.second)
	}
}

func (a *apiServer) storeURLs() string {
	if a.second == nil {
		return a.store.URL()
	}
	return a.store.URL() + "," + a.second.URL()
}

func (a *apiServer) awaitReady() {
	a.t.Helper()
	harness.Eventually(a.t, readyDeadline, "the API server is ready", func() error {
		select {
		case <-a.process.Exited():
			a.t.Fatalf("kube-apiserver ended: %s", lastLines(a.process.Output(), 15))
		default:
		}
		code, body, err := a.try("GET", "/readyz?verbose", "", nil)
		if err != nil {
			return err
		}
		if code != 200 {
			return fmt.Errorf("%d %s", code, body)
		}
		return nil
	})
}

// stop ends the API server with SIGTERM, and by force if that takes too long: it
// waits for its clients' watches.
func (a *apiServer) stop() {
	a.http.CloseIdleConnections()
	_, _ = a.process.Terminate(10 * time.Second)
}

func lastLines(text string, count int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-count):], "\n")
}

func (a *apiServer) noError(err error) {
	a.t.Helper()
	if err != nil {
		a.t.Fatal(err)
	}
}

// in returns the cluster as seen by a step.
func (a *apiServer) in(t *testing.T) *apiServer { return &apiServer{cluster: a.cluster, t: t} }

// try sends one request and returns the status and the body.
func (a *apiServer) try(method, path, contentType string, body []byte) (int, []byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), requestDeadline)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, "https://"+a.address+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	response, err := a.http.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	return response.StatusCode, answer, err
}

// request sends an object and returns the status and the answer's object. It
// comes back when the API server says 429, as every client does: it says so while
// its cache starts over after the store was away.
func (a *apiServer) request(method, path, contentType string, body any) (int, object) {
	a.t.Helper()
	var encoded []byte
	if body != nil {
		var err error
		encoded, err = json.Marshal(body)
		a.noError(err)
	}
	var code int
	var answer []byte
	harness.Eventually(a.t, requestDeadline, method+" "+path, func() error {
		var err error
		code, answer, err = a.try(method, path, contentType, encoded)
		if err != nil {
			a.t.Fatalf("%s %s: %v", method, path, err)
		}
		if code == http.StatusTooManyRequests {
			return fmt.Errorf("%s", answer)
		}
		return nil
	})
	var decoded object
	if err := json.Unmarshal(answer, &decoded); err != nil {
		a.t.Fatalf("%s %s: %d %s", method, path, code, answer)
	}
	return code, decoded
}

// expect is request for a given status.
func (a *apiServer) expect(want int, method, path string, body any) object {
	a.t.Helper()
	contentType := ""
	if body != nil {
		contentType = "application/json"
	}
	code, answer := a.request(method, path, contentType, body)
	if code != want {
		a.t.Fatalf("%s %s: status %d, want %d: %v", method, path, code, want, answer["message"])
	}
	return answer
}

func (a *apiServer) get(path string) object { a.t.Helper(); return a.expect(200, "GET", path, nil) }
func (a *apiServer) create(path string, body object) object {
	a.t.Helper()
	return a.expect(201, "POST", path, body)
}
func (a *apiServer) update(path string, body object) object {
	a.t.Helper()
	return a.expect(200, "PUT", path, body)
}
func (a *apiServer) remove(path string) object {
	a.t.Helper()
	return a.expect(200, "DELETE", path, nil)
}

// kubectl runs a command and returns what it printed.
func (a *apiServer) kubectl(stdin string, args ...string) string {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), requestDeadline)
	defer cancel()
	command := exec.CommandContext(ctx, harness.KubernetesTool(a.t, "kubectl"), append([]string{"--kubeconfig=" + a.path("kubeconfig"), "--cache-dir=" + a.path("kubectl-cache")}, args...)...)
	command.Stdin = strings.NewReader(stdin)
	output, err := command.CombinedOutput()
	if err != nil {
		a.t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, output)
	}
	return string(output)
}

// watcher reads the events of one watch request.
type watcher struct {
	t      *testing.T
	events chan object
}

// watch opens a watch that is closed when the step ends.
func (a *apiServer) watch(path string) *watcher {
	a.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	a.t.Cleanup(cancel)
	request, err := http.NewRequestWithContext(ctx, "GET", "https://"+a.address+path, nil)
	a.noError(err)
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := a.http.Do(request)
	a.noError(err)
	if response.StatusCode != 200 {
		answer, _ := io.ReadAll(response.Body)
		response.Body.Close()
		a.t.Fatalf("GET %s: %d %s", path, response.StatusCode, answer)
	}
	w := &watcher{t: a.t, events: make(chan object, 1000)}
	go func() {
		defer response.Body.Close()
		defer close(w.events)
		decoder := json.NewDecoder(bufio.NewReader(response.Body))
		for {
			var event object
			if decoder.Decode(&event) != nil {
				return
			}
			select {
			case w.events <- event:
			case <-ctx.Done():
				return
			}
		}
	}()
	return w
}

// next returns the next event's type and object.
func (w *watcher) next() (string, object) {
	w.t.Helper()
	select {
	case event, open := <-w.events:
		if !open {
			w.t.Fatal("the watch was closed")
		}
		return event["type"].(string), object(event["object"].(map[string]any))
	case <-time.After(requestDeadline):
		w.t.Fatal("no watch event")
	}
	panic("unreachable")
}

// want requires the next event other than a bookmark to be "TYPE name".
func (w *watcher) want(event string) object {
	w.t.Helper()
	for {
		kind, o := w.next()
		if kind == "BOOKMARK" {
			continue
		}
		if got := kind + " " + o.name(); got != event {
			w.t.Fatalf("got event %q, want %q", got, event)
		}
		return o
	}
}
