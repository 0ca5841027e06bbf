package kubernetessuite

import (
	"testing"
)

// TestKubernetes is one life of a cluster's store. A failing step ends the run:
// the later ones would only repeat the news.
func TestKubernetes(t *testing.T) {
	a := startAPIServer(t)
	steps := []struct {
		name string
		run  func(*testing.T, *apiServer)
	}{
		{"ready", stepReady},
		{"events are written", stepWriteEvents},
		{"namespaces", stepNamespaces},
		{"configmaps", stepConfigMaps},
		{"conflicts", stepConcurrentUpdates},
		{"500 objects in pages", stepPages},
		{"watches", stepWatches},
		{"watch-lists and bookmarks", stepWatchList},
		{"leases", stepLeases},
		{"custom resources", stepCustomResources},
		{"server-side apply", stepServerSideApply},
		{"kubectl", stepKubectl},
		{"deletecollection", stepDeleteCollection},
		{"no etcd errors so far", stepNoErrors},
		{"compaction", stepCompaction},
		{"events have expired", stepEventsExpired},
		{"store restarted below a running API server", stepStoreRestart},
		{"both restarted, store first", stepBothRestartStoreFirst},
		{"both restarted, API server first", stepBothRestartAPIServerFirst},
		{"without the watch cache", stepWithoutWatchCache},
		{"one of two gateways killed under load", stepGatewayKilled},
	}
	for _, step := range steps {
		if !t.Run(step.name, func(t *testing.T) { step.run(t, a.in(t)) }) {
			return
		}
	}
}
