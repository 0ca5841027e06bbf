package faultsuite

import (
	"fmt"
	"sort"
	"strings"
	"time"
)

// incident is a fault that was done.
type incident struct {
	Fault  fault
	Who    string
	Began  instant
	Healed instant
	// Served is when every server had acknowledged a write again.
	Served instant
}

// outage is how long during an incident no client's write was acknowledged.
func outage(r *recording, i incident) time.Duration {
	last, longest := i.Began, time.Duration(0)
	for _, at := range acknowledged(r) {
		if at < i.Began {
			continue
		}
		longest = max(longest, time.Duration(min(at, i.Served)-last))
		if at > i.Served {
			return longest
		}
		last = at
	}
	return max(longest, time.Duration(i.Served-last))
}

// acknowledged are the moments at which writes were.
func acknowledged(r *recording) []instant {
	var times []instant
	for _, o := range r.Operations {
		if writes(o) {
			times = append(times, o.Return)
		}
	}
	sort.Slice(times, func(i, j int) bool { return times[i] < times[j] })
	return times
}

// outageTable shows for every kind how long nobody could write, and how long after
// the repair every single server took writes again.
func outageTable(r *recording, incidents []incident) string {
	outages, recoveries := map[faultKind][]time.Duration{}, map[faultKind][]time.Duration{}
	var kinds []string
	for _, i := range incidents {
		kind := i.Fault.Kind
		if outages[kind] == nil {
			kinds = append(kinds, string(kind))
		}
		outages[kind] = append(outages[kind], outage(r, i))
		recoveries[kind] = append(recoveries[kind], time.Duration(i.Served-i.Healed))
	}
	sort.Strings(kinds)
	var table strings.Builder
	fmt.Fprintf(&table, "%-46s %5s   %-17s   %s\n", "", "count", "write outage", "all servers back")
	fmt.Fprintf(&table, "%-46s %5s   %8s %8s   %8s %8s\n", "", "", "p50", "max", "p50", "max")
	for _, name := range kinds {
		o, b := outages[faultKind(name)], recoveries[faultKind(name)]
		fmt.Fprintf(&table, "%-46s %5d   %8s %8s   %8s %8s\n", name, len(o),
			seconds(percentile(o, 50)), seconds(percentile(o, 100)), seconds(percentile(b, 50)), seconds(percentile(b, 100)))
	}
	return table.String()
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }
