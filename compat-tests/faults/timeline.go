package faultsuite

import "sort"

// timeline is the keyspace's history: every event of every revision.
type timeline struct {
	// at holds the events by revision, in their order.
	at map[int64][]event
	// keys are all that ever existed, sorted.
	keys []string
	// changes are a key's events by revision.
	changes map[string][]event
	last    int64
}

// firstRevision is that of an empty keyspace.
const firstRevision = 1

// newTimeline orders events as a watch from the beginning told them, and checks
// that they are a history at all: no revision left out, none twice, and every
// key's own bookkeeping right.
func newTimeline(events []event, wrong *findings) *timeline {
	t := &timeline{at: map[int64][]event{}, changes: map[string][]event{}, last: firstRevision}
	for _, e := range events {
		revision := e.Row.Mod
		switch {
		case revision < t.last || revision == firstRevision:
			wrong.add("history: revision %d of %q comes after %d", revision, e.Row.Key, t.last)
			continue
		case revision > t.last+1:
			wrong.add("history: a gap between revisions %d and %d", t.last, revision)
		}
		t.last = revision
		t.append(e, wrong)
	}
	for key := range t.changes {
		t.keys = append(t.keys, key)
	}
	sort.Strings(t.keys)
	return t
}

func (t *timeline) append(e event, wrong *findings) {
	key, revision := e.Row.Key, e.Row.Mod
	before := t.row(key, revision-1)
	switch {
	case len(t.changes[key]) > 0 && t.changes[key][len(t.changes[key])-1].Row.Mod == revision:
		wrong.add("history: %q twice in revision %d", key, revision)
	case e.Delete && before == nil:
		wrong.add("history: %q is deleted in revision %d, and was not there", key, revision)
	case !e.Delete && before == nil && (e.Row.Version != 1 || e.Row.Create != revision):
		wrong.add("history: %q is new in revision %d, as version %d created in %d", key, revision, e.Row.Version, e.Row.Create)
	case !e.Delete && before != nil && (e.Row.Version != before.Version+1 || e.Row.Create != before.Create):
		wrong.add("history: %q has version %d created in %d in revision %d, after version %d created in %d",
			key, e.Row.Version, e.Row.Create, revision, before.Version, before.Create)
	}
	t.at[revision] = append(t.at[revision], e)
	t.changes[key] = append(t.changes[key], e)
}

// row is a key as of a revision, nil if it did not exist.
func (t *timeline) row(key string, revision int64) *row {
	changes := t.changes[key]
	after := sort.Search(len(changes), func(i int) bool { return changes[i].Row.Mod > revision })
	if after == 0 || changes[after-1].Delete {
		return nil
	}
	return &changes[after-1].Row
}

// rows are those of a range as of a revision, by key.
func (t *timeline) rows(key, end string, revision int64) []row {
	var rows []row
	for i := sort.SearchStrings(t.keys, key); i < len(t.keys) && inRange(t.keys[i], key, end); i++ {
		if found := t.row(t.keys[i], revision); found != nil {
			rows = append(rows, *found)
		}
	}
	return rows
}

// events are those of a range within the revisions from and to, both included.
func (t *timeline) events(key, end string, from, to int64) []event {
	var events []event
	for revision := max(from, firstRevision+1); revision <= to; revision++ {
		for _, e := range t.at[revision] {
			if inRange(e.Row.Key, key, end) {
				events = append(events, e)
			}
		}
	}
	return events
}

// allKeys as a range's end is etcd's way to say "and everything behind".
const allKeys = "\x00"

// inRange tells whether a key is in the range that etcd's requests name so.
func inRange(key, from, end string) bool {
	switch end {
	case "":
		return key == from
	case allKeys:
		return key >= from
	default:
		return key >= from && key < end
	}
}

// prefixEnd is the end of the range of all keys that begin with a prefix.
func prefixEnd(prefix string) string {
	last := len(prefix) - 1
	return prefix[:last] + string(prefix[last]+1)
}
