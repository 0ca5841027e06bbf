package faultsuite

import "sort"

// checkEffects finds for every revision what brought it about: one operation, with
// all of its changes and nothing else, or the end of one lease. Nothing may have
// happened twice, nothing that was acknowledged may be missing. Returned are
// deletions that only a delete of unknown outcome can explain.
func (v *verdict) checkEffects() (unexplained []event) {
	writers, deleters := map[string]*operation{}, map[int64]*operation{}
	for _, o := range v.recording.Operations {
		if o.Value != "" {
			writers[o.Value] = o
		}
		if o.Kind == remove && o.Outcome == done && o.Deleted > 0 {
			if other := deleters[o.Revision]; other != nil {
				v.add("delete: two were answered with the same revision: %v and %v", other, o)
			}
			deleters[o.Revision] = o
		}
	}
	attached := attachments{}
	for revision := int64(firstRevision + 1); revision <= v.timeline.last; revision++ {
		events := v.timeline.at[revision]
		value, written := writtenValue(events)
		switch {
		case len(events) == 0: // a gap, which was reported
		case written && writers[value] == nil:
			v.add("phantom: nobody wrote %q, which is in revision %d", value, revision)
		case written:
			v.tookEffect(writers[value], revision, events)
		case deleters[revision] != nil:
			v.tookEffect(deleters[revision], revision, events)
		case attached.lease(events[0].Row.Key) != 0:
			v.leaseEnded(attached, revision, events)
		case len(events) == 1:
			unexplained = append(unexplained, events[0])
		default:
			v.add("phantom: nobody deleted %d keys in revision %d, first %q", len(events), revision, events[0].Row.Key)
		}
		v.attachAll(attached, events)
	}
	for _, o := range v.recording.Operations {
		if writes(o) && v.effect[o] == 0 {
			v.add("lost: %v", o)
		}
	}
	return unexplained
}

// writes tells whether an operation was acknowledged as having changed something.
func writes(o *operation) bool {
	if o.Outcome != done {
		return false
	}
	switch o.Kind {
	case put, attach, pair, bury:
		return true
	case swap:
		return o.Succeeded
	case remove:
		return o.Deleted > 0
	default:
		return false
	}
}

func writtenValue(events []event) (string, bool) {
	for _, e := range events {
		if !e.Delete {
			return e.Row.Value, true
		}
	}
	return "", false
}

// tookEffect: an operation is what happened in a revision.
func (v *verdict) tookEffect(o *operation, revision int64, events []event) {
	if earlier := v.effect[o]; earlier > 0 {
		v.add("twice: in revisions %d and %d: %v", earlier, revision, o)
		return
	}
	v.effect[o] = revision
	before := v.timeline.row(o.Key, revision-1)
	switch {
	case o.Outcome == refused || (o.Outcome == done && o.Kind == swap && !o.Succeeded):
		v.add("refused, and yet in revision %d: %v", revision, o)
	case o.Outcome == done && o.Revision != revision:
		v.add("moved: answered with revision %d, but in revision %d: %v", o.Revision, revision, o)
	case o.Kind == swap && modOf(before) != o.Expect:
		v.add("swap: done in revision %d although %q had revision %d instead of %d: %v", revision, o.Key, modOf(before), o.Expect, o)
	case o.Outcome == done && o.WantPrevious && !samePrevious(o.Previous, before):
		v.add("previous: %v was told of %v, the history has %v", o, o.Previous, before)
	}
	if !sameChanges(events, changesOf(o, before != nil)) {
		v.add("torn: revision %d consists of %v, by %v", revision, events, o)
	}
}

// change is an event without the bookkeeping.
type change struct {
	delete     bool
	key, value string
	lease      int64
}

// changesOf are those that an operation makes, in the order of its requests.
func changesOf(o *operation, existed bool) []change {
	switch o.Kind {
	case put, swap, attach:
		return []change{{key: o.Key, value: o.Value, lease: o.Lease}}
	case pair:
		return []change{{key: o.Key, value: o.Value}, {key: o.OtherKey, value: o.Value}}
	case bury:
		marker := change{key: o.OtherKey, value: o.Value}
		if existed {
			return []change{{delete: true, key: o.Key}, marker}
		}
		return []change{marker}
	case remove:
		return []change{{delete: true, key: o.Key}}
	default:
		return nil
	}
}

func sameChanges(events []event, want []change) bool {
	if len(events) != len(want) {
		return false
	}
	for i, e := range events {
		got := change{delete: e.Delete, key: e.Row.Key, value: e.Row.Value, lease: e.Row.Lease}
		if got != want[i] {
			return false
		}
	}
	return true
}

// attachments are the keys of each lease, as the history goes on.
type attachments map[string]int64

func (a attachments) lease(key string) int64 { return a[key] }

func (a attachments) keys(lease int64) []string {
	var keys []string
	for key, holder := range a {
		if holder == lease {
			keys = append(keys, key)
		}
	}
	sort.Strings(keys)
	return keys
}

func (v *verdict) attachAll(attached attachments, events []event) {
	for _, e := range events {
		delete(attached, e.Row.Key)
		if e.Delete || e.Row.Lease == 0 {
			continue
		}
		attached[e.Row.Key] = e.Row.Lease
		if end := v.leaseEnd[e.Row.Lease]; end > 0 {
			v.add("lease %x ended in revision %d, and holds %q in revision %d", e.Row.Lease, end, e.Row.Key, e.Row.Mod)
		}
	}
}

// leaseEnded: all the keys of one lease, sorted, and no other.
func (v *verdict) leaseEnded(attached attachments, revision int64, events []event) {
	lease := attached.lease(events[0].Row.Key)
	want := attached.keys(lease)
	same := len(want) == len(events)
	for i := 0; same && i < len(events); i++ {
		same = events[i].Row.Key == want[i]
	}
	if !same {
		v.add("lease %x: revision %d deletes %v, its keys are %q", lease, revision, events, want)
	}
	v.leaseEnd[lease] = revision
}

// matchDeletes: each deletion that nobody was told of needs a delete of its own,
// asked for before the deletion was seen, whose caller does not know better.
func (v *verdict) matchDeletes(unexplained []event) {
	candidates := map[string][]*operation{}
	for _, o := range v.recording.Operations {
		if o.Kind == remove && o.Outcome == unknown {
			candidates[o.Key] = append(candidates[o.Key], o)
		}
	}
	for _, of := range candidates {
		sort.Slice(of, func(i, j int) bool { return of[i].Call < of[j].Call })
	}
	for _, e := range unexplained {
		key, revision := e.Row.Key, e.Row.Mod
		if len(candidates[key]) == 0 || candidates[key][0].Call > v.clock.seenBy[revision] {
			v.add("phantom: nobody deleted %q in revision %d", key, revision)
			continue
		}
		v.effect[candidates[key][0]] = revision
		candidates[key] = candidates[key][1:]
	}
}
