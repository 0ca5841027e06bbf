package faultsuite

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"leaseway/compat-tests/harness"
)

const (
	workers      = 9
	leaseHolders = 5
	// endBound is how long leases and watchers may take after the last fault.
	endBound = 2 * time.Minute
)

// settings are the run's, from the environment.
type settings struct {
	seed  uint64
	total time.Duration
	nasty bool
}

func readSettings(t *testing.T, subject harness.Subject) settings {
	s := settings{seed: uint64(time.Now().UnixNano()) % 1_000_000, total: 30 * time.Second, nasty: os.Getenv("FAULTS_NASTY") != ""}
	if subject == harness.Gateway {
		s.total = time.Minute
	}
	if text := os.Getenv("FAULTS_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("FAULTS_SEED: %v", err)
		}
		s.seed = seed
	}
	if text := os.Getenv("FAULTS_SECONDS"); text != "" {
		count, err := strconv.Atoi(text)
		if err != nil {
			t.Fatalf("FAULTS_SECONDS: %v", err)
		}
		s.total = time.Duration(count) * time.Second
	}
	return s
}

func TestFaults(t *testing.T) {
	subject := harness.CurrentSubject(t)
	s := readSettings(t, subject)
	t.Logf("seed %d, %v of faults (FAULTS_SEED, FAULTS_SECONDS)", s.seed, s.total)
	w := newWorld(t, s.seed)
	t.Cleanup(w.keep)
	clients := w.startClients()
	incidents := w.runFaults(planFaults(s.seed, kindsFor(subject, s.nasty), s.total))
	clients.stopLoad()
	final := w.finish(clients)
	history := append(w.forgotten(), w.compareServers(final)...)
	began := time.Now()
	v := judge(w.recording, history)
	t.Logf("judged in %v", time.Since(began).Round(time.Millisecond))
	report(t, w, v, incidents)
}

// clients are all that run beside the faults.
type clients struct {
	stopLoad, stopWatchers context.CancelFunc
	load, watchers         sync.WaitGroup
}

func (w *world) startClients() *clients {
	load, stopLoad := context.WithCancel(context.Background())
	watching, stopWatchers := context.WithCancel(context.Background())
	running := &clients{stopLoad: stopLoad, stopWatchers: stopWatchers}
	w.t.Cleanup(func() {
		w.abandoned.Store(true)
		stopLoad()
		stopWatchers()
		running.load.Wait()
		running.watchers.Wait()
	})
	number := 0
	start := func(group *sync.WaitGroup, body func(*client)) {
		c := w.client(number)
		number++
		group.Go(func() {
			defer c.close()
			body(c)
		})
	}
	for range workers {
		start(&running.load, func(c *client) { w.work(load, c) })
	}
	for range leaseHolders {
		start(&running.load, func(c *client) { w.holdLeases(load, c) })
	}
	w.recording.Watchers = newWatchers()
	start(&running.load, func(c *client) { w.compactSometimes(load, c) })
	for _, watcher := range w.recording.Watchers {
		ctx, group := watching, &running.watchers
		if watcher.FromNow {
			ctx, group = load, &running.load
		}
		start(group, func(c *client) { w.watch(ctx, c, watcher) })
	}
	return running
}

// watchedPrefixes get a final key each.
var watchedPrefixes = []string{"lease/", "pair/", "reg/"}

func newWatchers() []*watching {
	var watchers []*watching
	for _, prefix := range watchedPrefixes {
		watchers = append(watchers,
			&watching{Name: prefix, Key: prefix, End: prefixEnd(prefix)},
			&watching{Name: prefix + " with previous values", Key: prefix, End: prefixEnd(prefix), Previous: true})
	}
	return append(watchers,
		&watching{Name: "everything", Key: allKeys, End: allKeys},
		&watching{Name: "everything again", Key: allKeys, End: allKeys},
		&watching{Name: "reg/ from now on", Key: "reg/", End: prefixEnd("reg/"), FromNow: true},
		&watching{Name: "everything from now on", Key: allKeys, End: allKeys, FromNow: true})
}

