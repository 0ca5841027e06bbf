package kubernetessuite

import (
	"fmt"
	"strconv"
	"testing"
)

// field walks into nested objects; the zero value if something is missing.
func field[T any](o object, path ...string) T {
	var zero T
	current := any(map[string]any(o))
	for _, name := range path {
		inner, ok := current.(map[string]any)
		if !ok {
			return zero
		}
		current = inner[name]
	}
	value, ok := current.(T)
	if !ok {
		return zero
	}
	return value
}

func (o object) name() string            { return field[string](o, "metadata", "name") }
func (o object) resourceVersion() string { return field[string](o, "metadata", "resourceVersion") }

func (o object) revision(t *testing.T) int64 {
	t.Helper()
	revision, err := strconv.ParseInt(o.resourceVersion(), 10, 64)
	if err != nil {
		t.Fatalf("resourceVersion %q: %v", o.resourceVersion(), err)
	}
	return revision
}

// items are the members of a list.
func (o object) items() []object {
	raw := field[[]any](o, "items")
	items := make([]object, len(raw))
	for i, item := range raw {
		items[i], _ = item.(map[string]any)
	}
	return items
}

func metadata(name string, more ...object) object {
	m := object{"name": name}
	for _, o := range more {
		for key, value := range o {
			m[key] = value
		}
	}
	return m
}

func namespace(name string) object {
	return object{"apiVersion": "v1", "kind": "Namespace", "metadata": metadata(name)}
}

func configMap(name string, data object) object {
	return object{"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(name), "data": data}
}

func labelled(o object, key, value string) object {
	o["metadata"].(object)["labels"] = object{key: value}
	return o
}

const configMaps = "/api/v1/namespaces/shop/configmaps"

func numbered(prefix string, i int) string { return fmt.Sprintf("%s-%03d", prefix, i) }
