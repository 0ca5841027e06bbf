package faultsuite

import (
	"fmt"
	"strings"
	"time"
)

// leaseLife is all that was asked about one lease.
type leaseLife struct {
	id int64
	// kept are the acknowledged grant and renewals.
	kept    []*operation
	revokes []*operation
	// denials said that the lease did not exist.
	denials []*operation
	others  []*operation
	all     []*operation
}

// String lists what was done, to be read below a finding.
func (l *leaseLife) String() string {
	var text strings.Builder
	for _, o := range l.all {
		fmt.Fprintf(&text, "\n    %v, TTL %d", o, o.TTL)
	}
	return text.String()
}

// checkLeases: a lease ends because it was revoked, or when its whole time has
// passed since the last acknowledged renewal was asked for; and it is not called
// ended before it is. (That its keys go together is part of checkEffects.)
func (v *verdict) checkLeases() {
	held := map[int64]bool{}
	for _, key := range v.timeline.keys {
		if last := v.timeline.row(key, v.timeline.last); last != nil && last.Lease != 0 {
			held[last.Lease] = true
			v.add("lease %x still holds %q at the end", last.Lease, key)
		}
	}
	for _, life := range leaseLives(v.recording) {
		end := v.leaseEnd[life.id]
		if end > 0 {
			v.checkEnd(life, end)
		}
		for _, denial := range life.denials {
			switch {
			case end == 0 && held[life.id]:
				v.add("lease %x: it lives, %v%v", life.id, denial, life)
			case end > 0 && v.clock.notBefore[end] > denial.Return:
				v.add("lease %x: it ended only in revision %d, which was not there at %v: %v%v", life.id, end, v.clock.notBefore[end], denial, life)
			}
		}
		for _, o := range life.others {
			v.checkKeys(life.id, o)
		}
	}
}

func leaseLives(r *recording) map[int64]*leaseLife {
	lives := map[int64]*leaseLife{}
	for _, o := range r.Operations {
		if o.Lease == 0 {
			continue
		}
		life := lives[o.Lease]
		if life == nil {
			life = &leaseLife{id: o.Lease}
			lives[o.Lease] = life
		}
		life.all = append(life.all, o)
		switch {
		case o.Kind == revoke && o.Outcome != refused:
			life.revokes = append(life.revokes, o)
		case (o.Kind == grant || o.Kind == renew) && o.Outcome == done && o.TTL > 0:
			life.kept = append(life.kept, o)
		case o.Kind == renew && o.Outcome == done, o.Kind == timeToLive && o.Outcome == done && o.TTL < 0:
			life.denials = append(life.denials, o)
		case (o.Kind == attach || o.Kind == revoke) && o.Outcome == refused:
			life.denials = append(life.denials, o)
		case o.Kind == timeToLive && o.Outcome == done:
			life.others = append(life.others, o)
		}
	}
	return lives
}

func (v *verdict) checkEnd(life *leaseLife, end int64) {
	seen := v.clock.seenBy[end]
	for _, o := range life.revokes {
		if o.Outcome == done && o.Revision < end {
			v.add("lease %x: its keys went in revision %d, after the answer to %v%v", life.id, end, o, life)
		}
	}
	for _, o := range life.revokes {
		if o.Call <= seen {
			return
		}
	}
	due := instant(0)
	var last *operation
	for _, o := range life.kept {
		if at := o.Call + instant(time.Duration(o.TTL)*time.Second); at > due {
			due, last = at, o
		}
	}
	if last != nil && seen < due {
		v.add("lease %x: early, its keys were seen gone at %v (revision %d), due at %v: %v%v", life.id, seen, end, due, last, life)
	}
	if last != nil {
		late := v.clock.notBefore[end] - last.Return - instant(time.Duration(last.TTL)*time.Second)
		v.lateness = append(v.lateness, max(0, time.Duration(late)))
	}
}

// checkKeys: the keys that a lease is said to have are those of some moment between
// question and answer.
func (v *verdict) checkKeys(lease int64, o *operation) {
	for _, key := range o.Keys {
		ever := false
		for _, e := range v.timeline.changes[key] {
			ever = ever || (!e.Delete && e.Row.Lease == lease)
		}
		if !ever {
			v.add("lease %x: %q never was its key: %v", lease, key, o)
		}
	}
}