// runFaults does them one after the other, each when the servers serve again.
func (w *world) runFaults(plan []fault) []incident {
	w.mustServe("at the start")
	var incidents []incident
	for number, f := range plan {
		time.Sleep(f.Quiet)
		i := incident{Fault: f, Began: w.recording.now()}
		who, heal := w.breakIt(f)
		i.Who = who
		w.t.Logf("%3d  %v  %s (%s) for %v", number, i.Began, f.Kind, who, f.For)
		time.Sleep(f.For)
		heal()
		i.Healed = w.recording.now()
		w.mustServe(fmt.Sprintf("after fault %d, %s (%s)", number, f.Kind, who))
		i.Served = w.recording.now()
		incidents = append(incidents, i)
	}
	return incidents
}

// finish waits until every lease has ended and every watcher has seen the end. It
// returns the last revision.
func (w *world) finish(running *clients) int64 {
	running.load.Wait()
	c := w.probers[0]
	if err := w.awaitLeases(c); err != nil {
		w.t.Errorf("not within %v after the last fault: %v", endBound, err) // and judge what there is
	}
	w.mustServe("at the end") // the last writes but for those below
	last := int64(0)
	for _, prefix := range watchedPrefixes {
		o := &operation{Kind: put, Key: prefix + finalKey, Value: w.values.next(c)}
		c.perform(context.Background(), o)
		if o.Outcome != done {
			w.t.Fatalf("the last put: %v", o)
		}
		last = o.Revision
	}
	seen := make(chan struct{})
	go func() {
		running.watchers.Wait()
		close(seen)
	}()
	select {
	case <-seen:
	case <-time.After(endBound):
		w.t.Errorf("watchers have not seen the end within %v", endBound)
		running.stopWatchers()
		<-seen
	}
	return last
}

// awaitLeases waits until no lease holds a key any more.
func (w *world) awaitLeases(c *client) error {
	var err error
	for deadline := time.Now().Add(endBound); time.Now().Before(deadline); pause(context.Background(), retryPause) {
		o := &operation{Kind: list, Key: "lease/", End: prefixEnd("lease/")}
		c.perform(context.Background(), o)
		if err = stillHeld(o); err == nil {
			return nil
		}
	}
	return err
}

func stillHeld(o *operation) error {
	if o.Outcome != done {
		return fmt.Errorf("%s", o.Failure)
	}
	for _, found := range o.Rows {
		if found.Lease != 0 {
			return fmt.Errorf("%q is still there, held by lease %x", found.Key, found.Lease)
		}
	}
	return nil
}

// compareServers returns the history as far as it is not compacted, which all have
// to agree on.
func (w *world) compareServers(last int64) []event {
	var first []event
	var firstHash uint32
	for number := range w.servers {
		history, err := w.history(number, last)
		if err != nil {
			w.t.Fatal(err)
		}
		hash, err := w.hash(number, last)
		if err != nil {
			w.t.Fatalf("hash of server %d: %v", number, err)
		}
		if number == 0 {
			first, firstHash = history, hash
			continue
		}
		if hash != firstHash || !sameEvents(history, first) {
			w.t.Errorf("server %d has another history than server 0: %d and %d events, hashes %x and %x",
				number, len(history), len(first), hash, firstHash)
		}
	}
	return first
}

func report(t *testing.T, w *world, v *verdict, incidents []incident) {
	counts := map[string]int{}
	for _, o := range w.recording.Operations {
		counts[fmt.Sprintf("%s %s", o.Kind, o.Outcome)]++
	}
	answers := 0
	for _, watcher := range w.recording.Watchers {
		for _, session := range watcher.Sessions {
			answers += len(session.Answers)
		}
	}
	t.Logf("%d revisions, %d operations %v, %d answers to watchers", v.timeline.last, len(w.recording.Operations), counts, answers)
	t.Logf("%d leases ended by themselves, after their time: p50 %s, max %s",
		len(v.lateness), seconds(percentile(v.lateness, 50)), seconds(percentile(v.lateness, 100)))
	t.Logf("outages\n%s", outageTable(w.recording, incidents))
	if v.count > 0 {
		t.Errorf("seed %d: %d findings, the first:\n%s", w.seed, v.count, strings.Join(v.texts, "\n"))
	}
}
