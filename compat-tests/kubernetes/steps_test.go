package kubernetessuite

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"leaseway/compat-tests/expect"
	"leaseway/compat-tests/harness"
)

func stepReady(t *testing.T, a *apiServer) {
	for _, path := range []string{"/readyz", "/livez", "/readyz/etcd", "/livez/etcd", "/healthz"} {
		code, body, err := a.try("GET", path, "", nil)
		a.noError(err)
		expect.Equal(t, path, fmt.Sprintf("%d %s", code, body), "200 ok")
	}
	harness.Eventually(t, requestDeadline, "the built-in namespaces", func() error {
		var names []string
		for _, item := range a.get("/api/v1/namespaces").items() {
			names = append(names, item.name())
		}
		for _, want := range []string{"default", "kube-node-lease", "kube-public", "kube-system"} {
			if !slices.Contains(names, want) {
				return fmt.Errorf("only %v", names)
			}
		}
		return nil
	})
	expect.Equal(t, "bootstrap roles", len(a.get("/apis/rbac.authorization.k8s.io/v1/clusterroles").items()) > 20, true)
	// The API server writes its own address under a lease of the store.
	harness.Eventually(t, requestDeadline, "the kubernetes service has an endpoint", func() error {
		slices := a.get("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices").items()
		if len(slices) == 0 {
			return fmt.Errorf("none")
		}
		return nil
	})
}

func stepNamespaces(t *testing.T, a *apiServer) {
	for _, name := range []string{"shop", "gone"} {
		created := a.create("/api/v1/namespaces", namespace(name))
		expect.Equal(t, "phase", field[string](created, "status", "phase"), "Active")
	}
	a.expect(409, "POST", "/api/v1/namespaces", namespace("shop"))
	a.expect(404, "POST", "/api/v1/namespaces/none/configmaps", configMap("x", nil))
	deleted := a.remove("/api/v1/namespaces/gone")
	expect.Equal(t, "phase", field[string](deleted, "status", "phase"), "Terminating")
	a.expect(403, "POST", "/api/v1/namespaces/gone/configmaps", configMap("x", nil))
	// What the namespace controller would do at the end.
	deleted["spec"] = object{"finalizers": []string{}}
	a.update("/api/v1/namespaces/gone/finalize", deleted)
	a.expect(404, "GET", "/api/v1/namespaces/gone", nil)
}

func stepConfigMaps(t *testing.T, a *apiServer) {
	created := a.create(configMaps, configMap("first", object{"k": "1"}))
	expect.Equal(t, "has a revision", created.revision(t) > 0, true)
	expect.Equal(t, "has a uid", field[string](created, "metadata", "uid") != "", true)
	a.expect(409, "POST", configMaps, configMap("first", nil))
	path := configMaps + "/first"
	read := a.get(path)
	expect.Equal(t, "value", field[string](read, "data", "k"), "1")
	expect.Equal(t, "revision", read.resourceVersion(), created.resourceVersion())

	read["data"] = object{"k": "2"}
	updated := a.update(path, read)
	expect.Equal(t, "later revision", updated.revision(t) > created.revision(t), true)
	// The same change again is none, and makes no revision.
	expect.Equal(t, "unchanged", a.update(path, updated).resourceVersion(), updated.resourceVersion())
	// A writer with an outdated copy is told so.
	created["data"] = object{"k": "stale"}
	conflict := a.expect(409, "PUT", path, created)
	expect.Equal(t, "reason", field[string](conflict, "reason"), "Conflict")
	expect.Equal(t, "value", field[string](a.get(path), "data", "k"), "2")

	for contentType, patch := range map[string]any{
		"application/merge-patch+json":           object{"data": object{"merge": "x"}},
		"application/strategic-merge-patch+json": object{"data": object{"strategic": "x"}},
		"application/json-patch+json":            []object{{"op": "add", "path": "/data/json", "value": "x"}},
	} {
		code, answer := a.request("PATCH", path, contentType, patch)
		expect.Equal(t, contentType, code, 200)
		expect.Equal(t, contentType, answer.revision(t) > updated.revision(t), true)
	}
	expect.Equal(t, "patched", len(field[map[string]any](a.get(path), "data")), 4)

	wrongUID := object{"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": object{"uid": "other"}}
	a.expect(409, "DELETE", path, wrongUID)
	a.remove(path)
	a.expect(404, "GET", path, nil)
	a.expect(404, "DELETE", path, nil)
	// A large object, near the limit of a request.
	a.create(configMaps, configMap("large", object{"k": strings.Repeat("x", 900_000)}))
	expect.Equal(t, "large", len(field[string](a.get(configMaps+"/large"), "data", "k")), 900_000)
	a.remove(configMaps + "/large")
	a.create(configMaps, configMap("kept", object{"k": "survives restarts"}))
}

