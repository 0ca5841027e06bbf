package transfersuite

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"leaseway/compat-tests/expect"
	"leaseway/compat-tests/harness"
)

// follower is an import that goes on until it is told to cut over.
type follower struct {
	t       *testing.T
	process *harness.Process
	// terminal is the one that it runs on, if it runs on one.
	terminal *harness.Terminal
	dir      string
}

// follow begins one into a new directory or keyspace, and waits until the snapshot is in.
func follow(t *testing.T, from *harness.Server, flags ...string) *follower {
	t.Helper()
	dir, args := followArgs(t, from, flags...)
	process := harness.StartProcess(t, "import", nil, harness.Leaseway.Binary(t), args...)
	expect.NoError(t, process.AwaitOutput("following", 30*time.Second))
	return &follower{t: t, process: process, dir: dir}
}

// followOnTerminal is follow with somebody who looks on.
func followOnTerminal(t *testing.T, from *harness.Server, flags ...string) *follower {
	t.Helper()
	dir, args := followArgs(t, from, flags...)
	process, terminal := harness.StartOnTerminal(t, "import", harness.Leaseway.Binary(t), args...)
	expect.NoError(t, process.AwaitOutput("or press ENTER", 30*time.Second))
	return &follower{t: t, process: process, terminal: terminal, dir: dir}
}

func followArgs(t *testing.T, from *harness.Server, flags ...string) (dir string, args []string) {
	t.Helper()
	if !harness.CurrentSubject(t).IsOurs() {
		t.Skip("leaseway's own command")
	}
	dir = filepath.Join(t.TempDir(), "data")
	args = append([]string{"import", "--from-endpoint", from.URL(), "--follow"}, flags...)
	if harness.CurrentSubject(t) == harness.Gateway {
		args = append(args, harness.Gateway.Flags(t, dir)...)
	} else {
		args = append(args, "--data-dir", dir)
	}
	return dir, args
}

// cutOver ends it and returns the revision that it says it has come to.
func (f *follower) cutOver() int64 {
	f.t.Helper()
	f.process.Signal(syscall.SIGTERM)
	return f.arrived()
}

// arrived waits for the end after it was told to cut over, and returns the revision as cutOver does.
func (f *follower) arrived() int64 {
	f.t.Helper()
	code, ended := f.process.Wait(30 * time.Second)
	if !ended {
		f.t.Fatalf("it still runs: %q", f.process.Output())
	}
	expect.Equal(f.t, "code", code, 0)
	// A terminal shows Ctrl-C, and how much has been sent in a line that is then cleared.
	said := regexp.MustCompile(`(?m)(?:^|\x1b\[K)(?:\^C)?imported .*: revision (\d+),`).FindStringSubmatch(f.process.Output())
	if said == nil {
		f.t.Fatalf("no revision in %q", f.process.Output())
	}
	return expect.Must(strconv.ParseInt(said[1], 10, 64))(f.t)
}

func (f *follower) serve() *harness.Server {
	f.t.Helper()
	return harness.StartOn(f.t, harness.CurrentSubject(f.t), f.dir)
}

// writer changes keys of all kinds until it is stopped: overwrites, deletions, transactions that change several
// keys at one revision, leases that come, go and run out, values that are cut into pieces on their way.
type writer struct {
	t       *testing.T
	cancel  context.CancelFunc
	done    chan error
	written atomic.Int64
	// stopping ends it after its present change: one that is cut off might still be made later.
	stopping atomic.Bool
}

func write(t *testing.T, client *clientv3.Client) *writer {
	ctx, cancel := context.WithCancel(t.Context())
	w := &writer{t: t, cancel: cancel, done: make(chan error, 1)}
	go func() { w.done <- w.run(ctx, client) }()
	t.Cleanup(cancel)
	return w
}

