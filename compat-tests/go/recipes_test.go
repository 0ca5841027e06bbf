package clientsuite

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	recipe "go.etcd.io/etcd/client/v3/experimental/recipes"

	"leaseway/compat-tests/expect"
	"leaseway/compat-tests/harness"
)

func TestReadWriteMutex(t *testing.T) {
	server, _, _ := start(t)
	const workers, rounds = 4, 8
	var readers, writers, entered atomic.Int32
	var group sync.WaitGroup
	for w := range workers {
		mutex := recipe.NewRWMutex(session(t, server.Client()), "/rw")
		group.Go(func() {
			for i := range rounds {
				if (w+i)%3 == 0 {
					if err := mutex.Lock(); err != nil {
						t.Errorf("lock: %v", err)
						return
					}
					if writers.Add(1) != 1 || readers.Load() != 0 {
						t.Error("a writer is not alone")
					}
					writers.Add(-1)
					if err := mutex.Unlock(); err != nil {
						t.Errorf("unlock: %v", err)
						return
					}
				} else {
					if err := mutex.RLock(); err != nil {
						t.Errorf("read lock: %v", err)
						return
					}
					readers.Add(1)
					if writers.Load() != 0 {
						t.Error("a reader beside a writer")
					}
					readers.Add(-1)
					if err := mutex.RUnlock(); err != nil {
						t.Errorf("read unlock: %v", err)
						return
					}
				}
				entered.Add(1)
			}
		})
	}
	group.Wait()
	expect.Equal(t, "rounds", entered.Load(), workers*rounds)
}

func TestQueues(t *testing.T) {
	server, client, _ := start(t)
	queue := recipe.NewQueue(client, "/queue")
	for i := range 20 {
		expect.NoError(t, queue.Enqueue(fmt.Sprint(i)))
	}
	for i := range 20 {
		expect.Equal(t, "first in, first out", expect.Must(queue.Dequeue())(t), fmt.Sprint(i))
	}
	// An empty queue makes its reader wait for the next item.
	received := make(chan string, 1)
	waiting := recipe.NewQueue(server.Client(), "/queue")
	go func() {
		item, err := waiting.Dequeue()
		if err != nil {
			t.Errorf("dequeue: %v", err)
		}
		received <- item
	}()
	expect.NoError(t, queue.Enqueue("late"))
	expect.Equal(t, "late item", <-received, "late")

	priority := recipe.NewPriorityQueue(client, "/priority")
	for _, p := range []uint16{5, 1, 3} {
		expect.NoError(t, priority.Enqueue(fmt.Sprint(p), p))
	}
	for _, want := range []string{"1", "3", "5"} {
		expect.Equal(t, "by priority", expect.Must(priority.Dequeue())(t), want)
	}
}

func TestBarriers(t *testing.T) {
	server, client, ctx := start(t)
	barrier := recipe.NewBarrier(client, "/barrier")
	expect.NoError(t, barrier.Hold())
	if err := recipe.NewBarrier(client, "/barrier").Hold(); err == nil {
		t.Fatal("held twice")
	}
	released := make(chan error, 1)
	waiting := recipe.NewBarrier(server.Client(), "/barrier")
	go func() { released <- waiting.Wait() }()
	expect.NoError(t, barrier.Release())
	expect.NoError(t, <-released)

	const parties = 4
	var inside atomic.Int32
	var group sync.WaitGroup
	for range parties {
		double := recipe.NewDoubleBarrier(session(t, server.Client()), "/double", parties)
		group.Go(func() {
			inside.Add(1)
			if err := double.Enter(); err != nil {
				t.Errorf("enter: %v", err)
				return
			}
			if inside.Load() != parties {
				t.Error("entered before all were there")
			}
			if err := double.Leave(); err != nil {
				t.Errorf("leave: %v", err)
			}
		})
	}
	group.Wait()
	harness.Eventually(t, callDeadline, "nothing is left of the barrier", func() error {
		if count := expect.Must(client.Get(ctx, "/double/waiters", clientv3.WithPrefix()))(t).Count; count != 0 {
			return fmt.Errorf("%d waiters", count)
		}
		return nil
	})
}

func TestWaitForEvents(t *testing.T) {
	_, client, ctx := start(t)
	putAll(t, ctx, client, "k=1")
	expect.Must(client.Delete(ctx, "k"))(t)
	found := expect.Must(recipe.WaitEvents(client, "k", 1, []mvccpb.Event_EventType{mvccpb.Event_PUT, mvccpb.Event_DELETE}))(t)
	expect.Equal(t, "event", event(found), "DELETE k @3")
}