func stepConcurrentUpdates(t *testing.T, a *apiServer) {
	path := configMaps + "/counter"
	a.create(configMaps, configMap("counter", object{"n": "0"}))
	const workers, each = 4, 10
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for done, tries := 0, 0; done < each; tries++ {
				if tries > 1000 {
					t.Error("too many conflicts")
					return
				}
				current := a.get(path)
				n, _ := strconv.Atoi(field[string](current, "data", "n"))
				current["data"] = object{"n": strconv.Itoa(n + 1)}
				code, answer := a.request("PUT", path, "application/json", current)
				switch code {
				case http.StatusOK:
					done++
				case http.StatusConflict:
				default:
					t.Errorf("status %d: %v", code, answer["message"])
					return
				}
			}
		})
	}
	group.Wait()
	expect.Equal(t, "counter", field[string](a.get(path), "data", "n"), strconv.Itoa(workers*each))
}

const pagedObjects = 500

func stepPages(t *testing.T, a *apiServer) {
	var group sync.WaitGroup
	const workers = 10
	for w := range workers {
		group.Go(func() {
			for i := w; i < pagedObjects; i += workers {
				half := "even"
				if i%2 == 1 {
					half = "odd"
				}
				a.create(configMaps, labelled(configMap(numbered("page", i), object{"i": strconv.Itoa(i)}), "half", half))
			}
		})
	}
	group.Wait()
	total := len(a.get(configMaps).items())
	expect.Equal(t, "at least", total >= pagedObjects, true)

	var names []string
	var listRevision string
	continueToken := ""
	for page := 0; page == 0 || continueToken != ""; page++ {
		query := url.Values{"limit": {"70"}}
		if continueToken != "" {
			query.Set("continue", continueToken)
		}
		list := a.get(configMaps + "?" + query.Encode())
		for _, item := range list.items() {
			names = append(names, item.name())
		}
		if page == 0 {
			listRevision = list.resourceVersion()
			remaining := field[float64](list, "metadata", "remainingItemCount")
			expect.Equal(t, "remaining", int(remaining), total-70)
			// Written between the pages: it must not show up in them.
			a.create(configMaps, configMap("page-000-intruder", nil))
		}
		expect.Equal(t, "one revision for all pages", list.resourceVersion(), listRevision)
		continueToken = field[string](list, "metadata", "continue")
	}
	expect.Equal(t, "listed", len(names), total)
	expect.Equal(t, "in order", slices.IsSorted(names), true)
	expect.Equal(t, "no intruder", slices.Contains(names, "page-000-intruder"), false)
	a.remove(configMaps + "/page-000-intruder")

	expect.Equal(t, "by label", len(a.get(configMaps+"?labelSelector=half%3Dodd").items()), pagedObjects/2)
	exact := a.get(configMaps + "?resourceVersionMatch=Exact&resourceVersion=" + listRevision)
	expect.Equal(t, "at that revision", len(exact.items()), total)
	expect.Equal(t, "from the cache", len(a.get(configMaps+"?resourceVersion=0").items()) >= pagedObjects, true)
}

func stepWatches(t *testing.T, a *apiServer) {
	from := a.get(configMaps + "?limit=1").resourceVersion()
	first := a.watch(configMaps + "?watch=1&resourceVersion=" + from)
	one := a.watch(configMaps + "?watch=1&fieldSelector=metadata.name%3Dwatched&resourceVersion=" + from)
	created := a.create(configMaps, configMap("watched", object{"k": "1"}))
	other := a.create(configMaps, configMap("unwatched", nil))
	created["data"] = object{"k": "2"}
	updated := a.update(configMaps+"/watched", created)
	a.remove(configMaps + "/watched")
	for _, w := range []*watcher{first, one} {
		expect.Equal(t, "created", w.want("ADDED watched").resourceVersion(), field[string](created, "metadata", "resourceVersion"))
		if w == first {
			expect.Equal(t, "other", w.want("ADDED unwatched").resourceVersion(), other.resourceVersion())
		}
		modified := w.want("MODIFIED watched")
		expect.Equal(t, "value", field[string](modified, "data", "k"), "2")
		// A deletion shows the last state, under the revision of the deletion.
		deleted := w.want("DELETED watched")
		expect.Equal(t, "last value", field[string](deleted, "data", "k"), "2")
		expect.Equal(t, "later", deleted.revision(t) > updated.revision(t), true)
	}
	// A watch that starts in the past repeats what happened since.
	again := a.watch(configMaps + "?watch=1&resourceVersion=" + from)
	again.want("ADDED watched")
	again.want("ADDED unwatched")
	a.remove(configMaps + "/unwatched")
	again.want("MODIFIED watched")
	again.want("DELETED watched")
	again.want("DELETED unwatched")

	// Many changes from several writers: every revision once, in order.
	start := a.get(configMaps + "?limit=1").resourceVersion()
	w := a.watch(configMaps + "?watch=1&resourceVersion=" + start)
	const writers, each = 4, 25
	var group sync.WaitGroup
	for i := range writers {
		group.Go(func() {
			for j := range each {
				a.create(configMaps, configMap(fmt.Sprintf("burst-%d-%d", i, j), nil))
			}
		})
	}
	group.Wait()
	last := int64(0)
	seen := map[string]bool{}
	for len(seen) < writers*each {
		kind, o := w.next()
		if kind == "BOOKMARK" {
			continue
		}
		expect.Equal(t, "kind", kind, "ADDED")
		expect.Equal(t, "once", seen[o.name()], false)
		expect.Equal(t, "in order", o.revision(t) > last, true)
		seen[o.name()], last = true, o.revision(t)
	}
}

