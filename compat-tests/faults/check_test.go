package faultsuite

import (
	"strings"
	"testing"
	"time"
)

// The judges are judged: a run in which all is right passes, and each way of being
// wrong is found, by the judge whose business it is.

const at = instant(time.Second)

// story is a small run in which all is right. Its fields name the parts that tests
// falsify.
type story struct {
	*recording
	history []event

	first, second, swapped, read, lost, watched *operation
	granted, attached, attachedToo, renewed     *operation
	everything                                  *watching
}

func putEvent(key, value string, create, mod, version, lease int64) event {
	return event{Row: row{Key: key, Value: value, Create: create, Mod: mod, Version: version, Lease: lease}}
}

func deleteEvent(key string, mod int64) event {
	return event{Delete: true, Row: row{Key: key, Mod: mod}}
}

// tell lays operations one after the other, a second apart.
func (s *story) tell(o *operation) *operation {
	o.Client, o.Call, o.Return = len(s.Operations), at*instant(len(s.Operations)), at*instant(len(s.Operations))+at/2
	if o.Outcome == "" {
		o.Outcome = done
	}
	s.add(o)
	return o
}

func newStory() *story {
	s := &story{recording: newRecording()}
	s.first = s.tell(&operation{Kind: put, Key: "a", Value: "1", Revision: 2, WantPrevious: true})
	s.second = s.tell(&operation{Kind: put, Key: "a", Value: "2", Revision: 3})
	s.swapped = s.tell(&operation{Kind: swap, Key: "a", Value: "3", Expect: 3, Revision: 4, Succeeded: true})
	s.lost = s.tell(&operation{Kind: put, Key: "a", Value: "4", Outcome: unknown}) // revision 5
	s.read = s.tell(&operation{Kind: get, Key: "a", Revision: 5, Rows: []row{{"a", "4", 2, 5, 4, 0}}})
	s.tell(&operation{Kind: remove, Key: "a", Outcome: unknown}) // revision 6
	s.watched = s.tell(&operation{Kind: pair, Key: "p", OtherKey: "q", Value: "5", Revision: 7})
	s.granted = s.tell(&operation{Kind: grant, Lease: 9, TTL: 3, Revision: 7})
	s.attached = s.tell(&operation{Kind: attach, Key: "l1", Value: "6", Lease: 9, Revision: 8})
	s.attachedToo = s.tell(&operation{Kind: attach, Key: "l2", Value: "7", Lease: 9, Revision: 9})
	s.renewed = s.tell(&operation{Kind: renew, Lease: 9, TTL: 3, Revision: 9}) // asked for at 10 s: due at 13 s
	s.tell(&operation{Kind: get, Key: "l1", Revision: 9, Rows: []row{{"l1", "6", 8, 8, 1, 9}}})
	s.tell(&operation{Kind: list, Key: "l", End: "m", Revision: 9, Rows: []row{{"l1", "6", 8, 8, 1, 9}, {"l2", "7", 9, 9, 1, 9}}})
	s.tell(&operation{Kind: list, Key: "l", End: "m", Revision: 10})
	s.tell(&operation{Kind: renew, Lease: 9, TTL: 0, Revision: 10})
	s.history = []event{
		putEvent("a", "1", 2, 2, 1, 0), putEvent("a", "2", 2, 3, 2, 0), putEvent("a", "3", 2, 4, 3, 0),
		putEvent("a", "4", 2, 5, 4, 0), deleteEvent("a", 6),
		putEvent("p", "5", 7, 7, 1, 0), putEvent("q", "5", 7, 7, 1, 0),
		putEvent("l1", "6", 8, 8, 1, 9), putEvent("l2", "7", 9, 9, 1, 9),
		deleteEvent("l1", 10), deleteEvent("l2", 10),
	}
	s.everything = &watching{Name: "everything", Key: allKeys, End: allKeys, Sessions: []*watchSession{
		{Start: 2, Created: 1, Answers: []watchAnswer{
			{14 * at, 5, clone(s.history[0:4])}, {14 * at, 6, clone(s.history[4:5])}, {14 * at, 6, nil}, {14 * at, 7, clone(s.history[5:7])},
		}},
		{Start: 8, Created: 9, Answers: []watchAnswer{{14 * at, 9, clone(s.history[7:9])}, {14 * at, 10, clone(s.history[9:])}}},
	}}
	s.Watchers = []*watching{s.everything}
	return s
}

