package faultsuite

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// registerKeys are in use at a time; after registerTime others are, so that no
	// key's history gets longer than a checker can search.
	registerKeys = 6
	registerTime = 8 * time.Second
	// pace is the longest pause of a client between two requests.
	pace = 16 * time.Millisecond
	// compactionPause is between two compactions.
	compactionPause = 5 * time.Second
	// retryPause is that after a failure.
	retryPause = 50 * time.Millisecond
)

// values are unique in a run.
type values struct{ count atomic.Int64 }

func (v *values) next(c *client) string {
	value := fmt.Sprintf("%d/%d", c.number, v.count.Add(1))
	// Most are short, as most are in life; some make an entry of the log large.
	if c.random.IntN(64) == 0 {
		value += "/" + strings.Repeat("x", c.random.IntN(16<<10))
	}
	return value
}

// pause waits up to a time, or until the load ends.
func pause(ctx context.Context, within time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(within):
	}
}

// work reads and writes registers until the load ends. It leaves no request behind:
// the one that is on its way is waited for.
func (w *world) work(load context.Context, c *client) {
	known := map[string]int64{} // modification revisions
	for load.Err() == nil {
		c.move()
		o := w.registerOperation(c, known)
		c.perform(context.Background(), o)
		learn(known, o)
		if c.failed {
			pause(load, retryPause)
		} else {
			pause(load, time.Duration(c.random.Int64N(int64(pace))))
		}
	}
}

func (w *world) registerOperation(c *client, known map[string]int64) *operation {
	epoch := int64(w.recording.now()) / int64(registerTime)
	prefix := fmt.Sprintf("reg/%04d/", epoch)
	key := fmt.Sprintf("%s%d", prefix, c.random.IntN(registerKeys))
	o := &operation{Key: key, WantPrevious: c.random.IntN(2) == 0}
	switch c.random.IntN(16) {
	case 0, 1, 2, 3:
		o.Kind, o.Value = put, w.values.next(c)
	case 4, 5, 6:
		o.Kind, o.Value, o.Expect = swap, w.values.next(c), known[key]
	case 7, 8, 9:
		o.Kind = get
	case 10:
		o.Kind, o.Serializable = get, true
	case 11:
		o.Kind, o.Key, o.End, o.Serializable = list, prefix, prefixEnd(prefix), c.random.IntN(2) == 0
	case 12:
		o.Kind = remove
	case 13:
		o.Kind, o.OtherKey, o.Value = bury, fmt.Sprintf("grave/%d", c.number), w.values.next(c)
	case 14:
		o.Kind, o.Key, o.OtherKey, o.Value = pair, "pair/a", "pair/b", w.values.next(c)
	default:
		o.Kind, o.Key, o.End = list, "pair/", prefixEnd("pair/")
	}
	return o
}

// perform sends what the operation's kind asks for.
func (c *client) perform(ctx context.Context, o *operation) {
	switch o.Kind {
	case put, attach:
		c.put(ctx, o)
	case get, list:
		c.get(ctx, o)
	case swap:
		c.swap(ctx, o)
	case remove:
		c.remove(ctx, o)
	case bury:
		c.bury(ctx, o)
	case pair:
		c.pair(ctx, o)
	case grant:
		c.grant(ctx, o)
	case renew:
		c.renew(ctx, o)
	case revoke:
		c.revoke(ctx, o)
	case timeToLive:
		c.timeToLive(ctx, o)
	case compact:
		c.compact(ctx, o)
	}
}

// learn remembers what the next swap of a key needs.
func learn(known map[string]int64, o *operation) {
	switch {
	case o.Outcome != done:
	case o.Kind == put || (o.Kind == swap && o.Succeeded):
		known[o.Key] = o.Revision
	case o.Kind == remove || o.Kind == bury:
		delete(known, o.Key)
	case o.Kind == get || o.Kind == swap:
		delete(known, o.Key)
		for _, found := range o.Rows {
			known[found.Key] = found.Mod
		}
	}
}

// compactSometimes forgets, now and then, what every watcher that resumes has seen.
func (w *world) compactSometimes(load context.Context, c *client) {
	for load.Err() == nil {
		pause(load, compactionPause)
		seen := w.seenByAll()
		if load.Err() != nil || seen <= w.compacted.Load() {
			continue
		}
		// Whatever comes of it: it may have happened.
		w.compacted.Store(seen)
		c.request(load, &operation{Kind: compact, CompactAt: seen})
	}
}

// seenByAll is the last revision that no watcher needs any more.
func (w *world) seenByAll() int64 {
	least := int64(never)
	for _, watcher := range w.recording.Watchers {
		if !watcher.FromNow {
			least = min(least, watcher.next.Load()-1)
		}
	}
	return least
}
