package clientsuite

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"leaseway/compat-tests/expect"
	"leaseway/compat-tests/harness"
)

func session(t *testing.T, client *clientv3.Client, options ...concurrency.SessionOption) *concurrency.Session {
	t.Helper()
	options = append([]concurrency.SessionOption{concurrency.WithTTL(10)}, options...)
	s, err := concurrency.NewSession(client, options...)
	expect.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestMutexExcludes(t *testing.T) {
	server, client, ctx := start(t)
	const workers, rounds = 6, 15
	var inside atomic.Int32
	var entered atomic.Int32
	var group sync.WaitGroup
	for range workers {
		mutex := concurrency.NewMutex(session(t, server.Client()), "/lock")
		group.Go(func() {
			for range rounds {
				if err := mutex.Lock(ctx); err != nil {
					t.Errorf("lock: %v", err)
					return
				}
				if inside.Add(1) != 1 {
					t.Error("two holders at once")
				}
				entered.Add(1)
				inside.Add(-1)
				if err := mutex.Unlock(ctx); err != nil {
					t.Errorf("unlock: %v", err)
					return
				}
			}
		})
	}
	group.Wait()
	expect.Equal(t, "critical sections", entered.Load(), workers*rounds)
	expect.Equal(t, "left behind", expect.Must(client.Get(ctx, "/lock", clientv3.WithPrefix()))(t).Count, 0)
}

func TestMutexTryLockAndOwnership(t *testing.T) {
	server, client, ctx := start(t)
	first := concurrency.NewMutex(session(t, client), "/lock")
	second := concurrency.NewMutex(session(t, server.Client()), "/lock")
	expect.NoError(t, first.TryLock(ctx))
	if err := second.TryLock(ctx); !errors.Is(err, concurrency.ErrLocked) {
		t.Fatalf("got %v, want %v", err, concurrency.ErrLocked)
	}
	owned := expect.Must(client.Txn(ctx).If(first.IsOwner()).Then(clientv3.OpPut("guarded", "1")).Commit())(t)
	expect.Equal(t, "the owner may write", owned.Succeeded, true)
	expect.NoError(t, first.Unlock(ctx))
	fenced := expect.Must(client.Txn(ctx).If(first.IsOwner()).Then(clientv3.OpPut("guarded", "2")).Commit())(t)
	expect.Equal(t, "a former owner may not", fenced.Succeeded, false)
	expect.NoError(t, second.TryLock(ctx))
}

func TestMutexWaitCanBeCanceled(t *testing.T) {
	server, client, ctx := start(t)
	holder := concurrency.NewMutex(session(t, client), "/lock")
	expect.NoError(t, holder.Lock(ctx))
	waiting, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	waiter := concurrency.NewMutex(session(t, server.Client()), "/lock")
	if err := waiter.Lock(waiting); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v, want %v", err, context.DeadlineExceeded)
	}
	harness.Eventually(t, callDeadline, "the waiter's key goes", func() error {
		if count := expect.Must(client.Get(ctx, "/lock", clientv3.WithPrefix()))(t).Count; count != 1 {
			return fmt.Errorf("%d keys", count)
		}
		return nil
	})
}

func TestLockPassesOnWhenItsHolderDies(t *testing.T) {
	server, client, ctx := start(t)
	dying := expect.Must(concurrency.NewSession(server.Client(), concurrency.WithTTL(shortestTTL)))(t)
	expect.NoError(t, concurrency.NewMutex(dying, "/lock").Lock(ctx))
	dying.Orphan() // stops the keep-alive, as a dead process does
	heir := concurrency.NewMutex(session(t, client), "/lock")
	began := time.Now()
	expect.NoError(t, heir.Lock(ctx))
	expect.Equal(t, "in time", time.Since(began) < 10*time.Second, true)
}

func TestSessionEndsWithItsLease(t *testing.T) {
	_, client, ctx := start(t)
	s := session(t, client)
	expect.Must(client.Revoke(ctx, s.Lease()))(t)
	select {
	case <-s.Done():
	case <-time.After(callDeadline):
		t.Fatal("the session did not notice")
	}
	err := concurrency.NewMutex(s, "/lock").Lock(ctx)
	if err == nil {
		t.Fatal("locked with a dead session")
	}
}

func TestSessionSurvivesRestart(t *testing.T) {
	server, client, ctx := start(t)
	s := session(t, client)
	mutex := concurrency.NewMutex(s, "/lock")
	expect.NoError(t, mutex.Lock(ctx))
	server.Kill()
	server.Resume()
	other := concurrency.NewMutex(session(t, server.Client()), "/lock")
	if err := other.TryLock(ctx); !errors.Is(err, concurrency.ErrLocked) {
		t.Fatalf("got %v, want %v", err, concurrency.ErrLocked)
	}
	select {
	case <-s.Done():
		t.Fatal("the session was lost over a restart")
	default:
	}
	expect.NoError(t, mutex.Unlock(ctx))
	expect.NoError(t, other.Lock(ctx))
}

