package faultsuite

import "strings"

// checkWatchers: each was told every event of its range, once, in order, whole
// revisions at a time, across all the servers that it went to.
func (v *verdict) checkWatchers() {
	for _, w := range v.recording.Watchers {
		next := int64(0)
		for _, session := range w.Sessions {
			if session.Created == 0 {
				continue
			}
			// One that does not resume is not waited for by compactions.
			overtaken := w.FromNow && strings.Contains(session.Canceled, "compacted")
			if session.Canceled != "" && !overtaken {
				v.add("watch: server %v ended %s: %s", session.At, w.Name, session.Canceled)
			}
			if session.Start == 0 {
				next = session.Created + 1
			} else if next != 0 && session.Start != next {
				v.add("watch: %s resumed at %d instead of %d: the test is wrong", w.Name, session.Start, next)
			} else {
				next = session.Start
			}
			for _, answer := range session.Answers {
				next = v.checkAnswer(w, session, answer, next)
			}
		}
	}
}

// checkAnswer returns the revision that the watcher has to be told of next.
func (v *verdict) checkAnswer(w *watching, session *watchSession, answer watchAnswer, next int64) int64 {
	// An answer without events says that nothing up to its revision is missing.
	to := answer.Revision
	if count := len(answer.Events); count > 0 {
		to = answer.Events[count-1].Row.Mod
		if answer.Revision < to {
			v.add("watch: %s was told of revision %d with %d in the header", w.Name, to, answer.Revision)
		}
	}
	want := v.timeline.events(w.Key, w.End, next, to)
	if !sameEvents(answer.Events, want) {
		v.add("watch: %s at server %v at %v: from revision %d on it was told %v, the history has %v",
			w.Name, session.At, answer.At, next, brief(answer.Events), brief(want))
	}
	if w.Previous {
		v.checkPrevious(w, answer)
	}
	return max(next, to+1)
}

func (v *verdict) checkPrevious(w *watching, answer watchAnswer) {
	for _, e := range answer.Events {
		before := v.timeline.row(e.Row.Key, e.Row.Mod-1)
		if !samePrevious(e.Previous, before) {
			v.add("watch: %s was told that %q was %v before revision %d, it was %v", w.Name, e.Row.Key, e.Previous, e.Row.Mod, before)
		}
	}
}

func sameEvents(got, want []event) bool {
	if len(got) != len(want) {
		return false
	}
	for i := range got {
		if got[i].Delete != want[i].Delete || got[i].Row != want[i].Row {
			return false
		}
	}
	return true
}

// brief names the revisions of events, a run of them by its ends.
func brief(events []event) []int64 {
	var revisions []int64
	for _, e := range events {
		revisions = append(revisions, e.Row.Mod)
	}
	const shown = 12
	if len(revisions) > shown {
		return append(revisions[:shown/2:shown/2], revisions[len(revisions)-shown/2:]...)
	}
	return revisions
}
