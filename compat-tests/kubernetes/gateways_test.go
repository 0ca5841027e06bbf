package kubernetessuite

import (
	"fmt"
	"testing"
)

// stepGatewayKilled creates objects while one of the two gateways is killed and
// started again, and then the other: nobody who uses the API server may notice.
func stepGatewayKilled(t *testing.T, a *apiServer) {
	if a.second == nil {
		t.Skip("one server is all there is")
	}
	from := a.get(configMaps + "?limit=1").resourceVersion()
	watch := a.watch(configMaps + "?watch=1&resourceVersion=" + from)
	const objects = 200
	for i := range objects {
		switch i {
		case 40:
			a.store.Kill()
		case 80:
			a.store.Resume()
		case 120:
			a.second.Kill()
		case 160:
			a.second.Resume()
		}
		a.create(configMaps, configMap(numbered("killed", i), object{"number": fmt.Sprint(i)}))
		if i%10 == 0 {
			a.create(kubernetesEvents, event(numbered("killed", i)))
		}
	}
	for i := range objects {
		watch.want("ADDED " + numbered("killed", i))
	}
	stepEventsExpired(t, a)
	checkEverything(t, a)
}