func TestElection(t *testing.T) {
	server, client, ctx := start(t)
	first := concurrency.NewElection(session(t, client), "/election")
	second := concurrency.NewElection(session(t, server.Client()), "/election")

	if _, err := first.Leader(ctx); !errors.Is(err, concurrency.ErrElectionNoLeader) {
		t.Fatalf("got %v, want %v", err, concurrency.ErrElectionNoLeader)
	}
	expect.NoError(t, first.Campaign(ctx, "one"))
	observed := concurrency.NewElection(session(t, server.Client()), "/election").Observe(ctx)
	leader := func(want string) {
		t.Helper()
		select {
		case response := <-observed:
			expect.Equal(t, "observed", string(response.Kvs[0].Value), want)
		case <-time.After(callDeadline):
			t.Fatalf("%q was not observed", want)
		}
	}
	leader("one")
	won := make(chan error, 1)
	go func() { won <- second.Campaign(ctx, "two") }()
	expect.NoError(t, first.Proclaim(ctx, "uno"))
	leader("uno")
	expect.Equal(t, "leader", string(expect.Must(second.Leader(ctx))(t).Kvs[0].Value), "uno")
	// Resigning before the rival's key exists would leave a moment without leader,
	// which is allowed but would make the next observation ambiguous.
	harness.Eventually(t, callDeadline, "the rival stands", func() error {
		if count := expect.Must(client.Get(ctx, "/election", clientv3.WithPrefix()))(t).Count; count != 2 {
			return fmt.Errorf("%d candidates", count)
		}
		return nil
	})
	expect.NoError(t, first.Resign(ctx))
	expect.NoError(t, <-won)
	leader("two")
	if err := first.Proclaim(ctx, "late"); !errors.Is(err, concurrency.ErrElectionNotLeader) {
		t.Fatalf("got %v, want %v", err, concurrency.ErrElectionNotLeader)
	}
	// A leader may be taken over by its key after a restart of the process.
	resumed := concurrency.ResumeElection(session(t, client), "/election", second.Key(), second.Rev())
	expect.NoError(t, resumed.Proclaim(ctx, "resumed"))
	leader("resumed")
}

func TestElectionMovesOnWhenTheLeaderDies(t *testing.T) {
	server, client, ctx := start(t)
	dying := expect.Must(concurrency.NewSession(server.Client(), concurrency.WithTTL(shortestTTL)))(t)
	expect.NoError(t, concurrency.NewElection(dying, "/election").Campaign(ctx, "old"))
	dying.Orphan()
	heir := concurrency.NewElection(session(t, client), "/election")
	expect.NoError(t, heir.Campaign(ctx, "new"))
	expect.Equal(t, "leader", string(expect.Must(heir.Leader(ctx))(t).Kvs[0].Value), "new")
}

func TestSoftwareTransactions(t *testing.T) {
	for _, level := range []struct {
		name      string
		isolation concurrency.Isolation
	}{
		{"serializable snapshot", concurrency.SerializableSnapshot},
		{"serializable", concurrency.Serializable},
	} {
		t.Run(level.name, func(t *testing.T) {
			server, client, ctx := start(t)
			const accounts, total, workers, moves = 4, 400, 4, 25
			for i := range accounts {
				putAll(t, ctx, client, fmt.Sprintf("account%d=%d", i, total/accounts))
			}
			var group sync.WaitGroup
			for w := range workers {
				worker := server.Client()
				group.Go(func() {
					for i := range moves {
						from, to := fmt.Sprintf("account%d", (w+i)%accounts), fmt.Sprintf("account%d", (w+2*i+1)%accounts)
						if from == to {
							continue
						}
						_, err := concurrency.NewSTM(worker, func(stm concurrency.STM) error {
							a, _ := strconv.Atoi(stm.Get(from))
							b, _ := strconv.Atoi(stm.Get(to))
							stm.Put(from, strconv.Itoa(a-1))
							stm.Put(to, strconv.Itoa(b+1))
							return nil
						}, concurrency.WithIsolation(level.isolation), concurrency.WithAbortContext(ctx))
						if err != nil {
							t.Errorf("transfer: %v", err)
							return
						}
					}
				})
			}
			group.Wait()
			sum := 0
			for _, kv := range expect.Must(client.Get(ctx, "account", clientv3.WithPrefix()))(t).Kvs {
				balance, err := strconv.Atoi(string(kv.Value))
				expect.NoError(t, err)
				sum += balance
			}
			expect.Equal(t, "total", sum, total)
		})
	}
}
