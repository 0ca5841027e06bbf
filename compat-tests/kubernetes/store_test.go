package kubernetessuite

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"leaseway/compat-tests/expect"
	"leaseway/compat-tests/harness"
)

// What the API server shows of its store: errors, compaction, restarts.

var metricLine = regexp.MustCompile(`(?m)^(etcd_request_errors_total|etcd_requests_total)\{([^}]*)\} ([0-9.e+]+)$`)

// storeErrors maps the labels of etcd_request_errors_total to their counts. It
// fails if the API server counts no requests at all.
func (a *apiServer) storeErrors() map[string]float64 {
	a.t.Helper()
	_, body, err := a.try("GET", "/metrics", "", nil)
	a.noError(err)
	errors := map[string]float64{}
	requests := 0.0
	for _, match := range metricLine.FindAllStringSubmatch(string(body), -1) {
		count, err := strconv.ParseFloat(match[3], 64)
		a.noError(err)
		if match[1] == "etcd_requests_total" {
			requests += count
		} else if count > 0 {
			errors[match[2]] = count
		}
	}
	if requests == 0 {
		a.t.Fatal("the API server's metrics show no request to the store")
	}
	return errors
}

var refusalLine = regexp.MustCompile(`(?m)^grpc_server_handled_total\{grpc_code="([^"]*)",grpc_method="([^"]*)".*\} ([1-9][0-9]*)$`)

// refusals are the calls that the store has not answered with OK, without those
// that the API server has taken back.
func refusals(t *testing.T, store *harness.Server) []string {
	t.Helper()
	response, err := http.Get(store.URL() + "/metrics")
	if err != nil {
		return []string{err.Error()}
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return []string{err.Error()}
	}
	var found []string
	for _, match := range refusalLine.FindAllStringSubmatch(string(body), -1) {
		if match[1] != "OK" && match[1] != "Canceled" {
			found = append(found, fmt.Sprintf("%s %s %s times", match[2], match[1], match[3]))
		}
	}
	return found
}

// wantNoErrors requires that the API server has counted no errors of the store.
// It counts requests that it has taken back itself too, which it does at its
// start when an answer takes a while; a cluster of Oxia takes longer than a disk.
func (a *apiServer) wantNoErrors() {
	a.t.Helper()
	errors := a.storeErrors()
	if len(errors) == 0 {
		return
	}
	var refused []string
	a.eachStore(func(s *harness.Server) { refused = append(refused, refusals(a.t, s)...) })
	if a.second == nil || len(refused) != 0 {
		a.t.Fatalf("etcd_request_errors_total: %v; refused: %v", errors, refused)
	}
}

func stepNoErrors(t *testing.T, a *apiServer) {
	a.wantNoErrors()
	// The poller counts objects with count-only ranges.
	harness.Eventually(t, requestDeadline, "object counts", func() error {
		_, body, err := a.try("GET", "/metrics", "", nil)
		a.noError(err)
		expression := regexp.MustCompile(`(?m)^apiserver_resource_objects\{group="",resource="configmaps"\} ([0-9]+)$`)
		match := expression.FindStringSubmatch(string(body))
		if match == nil {
			return fmt.Errorf("no count of configmaps")
		}
		if count, _ := strconv.Atoi(match[1]); count < pagedObjects/2 {
			return fmt.Errorf("%d configmaps", count)
		}
		return nil
	})
	if output := a.process.Output(); strings.Contains(output, "PrevKv=nil") {
		t.Fatal("the API server missed previous values in watch events")
	}
}

// compactedRevision asks the store how far its history has been given up.
func (a *apiServer) compactedRevision(client *clientv3.Client) int64 {
	a.t.Helper()
	answer, err := client.HashKV(harness.Context(a.t, requestDeadline), a.store.Endpoint, 0)
	a.noError(err)
	return answer.CompactRevision
}

