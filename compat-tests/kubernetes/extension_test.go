package kubernetessuite

import (
	"fmt"
	"strings"
	"testing"

	"leaseway/compat-tests/expect"
	"leaseway/compat-tests/harness"
)

const (
	definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	widgets     = "/apis/compat.example.com/v1/namespaces/shop/widgets"
)

func widgetDefinition() object {
	text := object{"type": "string"}
	schema := object{"openAPIV3Schema": object{"type": "object", "properties": object{
		"spec":   object{"type": "object", "properties": object{"size": object{"type": "integer", "maximum": 10}, "colour": text}},
		"status": object{"type": "object", "properties": object{"phase": text}},
	}}}
	return object{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": metadata("widgets.compat.example.com"),
		"spec": object{
			"group": "compat.example.com", "scope": "Namespaced",
			"names":    object{"plural": "widgets", "singular": "widget", "kind": "Widget"},
			"versions": []object{{"name": "v1", "served": true, "storage": true, "schema": schema, "subresources": object{"status": object{}}}},
		},
	}
}

func widget(name string, size int) object {
	return object{"apiVersion": "compat.example.com/v1", "kind": "Widget", "metadata": metadata(name), "spec": object{"size": size}}
}

func stepCustomResources(t *testing.T, a *apiServer) {
	a.create(definitions, widgetDefinition())
	harness.Eventually(t, requestDeadline, "widgets are served", func() error {
		code, body, err := a.try("GET", widgets, "", nil)
		if err != nil || code != 200 {
			return fmt.Errorf("%d %s %v", code, body, err)
		}
		return nil
	})
	w := a.watch(widgets + "?watch=1&resourceVersion=" + a.get(widgets).resourceVersion())
	created := a.create(widgets, widget("one", 3))
	a.expect(422, "POST", widgets, widget("huge", 11))
	created["spec"] = object{"size": 4}
	updated := a.update(widgets+"/one", created)
	expect.Equal(t, "generation", field[float64](updated, "metadata", "generation"), 2)
	updated["status"] = object{"phase": "Ready"}
	a.update(widgets+"/one/status", updated)
	expect.Equal(t, "status", field[string](a.get(widgets+"/one"), "status", "phase"), "Ready")
	for i := range 50 {
		a.create(widgets, widget(numbered("w", i), i%10))
	}
	expect.Equal(t, "page", len(a.get(widgets+"?limit=20").items()), 20)
	expect.Equal(t, "all", len(a.get(widgets).items()), 51)
	a.remove(widgets + "/w-000")
	w.want("ADDED one")
	w.want("MODIFIED one")
	w.want("MODIFIED one")
	for i := range 50 {
		w.want("ADDED " + numbered("w", i))
	}
	w.want("DELETED w-000")
}

func stepServerSideApply(t *testing.T, a *apiServer) {
	path := configMaps + "/applied"
	apply := func(want int, manager, key, value string, force bool) object {
		t.Helper()
		code, answer := a.request("PATCH", fmt.Sprintf("%s?fieldManager=%s&force=%v", path, manager, force),
			"application/apply-patch+yaml", configMap("applied", object{key: value}))
		if code != want {
			t.Fatalf("apply by %s: status %d, want %d: %v", manager, code, want, answer["message"])
		}
		return answer
	}
	created := apply(201, "one", "a", "1", false)
	same := apply(200, "one", "a", "1", false)
	expect.Equal(t, "no change, no revision", same.resourceVersion(), created.resourceVersion())
	apply(200, "two", "b", "2", false)
	apply(409, "two", "a", "other", false)
	taken := apply(200, "two", "a", "other", true)
	expect.Equal(t, "taken over", field[string](taken, "data", "a"), "other")
	expect.Equal(t, "managers", len(field[[]any](taken, "metadata", "managedFields")) >= 1, true)
}

const manifest = `
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: ConfigMap, metadata: {name: from-kubectl, namespace: shop}, data: {k: "%s"}}
- {apiVersion: v1, kind: Secret, metadata: {name: from-kubectl, namespace: shop}, stringData: {k: "%s"}}
- {apiVersion: compat.example.com/v1, kind: Widget, metadata: {name: from-kubectl, namespace: shop}, spec: {size: 1}}
`

func stepKubectl(t *testing.T, a *apiServer) {
	contains := func(output, text string) {
		t.Helper()
		if !strings.Contains(output, text) {
			t.Fatalf("%q is not in:\n%s", text, output)
		}
	}
	contains(a.kubectl(fmt.Sprintf(manifest, "1", "1"), "apply", "-f", "-"), "configmap/from-kubectl created")
	contains(a.kubectl(fmt.Sprintf(manifest, "2", "1"), "apply", "-f", "-"), "configmap/from-kubectl configured")
	contains(a.kubectl(fmt.Sprintf(manifest, "2", "1"), "apply", "-f", "-"), "configmap/from-kubectl unchanged")
	contains(a.kubectl(fmt.Sprintf(manifest, "3", "1"), "apply", "--server-side", "--force-conflicts", "-f", "-"), "serverside-applied")
	contains(a.kubectl("", "get", "configmaps,secrets,widgets", "-n", "shop", "-o", "name"), "widget.compat.example.com/from-kubectl")
	contains(a.kubectl("", "get", "configmap", "from-kubectl", "-n", "shop", "-o", "jsonpath={.data.k}"), "3")
	contains(a.kubectl("", "label", "configmap", "from-kubectl", "-n", "shop", "by=kubectl"), "labeled")
	contains(a.kubectl("", "wait", "--for=jsonpath={.data.k}=3", "configmap/from-kubectl", "-n", "shop", "--timeout=10s"), "condition met")
	contains(a.kubectl("", "delete", "configmap,secret,widget", "from-kubectl", "-n", "shop"), "deleted")
	contains(a.kubectl("", "api-resources", "--api-group=compat.example.com"), "widgets")
	contains(a.kubectl("", "get", "--raw", "/readyz"), "ok")
}

func stepDeleteCollection(t *testing.T, a *apiServer) {
	w := a.watch(configMaps + "?watch=1&labelSelector=half%3Dodd&resourceVersion=" + a.get(configMaps+"?limit=1").resourceVersion())
	a.remove(configMaps + "?labelSelector=half%3Dodd")
	for range pagedObjects / 2 {
		kind := ""
		for kind == "" || kind == "BOOKMARK" {
			kind, _ = w.next()
		}
		expect.Equal(t, "kind", kind, "DELETED")
	}
	expect.Equal(t, "odd", len(a.get(configMaps+"?labelSelector=half%3Dodd").items()), 0)
	expect.Equal(t, "even", len(a.get(configMaps+"?labelSelector=half%3Deven").items()), pagedObjects/2)
	a.remove(widgets)
	expect.Equal(t, "widgets", len(a.get(widgets).items()), 0)
	a.create(widgets, widget("kept", 1))
}