func (w *writer) run(ctx context.Context, client *clientv3.Client) error {
	random := rand.New(rand.NewPCG(31, 0))
	var lease clientv3.LeaseID
	for n := 0; ctx.Err() == nil && !w.stopping.Load(); n++ {
		key := fmt.Sprintf("key/%03d", random.IntN(150))
		var err error
		switch n % 9 {
		case 0:
			var granted *clientv3.LeaseGrantResponse
			if granted, err = client.Grant(ctx, int64(2+random.IntN(2)*3600)); err == nil {
				lease = granted.ID
			}
		case 1, 2:
			_, err = client.Put(ctx, key, "with a lease", clientv3.WithLease(lease))
			if err != nil && ctx.Err() == nil {
				err = nil // it has run out
			}
		case 3:
			_, err = client.Txn(ctx).Then(
				clientv3.OpPut("many/a", "v"), clientv3.OpPut("many/b", "v"),
				clientv3.OpDelete("many/c"), clientv3.OpPut("many/c/d", "v"),
				clientv3.OpDelete("key/0", clientv3.WithRange("key/02")),
			).Commit()
		case 4:
			_, err = client.Delete(ctx, "key/1", clientv3.WithRange("key/105"))
		case 5:
			if n%45 == 5 {
				_, err = client.Revoke(ctx, lease)
				if err != nil && ctx.Err() == nil {
					err = nil // it has run out
				}
			}
		default:
			_, err = client.Put(ctx, key, fmt.Sprint(n))
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
		w.written.Add(1)
	}
	return nil
}

// more waits until so many more changes have been made.
func (w *writer) more(changes int64) {
	w.t.Helper()
	until := w.written.Load() + changes
	harness.Eventually(w.t, time.Minute, "writes", func() error {
		if now := w.written.Load(); now < until {
			return fmt.Errorf("%d of %d", now, until)
		}
		return nil
	})
}

func (w *writer) stop() {
	w.t.Helper()
	w.stopping.Store(true)
	expect.NoError(w.t, <-w.done)
	w.cancel()
}

// settle waits until the short leases of a writer have run out: from then on nothing changes by itself.
func settle(t *testing.T, client *clientv3.Client) {
	t.Helper()
	harness.Eventually(t, 30*time.Second, "short leases run out", func() error {
		for _, lease := range expect.Must(client.Leases(t.Context()))(t).Leases {
			if ttl := expect.Must(client.TimeToLive(t.Context(), lease.ID))(t).GrantedTTL; ttl > 0 && ttl < 100 {
				return fmt.Errorf("one of %d s is left", ttl)
			}
		}
		return nil
	})
}

// TestFollowWhileWriting cuts over under load: what was imported is what etcd had at that revision.
func TestFollowWhileWriting(t *testing.T) {
	t.Parallel()
	etcd := harness.StartSubject(t, harness.Etcd)
	client := etcd.Client()
	fill(t, client, 20)
	writing := write(t, client)
	writing.more(100)
	following := follow(t, etcd)
	writing.more(300)
	now := expect.Must(client.Get(t.Context(), "k"))(t).Header.Revision
	expect.Must(client.Compact(t.Context(), now-50))(t)
	writing.more(300)
	revision := following.cutOver()
	want := expect.Must(client.HashKV(t.Context(), etcd.Endpoint, revision))(t)
	keys := expect.Must(client.Get(t.Context(), "\x00", clientv3.WithFromKey(), clientv3.WithRev(revision)))(t)
	writing.stop()

	moved := following.serve()
	got := expect.Must(moved.Client().HashKV(t.Context(), moved.Endpoint, revision))(t)
	expect.Equal(t, "compacted", got.CompactRevision, want.CompactRevision)
	expect.Equal(t, "hash", got.Hash, want.Hash)
	leases := map[int64]bool{}
	for _, lease := range expect.Must(moved.Client().Leases(t.Context()))(t).Leases {
		leases[int64(lease.ID)] = true
	}
	long := 0
	for _, kv := range keys.Kvs {
		if kv.Lease == 0 {
			continue
		}
		info := expect.Must(client.TimeToLive(t.Context(), clientv3.LeaseID(kv.Lease)))(t)
		if info.GrantedTTL > 100 {
			long++
			if !leases[kv.Lease] {
				t.Fatalf("lease %x of %s is missing", kv.Lease, kv.Key)
			}
		}
	}
	if long == 0 {
		t.Fatal("no key has a lease that lasts")
	}
}

// TestFollowToTheEnd cuts over after the last write: everything is as it was, history, leases and alarms included.
func TestFollowToTheEnd(t *testing.T) {
	t.Parallel()
	etcd := harness.StartSubject(t, harness.Etcd, "--quota-backend-bytes=20000000")
	client := etcd.Client()
	fill(t, client, 21)
	revoked := expect.Must(client.Grant(t.Context(), 5000))(t).ID
	expect.Must(client.Put(t.Context(), "revoked", "v", clientv3.WithLease(revoked)))(t)
	root := enableAuth(t, etcd, client)
	following := follow(t, etcd, "--user=root:secret")
	writing := write(t, root)
	writing.more(400)
	writing.stop()
	expect.Must(root.Revoke(t.Context(), revoked))(t)
	// Leases without keys have no revision at all; those of two seconds have run out in a moment.
	expect.Must(root.Grant(t.Context(), 7000))(t)
	settle(t, root)
	revision := following.cutOver()
	want := stateOf(t, root, true)
	expect.Equal(t, "revision", revision, expect.Must(root.Get(t.Context(), "k"))(t).Header.Revision)
	moved := following.serve().ClientWith(clientv3.Config{Username: "root", Password: "secret"})
	sameState(t, stateOf(t, moved, true), want)
	expect.Equal(t, "next revision", expect.Must(moved.Put(t.Context(), "after", "v"))(t).Header.Revision, revision+1)
}

// TestFollowOutlivesARestart goes on when the server that is followed was away.
func TestFollowOutlivesARestart(t *testing.T) {
	t.Parallel()
	etcd := harness.StartSubject(t, harness.Etcd)
	fill(t, etcd.Client(), 22)
	following := follow(t, etcd)
	expect.Must(etcd.Client().Put(t.Context(), "before", "v"))(t)
	etcd.Restart()
	expect.Must(etcd.Client().Put(t.Context(), "after", "v"))(t)
	following.cutOver()
	want := stateOf(t, etcd.Client(), true)
	sameState(t, stateOf(t, following.serve().Client(), true), want)
}

// TestFollowRefusesWhatItCannotFollow ends without having imported anything when users change, and when it is
// killed.
func TestFollowRefusesWhatItCannotFollow(t *testing.T) {
	t.Parallel()
	etcd := harness.StartSubject(t, harness.Etcd)
	client := etcd.Client()
	fill(t, client, 23)
	following := follow(t, etcd)
	expect.Must(client.UserAdd(t.Context(), "new", "secret"))(t)
	code, err := following.process.Terminate(30 * time.Second)
	expect.NoError(t, err)
	expect.Equal(t, "code", code, 1)
	if said := following.process.Output(); !strings.Contains(said, "users or roles have been changed") {
		t.Fatalf("no reason in %q", said)
	}

	killed := follow(t, etcd)
	killed.process.Kill()
	for _, dir := range []string{following.dir, killed.dir} {
		snapshot := save(t, etcd)
		args := []string{"import", snapshot, "--data-dir", dir}
		if harness.CurrentSubject(t) == harness.Gateway {
			args = append([]string{"import", snapshot}, harness.Gateway.Flags(t, dir)...)
		}
		leaseway(t, args...)
		server := harness.StartOn(t, harness.CurrentSubject(t), dir)
		sameState(t, stateOf(t, server.Client(), true), stateOf(t, client, true))
	}
	if harness.CurrentSubject(t) == harness.Leaseway {
		refused(t, "--follow goes with --from-endpoint", "import", "x", "--follow", "--data-dir", t.TempDir())
	}
}

// TestFollowOnATerminal cuts over when ENTER or Ctrl-C is pressed, and for nothing else that is pressed.
func TestFollowOnATerminal(t *testing.T) {
	t.Parallel()
	etcd := harness.StartSubject(t, harness.Etcd)
	client := etcd.Client()
	fill(t, client, 24)
	for _, pressed := range []struct{ name, first, last string }{
		{"ENTER", "", "\r"},
		{"ENTER after other keys", "yes", "\r"},
		{"Ctrl-C after Ctrl-D", "\x04", "\x03"},
	} {
		t.Run(pressed.name, func(t *testing.T) {
			following := followOnTerminal(t, etcd)
			following.terminal.Type(pressed.first)
			// It goes on until it is told.
			revision := expect.Must(client.Put(t.Context(), "pressed", pressed.name))(t).Header.Revision
			expect.NoError(t, following.process.AwaitOutput(fmt.Sprintf("is followed up to revision %d", revision), 30*time.Second))
			want := stateOf(t, client, true)
			following.terminal.Type(pressed.last)
			expect.Equal(t, "revision", following.arrived(), revision)
			sameState(t, stateOf(t, following.serve().Client(), true), want)
		})
	}
}