func stepCompaction(t *testing.T, a *apiServer) {
	before := a.storeErrors()
	client := a.store.Client()
	old := a.get(configMaps + "?limit=1")
	a.create(configMaps, configMap("after-old", nil))
	oldRevision := old.revision(t)
	// The API server compacts what was current one interval ago.
	harness.Eventually(t, 6*compactionInterval, "the API server compacts", func() error {
		if compacted := a.compactedRevision(client); compacted <= oldRevision {
			return fmt.Errorf("compacted to %d, want more than %d", compacted, oldRevision)
		}
		return nil
	})
	key, err := client.Get(harness.Context(t, requestDeadline), "compact_rev_key")
	a.noError(err)
	expect.Equal(t, "the compaction key", len(key.Kvs), 1)
	expect.Equal(t, "its version counts rounds", key.Kvs[0].Version > 1, true)
	// The API server's cache keeps the past a little longer than the store; then
	// both have to say that it is gone.
	continued := field[string](old, "metadata", "continue")
	for _, path := range []string{
		configMaps + "?limit=3&resourceVersionMatch=Exact&resourceVersion=" + old.resourceVersion(),
		configMaps + "?limit=3&continue=" + continued,
	} {
		harness.Eventually(t, 4*compactionInterval, path+" is gone", func() error {
			code, body, err := a.try("GET", path, "", nil)
			if err == nil && (code == http.StatusGone || strings.Contains(string(body), `"code":410`)) {
				return nil
			}
			return fmt.Errorf("%d %.200s %v", code, body, err)
		})
	}
	// Being told so counts as an error of a list, and nothing else may.
	for labels, count := range a.storeErrors() {
		if count == before[labels] {
			continue
		}
		if !strings.Contains(labels, "list") && !strings.Contains(labels, "Range") {
			t.Fatalf("errors beside those that were asked for: %s %v", labels, count)
		}
	}
}

// checkEverything compares what is stored with what the steps have left.
func checkEverything(t *testing.T, a *apiServer) {
	t.Helper()
	expect.Equal(t, "kept", field[string](a.get(configMaps+"/kept"), "data", "k"), "survives restarts")
	expect.Equal(t, "counter", field[string](a.get(configMaps+"/counter"), "data", "n"), "40")
	expect.Equal(t, "even", len(a.get(configMaps+"?labelSelector=half%3Deven").items()), pagedObjects/2)
	expect.Equal(t, "odd", len(a.get(configMaps+"?labelSelector=half%3Dodd").items()), 0)
	expect.Equal(t, "secrets", len(a.get("/api/v1/namespaces/shop/secrets").items()), 20)
	expect.Equal(t, "applied", field[string](a.get(configMaps+"/applied"), "data", "a"), "other")
	harness.Eventually(t, requestDeadline, "custom resources are served", func() error {
		code, body, err := a.try("GET", widgets+"/kept", "", nil)
		if err != nil || code != 200 {
			return fmt.Errorf("%d %s %v", code, body, err)
		}
		return nil
	})
	a.expect(404, "GET", "/api/v1/namespaces/gone", nil)
	// And it can be written to and watched.
	w := a.watch(configMaps + "?watch=1&resourceVersion=" + a.get(configMaps+"?limit=1").resourceVersion())
	a.create(configMaps, configMap("probe", nil))
	w.want("ADDED probe")
	a.remove(configMaps + "/probe")
	w.want("DELETED probe")
}

func stepStoreRestart(t *testing.T, a *apiServer) {
	before := a.get(configMaps + "?limit=1").revision(t)
	for _, stop := range []func(){a.store.Stop, a.store.Kill} {
		stop()
		a.store.Resume()
		a.awaitReady()
		expect.Equal(t, "revisions do not go back", a.get(configMaps+"?limit=1").revision(t) >= before, true)
	}
	checkEverything(t, a)
}

func stepBothRestartStoreFirst(t *testing.T, a *apiServer) {
	a.stop()
	a.eachStore((*harness.Server).Stop)
	a.eachStore((*harness.Server).Resume)
	a.launch()
	a.awaitReady()
	checkEverything(t, a)
}

func stepBothRestartAPIServerFirst(t *testing.T, a *apiServer) {
	a.eachStore((*harness.Server).Kill)
	a.stop()
	a.launch()
	// The API server must have looked for its store in vain when that comes.
	a.noError(a.process.AwaitOutput("connection refused", readyDeadline))
	a.eachStore((*harness.Server).Resume)
	a.awaitReady()
	checkEverything(t, a)
}

func stepWithoutWatchCache(t *testing.T, a *apiServer) {
	a.stop()
	a.launch("--watch-cache=false")
	a.awaitReady()
	checkEverything(t, a)
	list := a.get(configMaps + "?limit=100")
	expect.Equal(t, "page", len(list.items()), 100)
	expect.Equal(t, "continues", field[string](list, "metadata", "continue") != "", true)
	a.wantNoErrors()
	// Without the cache a watch from the compacted past is the store's to refuse.
	w := a.watch(configMaps + "?watch=1&resourceVersion=2")
	kind, status := w.next()
	expect.Equal(t, "kind", kind, "ERROR")
	expect.Equal(t, "code", field[float64](status, "code"), 410)
}
