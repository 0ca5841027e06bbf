package faultsuite

import (
	"sort"
	"time"
)

// verdict holds a recording against a timeline.
type verdict struct {
	findings
	recording *recording
	timeline  *timeline
	// effect is the revision in which an operation took effect.
	effect map[*operation]int64
	// leaseEnd is the revision in which a lease's keys went.
	leaseEnd map[int64]int64
	clock    *clock
	// lateness of leases that ended by themselves, at least.
	lateness []time.Duration
}

// judge returns what is wrong with a run.
func judge(r *recording, history []event) *verdict {
	v := &verdict{recording: r, effect: map[*operation]int64{}, leaseEnd: map[int64]int64{}}
	v.timeline = newTimeline(history, &v.findings)
	unexplained := v.checkEffects()
	v.clock = newClock(r, v.timeline, v.place)
	v.matchDeletes(unexplained)
	v.checkReads()
	v.checkOrder()
	v.checkServers()
	v.checkRegisters()
	v.checkWatchers()
	v.checkLeases()
	return v
}

// place is the revision at which an operation stands in the one order of all that
// are linearizable: its own for a write, the state's that it saw for others. 0 if
// it has none.
func (v *verdict) place(o *operation) int64 {
	if revision := v.effect[o]; revision > 0 {
		return revision
	}
	if o.Outcome != done || o.Serializable {
		return 0
	}
	switch o.Kind {
	case get, list:
		return o.Revision
	case swap:
		if !o.Succeeded {
			return o.Revision
		}
	case remove:
		if o.Deleted == 0 {
			return o.Revision
		}
	}
	return 0
}

// checkOrder: what was seen by anybody, through any server, is never unseen; and a
// write comes after everything that was known when it was asked for.
func (v *verdict) checkOrder() {
	known := newFloor(sightings(v.recording))
	for _, o := range v.recording.Operations {
		at := v.place(o)
		if at == 0 {
			continue
		}
		before := known.before(o.Call)
		switch {
		case v.effect[o] > 0 && at <= before:
			v.add("order: revision %d was known before %v", before, o)
		case at < before:
			v.add("stale: revision %d was known before %v, which shows revision %d", before, o, at)
		}
	}
	for _, w := range v.recording.Watchers {
		for _, session := range w.Sessions {
			if before := known.before(session.Called); session.Start == 0 && session.Created > 0 && session.Created < before {
				v.add("stale: watcher %s began at server %v with revision %d when %d was known", w.Name, session.At, session.Created, before)
			}
		}
	}
}

// checkServers: while a process lives, what it shows never goes back. This is all
// that a serializable read promises.
func (v *verdict) checkServers() {
	byServer := map[serverRun][]*operation{}
	for _, o := range v.recording.Operations {
		if o.Outcome == done && o.Revision > 0 {
			byServer[o.At] = append(byServer[o.At], o)
		}
	}
	for _, operations := range byServer {
		var seen []sighting
		for _, o := range operations {
			seen = append(seen, sighting{o.Return, o.Revision})
		}
		known := newFloor(seen)
		for _, o := range operations {
			if before := known.before(o.Call); o.Revision < before {
				v.add("back in time: the same process had shown revision %d before %v", before, o)
			}
		}
	}
}

// checkReads: every answer shows the state of the revision in its header.
func (v *verdict) checkReads() {
	for _, o := range v.recording.Operations {
		if o.Outcome != done {
			continue
		}
		if o.Revision > v.timeline.last {
			v.add("read: a revision that is not in the history (%d is the last): %v", v.timeline.last, o)
			continue
		}
		switch {
		case o.Kind == get || o.Kind == list || (o.Kind == swap && !o.Succeeded):
			want := v.timeline.rows(o.Key, o.End, o.Revision)
			if !sameRows(o.Rows, want) {
				v.add("read: %v shows %v, revision %d has %v", o, o.Rows, o.Revision, want)
			}
			if o.Kind == swap && modOf(v.timeline.row(o.Key, o.Revision)) == o.Expect {
				v.add("swap: refused although %q had revision %d: %v", o.Key, o.Expect, o)
			}
		case o.Kind == remove && o.Deleted == 0:
			if present := v.timeline.row(o.Key, o.Revision); present != nil {
				v.add("delete: found nothing although there was %v: %v", *present, o)
			}
		}
	}
}

func modOf(r *row) int64 {
	if r == nil {
		return 0
	}
	return r.Mod
}

func sameRows(a, b []row) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func samePrevious(a, b *row) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

// percentile of durations, which it sorts; 0 if there are none.
func percentile(values []time.Duration, percent int) time.Duration {
	if len(values) == 0 {
		return 0
	}
	sort.Slice(values, func(i, j int) bool { return values[i] < values[j] })
	return values[(len(values)-1)*percent/100]
}
