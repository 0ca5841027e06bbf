package faultsuite

import "sort"

// clock says what is known about when each revision came into being.
type clock struct {
	// seenBy[i] is the first moment at which somebody knew of a revision of at least i.
	seenBy []instant
	// notBefore[i]: at this moment revision i did certainly not exist yet.
	notBefore []instant
}

// sighting is a revision that a client was told of.
type sighting struct {
	at       instant
	revision int64
}

// sightings are all of them, in no order.
func sightings(r *recording) []sighting {
	var all []sighting
	for _, o := range r.Operations {
		if o.Outcome == done && o.Revision > 0 {
			all = append(all, sighting{o.Return, o.Revision})
		}
	}
	for _, w := range r.Watchers {
		for _, session := range w.Sessions {
			for _, answer := range session.Answers {
				all = append(all, sighting{answer.At, answer.Revision})
				for _, e := range answer.Events {
					all = append(all, sighting{answer.At, e.Row.Mod})
				}
			}
		}
	}
	return all
}

// newClock needs to know where each operation that must be linearizable stands.
func newClock(r *recording, t *timeline, place func(*operation) int64) *clock {
	size := t.last + 2
	c := &clock{seenBy: make([]instant, size), notBefore: make([]instant, size)}
	for i := range c.seenBy {
		c.seenBy[i] = never
	}
	for _, s := range sightings(r) {
		if at := min(max(s.revision, 0), t.last); s.at < c.seenBy[at] {
			c.seenBy[at] = s.at
		}
	}
	for i := int(t.last) - 1; i >= 0; i-- {
		c.seenBy[i] = min(c.seenBy[i], c.seenBy[i+1])
	}
	// Whoever asked at some moment and was told of a revision has proof that the next came later.
	for _, o := range r.Operations {
		if at := place(o); o.Outcome == done && at > 0 && at < t.last {
			c.notBefore[at+1] = max(c.notBefore[at+1], o.Call)
		}
	}
	for i := 1; i < len(c.notBefore); i++ {
		c.notBefore[i] = max(c.notBefore[i], c.notBefore[i-1])
	}
	return c
}

// floor answers: which revision had been seen by somebody before a moment?
type floor struct{ sorted []sighting }

func newFloor(all []sighting) *floor {
	sorted := append([]sighting(nil), all...)
	sort.Slice(sorted, func(i, j int) bool { return sorted[i].at < sorted[j].at })
	for i := 1; i < len(sorted); i++ {
		sorted[i].revision = max(sorted[i].revision, sorted[i-1].revision)
	}
	return &floor{sorted}
}

func (f *floor) before(at instant) int64 {
	next := sort.Search(len(f.sorted), func(i int) bool { return f.sorted[i].at >= at })
	if next == 0 {
		return 0
	}
	return f.sorted[next-1].revision
}