func clone(events []event) []event { return append([]event(nil), events...) }

func TestAStoryInWhichAllIsRight(t *testing.T) {
	s := newStory()
	if v := judge(s.recording, s.history); v.count > 0 {
		t.Fatalf("findings:\n%s", strings.Join(v.texts, "\n"))
	}
}

func TestEveryWrongIsFound(t *testing.T) {
	for _, wrong := range []struct {
		name string
		// want is how the finding begins that must be among those found.
		want string
		make func(*story)
	}{
		{"an acknowledged write is missing", "lost: ", func(s *story) {
			s.tell(&operation{Kind: put, Key: "b", Value: "gone", Revision: 10})
		}},
		{"a write is there twice", "twice: ", func(s *story) {
			s.history = append(s.history, putEvent("a", "2", 11, 11, 1, 0))
		}},
		{"a write without an answer is there twice", "twice: ", func(s *story) {
			s.history = append(s.history, putEvent("a", "4", 11, 11, 1, 0))
		}},
		{"a delete without an answer happened twice", "phantom: nobody deleted", func(s *story) {
			s.tell(&operation{Kind: put, Key: "a", Value: "again", Revision: 11})
			s.history = append(s.history, putEvent("a", "again", 11, 11, 1, 0), deleteEvent("a", 12))
		}},
		{"a write that nobody asked for", "phantom: nobody wrote", func(s *story) {
			s.history = append(s.history, putEvent("b", "whose", 11, 11, 1, 0))
		}},
		{"a write in another revision than it was told", "moved: ", func(s *story) { s.first.Revision = 4 }},
		{"a write without effect that has one", "refused, and yet", func(s *story) { s.lost.Outcome = refused }},
		{"a swap of what was not there", "swap: done", func(s *story) { s.swapped.Expect = 2 }},
		{"a refused swap of what was there", "swap: refused", func(s *story) {
			s.tell(&operation{Kind: swap, Key: "p", Value: "no", Expect: 7, Revision: 10, Rows: []row{{"p", "5", 7, 7, 1, 0}}})
		}},
		{"a wrong previous value", "previous: ", func(s *story) { s.first.Previous = &row{Key: "a", Value: "0"} }},
		{"a transaction of which half is there", "torn: ", func(s *story) { s.history = append(s.history[:6:6], s.history[7:]...) }},
		{"a transaction in two revisions", "twice: ", func(s *story) {
			s.history = s.history[:7:7]
			s.history[6].Row.Mod, s.history[6].Row.Create = 8, 8
		}},
		{"a gap in the history", "history: a gap", func(s *story) { s.history = append(s.history[:3:3], s.history[4:]...) }},
		{"a version left out", "history: \"a\" has version 3", func(s *story) { s.history[1].Row.Version = 3 }},
		{"a stale read", "stale: ", func(s *story) {
			s.tell(&operation{Kind: get, Key: "a", Revision: 4, Rows: []row{{"a", "3", 2, 4, 3, 0}}})
		}},
		{"a stale read, for who knows no revisions", "not linearizable", func(s *story) {
			s.tell(&operation{Kind: get, Key: "a", Revision: 4, Rows: []row{{"a", "3", 2, 4, 3, 0}}})
		}},
		{"a read before its write", "order: ", func(s *story) { s.lost.Call, s.lost.Return = 7*at, 8*at }},
		{"a read of another revision's state", "read: ", func(s *story) { s.read.Rows[0].Value = "3" }},
		{"a read of part of a transaction", "read: ", func(s *story) {
			s.tell(&operation{Kind: list, Key: "p", End: "r", Revision: 10, Rows: []row{{"p", "5", 7, 7, 1, 0}}})
		}},
		{"a process that goes back in time", "back in time: ", func(s *story) {
			s.tell(&operation{Kind: get, Key: "a", Serializable: true, Revision: 4, Rows: []row{{"a", "3", 2, 4, 3, 0}}})
		}},
		{"a watcher that misses a revision", "watch: everything at", func(s *story) {
			answers := s.everything.Sessions[0].Answers
			answers[0].Events = append(answers[0].Events[:1], answers[0].Events[2:]...)
		}},
		{"a watcher that misses what came between two servers", "watch: everything at", func(s *story) {
			s.everything.Sessions[1].Answers = s.everything.Sessions[1].Answers[1:]
		}},
		{"a watcher that is told twice", "watch: everything at", func(s *story) {
			answers := s.everything.Sessions[0].Answers
			answers[1].Events = append(clone(answers[0].Events[3:]), answers[1].Events...)
		}},
		{"a watcher that is told the wrong order", "watch: everything at", func(s *story) {
			events := s.everything.Sessions[0].Answers[0].Events
			events[0], events[1] = events[1], events[0]
		}},
		{"a watcher that sees half a revision", "watch: everything at", func(s *story) {
			session := s.everything.Sessions[0]
			both := session.Answers[3].Events
			session.Answers[3].Events = both[:1]
			session.Answers = append(session.Answers, watchAnswer{14 * at, 7, both[1:]})
		}},
		{"progress that is not true", "watch: everything at", func(s *story) { s.everything.Sessions[0].Answers[2].Revision = 7 }},
		{"a watcher that begins in the past", "stale: watcher", func(s *story) {
			s.Watchers = append(s.Watchers, &watching{Name: "late", Key: "z", End: "zz", FromNow: true, Sessions: []*watchSession{
				{Called: 13 * at, Created: 8},
			}})
		}},
		{"a lease that ends early", "lease 9: early", func(s *story) { s.renewed.TTL = 4 }},
		{"a lease that ends although a renewal was acknowledged later", "lease 9: early", func(s *story) {
			s.tell(&operation{Kind: renew, Lease: 9, TTL: 3, Revision: 10})
		}},
		{"a lease whose keys go one by one", "lease 9: revision 10 deletes", func(s *story) { s.history[10].Row.Mod = 11 }},
		{"a lease that is called ended while it lives", "lease 9: it ended only", func(s *story) { s.renewed.TTL = 0 }},
		{"a lease that does not end", "lease 9 still holds", func(s *story) { s.history = s.history[:9] }},
		{"a key put to a lease that has ended", "lease 9 ended in revision 10, and holds", func(s *story) {
			s.tell(&operation{Kind: attach, Key: "l3", Value: "late", Lease: 9, Revision: 11})
			s.history = append(s.history, putEvent("l3", "late", 11, 11, 1, 9))
		}},
		{"a revocation that is answered before it is done", "lease 9: its keys went in revision 10, after the answer", func(s *story) {
			s.tell(&operation{Kind: revoke, Lease: 9, Revision: 9})
		}},
	} {
		t.Run(wrong.name, func(t *testing.T) {
			s := newStory()
			wrong.make(s)
			v := judge(s.recording, s.history)
			for _, text := range v.texts {
				if strings.HasPrefix(text, wrong.want) {
					return
				}
			}
			t.Fatalf("no finding begins with %q:\n%s", wrong.want, strings.Join(v.texts, "\n"))
		})
	}
}