func stepWatchList(t *testing.T, a *apiServer) {
	total := len(a.get(configMaps).items())
	// The initial state as events, closed by a bookmark: it needs the store to
	// answer requests for progress.
	w := a.watch(configMaps + "?watch=1&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan")
	added := 0
	for {
		kind, o := w.next()
		if kind == "ADDED" {
			added++
			continue
		}
		expect.Equal(t, "kind", kind, "BOOKMARK")
		expect.Equal(t, "initial events end", field[string](o, "metadata", "annotations", "k8s.io/initial-events-end"), "true")
		break
	}
	expect.Equal(t, "initial events", added, total)
	// A consistent read must show what was written just before, though the
	// resource's own prefix has been quiet: repeated, as it is a matter of timing.
	for i := range 20 {
		a.create("/api/v1/namespaces/shop/secrets", object{"apiVersion": "v1", "kind": "Secret", "metadata": metadata(numbered("s", i))})
		began := time.Now()
		expect.Equal(t, "consistent", len(a.get("/api/v1/namespaces/shop/secrets").items()), i+1)
		a.get("/api/v1/namespaces/shop/services")
		expect.Equal(t, "answered without delay", time.Since(began) < 2500*time.Millisecond, true)
	}
}

func stepLeases(t *testing.T, a *apiServer) {
	const leases = "/apis/coordination.k8s.io/v1/namespaces/shop/leases"
	spec := func(holder string, transitions int) object {
		return object{"holderIdentity": holder, "leaseDurationSeconds": 15, "leaseTransitions": transitions,
			"renewTime": time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")}
	}
	lease := a.create(leases, object{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata("leader"), "spec": spec("a", 0)})
	w := a.watch(leases + "?watch=1&resourceVersion=" + lease.resourceVersion())
	for range 20 { // renewals
		lease["spec"] = spec("a", 0)
		lease = a.update(leases+"/leader", lease)
		expect.Equal(t, "seen", w.want("MODIFIED leader").resourceVersion(), lease.resourceVersion())
	}
	// Two candidates with the same copy: one takes over, the other is refused.
	rival := object{}
	for key, value := range lease {
		rival[key] = value
	}
	lease["spec"] = spec("b", 1)
	a.update(leases+"/leader", lease)
	rival["spec"] = spec("c", 1)
	a.expect(409, "PUT", leases+"/leader", rival)
	expect.Equal(t, "holder", field[string](a.get(leases+"/leader"), "spec", "holderIdentity"), "b")
}

const kubernetesEvents = "/api/v1/namespaces/default/events"

const writtenEvents = 30

func stepWriteEvents(t *testing.T, a *apiServer) {
	for i := range writtenEvents {
		a.create(kubernetesEvents, event(numbered("compat", i)))
	}
	expect.Equal(t, "events", countNamed(a.get(kubernetesEvents), "compat"), writtenEvents)
}

// event is an Event that the API server keeps for eventTTL.
func event(name string) object {
	return object{
		"apiVersion": "v1", "kind": "Event", "metadata": metadata(name), "reason": "Compat", "type": "Normal",
		"message": "written to see it expire", "involvedObject": object{"kind": "Namespace", "name": "default", "namespace": "default"},
	}
}

func countNamed(list object, prefix string) int {
	count := 0
	for _, item := range list.items() {
		if strings.HasPrefix(item.name(), prefix) {
			count++
		}
	}
	return count
}

func stepEventsExpired(t *testing.T, a *apiServer) {
	harness.Eventually(t, eventTTL+30*time.Second, "all events expire", func() error {
		if count := countNamed(a.get(kubernetesEvents), "compat") + countNamed(a.get(kubernetesEvents), "killed"); count != 0 {
			return fmt.Errorf("%d left", count)
		}
		return nil
	})
	w := a.watch(kubernetesEvents + "?watch=1")
	a.create(kubernetesEvents, event("last"))
	born := time.Now()
	for {
		kind, o := w.next()
		if kind == "ADDED" && o.name() == "last" {
			break
		}
	}
	// The watch below goes on through quiet half minutes, so wait by polling.
	harness.Eventually(t, eventTTL+30*time.Second, "the last event expires", func() error {
		if countNamed(a.get(kubernetesEvents), "last") != 0 {
			return fmt.Errorf("still there")
		}
		return nil
	})
	expect.Equal(t, "not early", time.Since(born) >= eventTTL, true)
	w.want("DELETED last")
}
