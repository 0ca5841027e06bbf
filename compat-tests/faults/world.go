package faultsuite

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"leaseway/compat-tests/harness"
)

const (
	gateways = 3
	// startDeadline is for a server that was started again, which may have to wait for others.
	startDeadline = time.Minute
	// serviceBound is how long after a repair every server may take to acknowledge a write.
	serviceBound = time.Minute
)

// world is the servers and what is recorded of them.
type world struct {
	t         *testing.T
	seed      uint64
	subject   harness.Subject
	recording *recording
	values    values
	servers   []*harness.Server
	// lives counts the processes that each server has been.
	lives []atomic.Int64
	// compacted is the highest revision up to which history may be gone.
	compacted atomic.Int64
	// abandoned is set when the run has failed, and nobody comes back.
	abandoned atomic.Bool
	// oxia is nil unless the subject needs it.
	oxia *harness.Oxia
	// prober writes to say when service is back.
	probers []*client
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{t: t, seed: seed, subject: harness.CurrentSubject(t), recording: newRecording()}
	count, flags := 1, []string{"--watch-progress-notify-interval=1s"}
	if w.subject == harness.Gateway {
		// Many checkpoints, so that faults meet them.
		flags = append(flags, "--checkpoint-log-bytes=131072")
		// Nobody else's cluster: this one's nodes are killed.
		w.oxia = harness.StartOxia(t)
		t.Setenv("OXIA_ADDRESSES", strings.Join(w.oxia.Addresses, ","))
		count = gateways
	}
	w.servers = append(w.servers, harness.StartSubject(t, w.subject, flags...))
	for len(w.servers) < count {
		w.servers = append(w.servers, w.servers[0].Another())
	}
	w.lives = make([]atomic.Int64, count)
	for number := range w.servers {
		prober := w.client(1000 + number)
		prober.server = number
		t.Cleanup(prober.close)
		w.probers = append(w.probers, prober)
	}
	return w
}

func (w *world) run(server int) serverRun {
	return serverRun{server, int(w.lives[server].Load())}
}

func (w *world) killServer(server int) {
	w.lives[server].Add(1)
	w.servers[server].Kill()
}

// startServer does not wait until it serves: that may need what is still away.
func (w *world) startServer(server int, empty bool) {
	if empty {
		if err := os.RemoveAll(w.servers[server].DataDir); err != nil {
			w.t.Fatal(err)
		}
	}
	w.lives[server].Add(1)
	w.servers[server].Spawn()
}

func (w *world) stopServer(server int)     { w.servers[server].Process().Signal(syscall.SIGSTOP) }
func (w *world) continueServer(server int) { w.servers[server].Process().Signal(syscall.SIGCONT) }

// awaitService waits until every server has acknowledged a write that was asked
// for now, and returns how long the slowest took.
func (w *world) awaitService(within time.Duration) (time.Duration, error) {
	began := time.Now()
	errors := make([]error, len(w.servers))
	var group sync.WaitGroup
	for number := range w.servers {
		group.Go(func() { errors[number] = w.awaitServer(number, within) })
	}
	group.Wait()
	for _, err := range errors {
		if err != nil {
			return 0, err
		}
	}
	return time.Since(began), nil
}

// mustServe ends the test if some server does not acknowledge a write in time.
func (w *world) mustServe(when string) {
	w.t.Helper()
	if _, err := w.awaitService(serviceBound); err != nil {
		w.t.Fatalf("%s: %v%s", when, err, w.stuckNodes())
	}
}

func (w *world) awaitServer(number int, within time.Duration) error {
	deadline := time.Now().Add(within)
	prober := w.probers[number]
	for {
		o := &operation{Kind: put, Key: fmt.Sprintf("probe/%d", number), Value: w.values.next(prober)}
		prober.perform(context.Background(), o)
		if o.Outcome == done {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("server %d acknowledged no write within %v: %s", number, within, o.Failure)
		}
		pause(context.Background(), retryPause)
	}
}

// history is what one server tells of it, from where all still know it, to a revision.
func (w *world) history(server int, to int64) ([]event, error) {
	connection := w.probers[server].connections[server]
	ctx, cancel := context.WithTimeout(context.Background(), startDeadline)
	defer cancel()
	stream, err := pb.NewWatchClient(connection).Watch(ctx)
	if err != nil {
		return nil, err
	}
	create := &pb.WatchCreateRequest{Key: []byte(allKeys), RangeEnd: []byte(allKeys), StartRevision: w.knownFrom()}
	if err := stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}}); err != nil {
		return nil, err
	}
	var events []event
	for len(events) == 0 || events[len(events)-1].Row.Mod < to {
		answer, err := stream.Recv()
		if err != nil {
			return nil, fmt.Errorf("history of server %d after %d events: %w", server, len(events), err)
		}
		if answer.Canceled {
			return nil, fmt.Errorf("history of server %d: %s", server, answer.CancelReason)
		}
		events = append(events, eventsOf(answer.Events)...)
	}
	return events, nil
}

// knownFrom is the first revision that is certainly not compacted.
func (w *world) knownFrom() int64 { return max(w.compacted.Load(), firstRevision) + 1 }

// forgotten is the part of the history that is compacted, as a watcher of everything
// was told of it at the time.
func (w *world) forgotten() []event {
	var events []event
	for _, watcher := range w.recording.Watchers {
		if watcher.Key != allKeys || watcher.FromNow {
			continue
		}
		for _, session := range watcher.Sessions {
			for _, answer := range session.Answers {
				for _, e := range answer.Events {
					if e.Row.Mod < w.knownFrom() {
						events = append(events, e)
					}
				}
			}
		}
		return events
	}
	return nil
}

// hash is a server's of all up to a revision.
func (w *world) hash(server int, revision int64) (uint32, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startDeadline)
	defer cancel()
	answer, err := pb.NewMaintenanceClient(w.probers[server].connections[server]).HashKV(ctx, &pb.HashKVRequest{Revision: revision})
	if err != nil {
		return 0, err
	}
	return answer.Hash, nil
}