// Many unknown outcomes must not make the search endless.
func TestManyUnknownOutcomes(t *testing.T) {
	r := newRecording()
	var history []event
	for i := range 400 {
		value := string(rune('a'+i%26)) + strings.Repeat("x", i)
		r.add(&operation{Kind: put, Key: "k", Value: value, Outcome: unknown, Call: at})
		if i%2 == 0 {
			version := int64(len(history) + 1)
			history = append(history, putEvent("k", value, 2, version+1, version, 0))
		}
	}
	v := judge(r, history)
	if v.count > 0 {
		t.Fatalf("findings:\n%s", strings.Join(v.texts, "\n"))
	}
}

func TestTheSeedDecidesWhatHappens(t *testing.T) {
	kinds := kindsFor("oxia", true)
	one, again, other := planFaults(7, kinds, time.Minute), planFaults(7, kinds, time.Minute), planFaults(8, kinds, time.Minute)
	same := func(a, b []fault) bool {
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
	if !same(one, again) || same(one, other) {
		t.Fatalf("the same seed twice, then another:\n%v\n%v\n%v", one, again, other)
	}
	for _, f := range one {
		if f.For < shortestFault || f.For > 30*time.Second {
			t.Errorf("%v lasts %v", f.Kind, f.For)
		}
	}
}
