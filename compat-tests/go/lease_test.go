package clientsuite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"leaseway/compat-tests/expect"
	"leaseway/compat-tests/harness"
)

const (
	leaseNotFound = "etcdserver: requested lease not found"
	// shortestTTL is what a server with default settings grants at least.
	shortestTTL = 2
	maxTTL      = 9_000_000_000
)

func TestLeaseGrant(t *testing.T) {
	_, client, ctx := start(t)
	lease := pb.NewLeaseClient(client.ActiveConnection())
	generated := expect.Must(lease.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: 30}))(t)
	expect.Equal(t, "generated id is positive", generated.ID > 0, true)
	expect.Equal(t, "ttl", generated.TTL, 30)
	expect.Equal(t, "a grant makes no revision", generated.Header.Revision, 1)
	chosen := expect.Must(lease.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: 30, ID: 77}))(t)
	expect.Equal(t, "chosen id", chosen.ID, 77)
	_, err := lease.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: 30, ID: 77})
	wantStatus(t, err, codes.FailedPrecondition, "etcdserver: lease already exists")
	expect.Equal(t, "negative id", expect.Must(lease.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: 30, ID: -5}))(t).ID, -5)
	for _, ttl := range []int64{1, 0, -1} {
		expect.Equal(t, fmt.Sprintf("ttl %d", ttl), expect.Must(lease.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: ttl}))(t).TTL, shortestTTL)
	}
	expect.Equal(t, "longest", expect.Must(lease.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: maxTTL}))(t).TTL, maxTTL)
	_, err = lease.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: maxTTL + 1})
	wantStatus(t, err, codes.OutOfRange, "etcdserver: too large lease TTL")
}

func TestLeaseListAndTimeToLive(t *testing.T) {
	_, client, ctx := start(t)
	first := expect.Must(client.Grant(ctx, 100))(t).ID
	second := expect.Must(client.Grant(ctx, 200))(t).ID
	expect.Must(client.Put(ctx, "b", "1", clientv3.WithLease(first)))(t)
	expect.Must(client.Put(ctx, "a", "1", clientv3.WithLease(first)))(t)
	expect.Must(client.Put(ctx, "c", "1", clientv3.WithLease(second)))(t)

	var ids []clientv3.LeaseID
	for _, status := range expect.Must(client.Leases(ctx))(t).Leases {
		ids = append(ids, status.ID)
	}
	slices.Sort(ids)
	want := []clientv3.LeaseID{first, second}
	slices.Sort(want)
	expect.Equal(t, "leases", fmt.Sprint(ids), fmt.Sprint(want))

	plain := expect.Must(client.TimeToLive(ctx, first))(t)
	expect.Equal(t, "granted", plain.GrantedTTL, 100)
	expect.Equal(t, "remaining", plain.TTL > 90 && plain.TTL <= 100, true)
	expect.Equal(t, "keys unless asked", len(plain.Keys), 0)
	var keys []string
	for _, key := range expect.Must(client.TimeToLive(ctx, first, clientv3.WithAttachedKeys()))(t).Keys {
		keys = append(keys, string(key))
	}
	slices.Sort(keys)
	expect.Equal(t, "keys", fmt.Sprint(keys), "[a b]")

	unknown := expect.Must(client.TimeToLive(ctx, 404, clientv3.WithAttachedKeys()))(t)
	expect.Equal(t, "ttl of an unknown lease", unknown.TTL, -1)
	expect.Equal(t, "granted ttl of an unknown lease", unknown.GrantedTTL, 0)
}

func TestLeaseRevoke(t *testing.T) {
	_, client, ctx := start(t)
	id := expect.Must(client.Grant(ctx, 100))(t).ID
	for _, key := range []string{"c", "a", "b"} {
		expect.Must(client.Put(ctx, key, "1", clientv3.WithLease(id)))(t)
	}
	watch := client.Watch(ctx, "", clientv3.WithPrefix(), clientv3.WithRev(5), clientv3.WithPrevKV())
	revoked := expect.Must(client.Revoke(ctx, id))(t)
	expect.Equal(t, "one revision", revoked.Header.Revision, 5)
	wantEvents(t, watch, "DELETE a @5 [1 @3]", "DELETE b @5 [1 @4]", "DELETE c @5 [1 @2]")
	_, err := client.Revoke(ctx, id)
	wantStatus(t, err, codes.NotFound, leaseNotFound)
	_, err = client.Put(ctx, "a", "1", clientv3.WithLease(id))
	wantStatus(t, err, codes.NotFound, leaseNotFound)
	_, err = client.Revoke(ctx, 0)
	wantStatus(t, err, codes.NotFound, leaseNotFound)

	withoutKeys := expect.Must(client.Grant(ctx, 100))(t).ID
	expect.Equal(t, "no keys, no revision", expect.Must(client.Revoke(ctx, withoutKeys))(t).Header.Revision, 5)
}

func TestLeaseAttachment(t *testing.T) {
	_, client, ctx := start(t)
	old := expect.Must(client.Grant(ctx, 100))(t).ID
	young := expect.Must(client.Grant(ctx, 100))(t).ID
	for _, key := range []string{"moved", "freed", "deleted", "kept"} {
		expect.Must(client.Put(ctx, key, "1", clientv3.WithLease(old)))(t)
	}
	expect.Must(client.Put(ctx, "moved", "2", clientv3.WithLease(young)))(t)
	expect.Must(client.Put(ctx, "freed", "2"))(t)
	expect.Must(client.Delete(ctx, "deleted"))(t)
	expect.Must(client.Put(ctx, "deleted", "reborn"))(t)
	expect.Must(client.Put(ctx, "kept", "2", clientv3.WithIgnoreLease()))(t)
	keys := expect.Must(client.TimeToLive(ctx, old, clientv3.WithAttachedKeys()))(t).Keys
	expect.Equal(t, "attached", fmt.Sprintf("%s", keys), "[kept]")
	expect.Must(client.Revoke(ctx, old))(t)
	expect.Equal(t, "left", pairs(expect.Must(client.Get(ctx, "", clientv3.WithPrefix()))(t).Kvs), "deleted=reborn freed=2 moved=2")
	expect.Must(client.Revoke(ctx, young))(t)
	expect.Equal(t, "left", pairs(expect.Must(client.Get(ctx, "", clientv3.WithPrefix()))(t).Kvs), "deleted=reborn freed=2")
}

func TestLeaseInsideTxn(t *testing.T) {
	_, client, ctx := start(t)
	id := expect.Must(client.Grant(ctx, 100))(t).ID
	other := expect.Must(client.Grant(ctx, 100))(t).ID
	expect.Must(client.Put(ctx, "a", "1", clientv3.WithLease(id)))(t)
	// Detached and moved inside one transaction.
	expect.Must(client.Txn(ctx).Then(
		clientv3.OpPut("a", "2"),
		clientv3.OpPut("b", "2", clientv3.WithLease(id)),
		clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpPut("c", "2", clientv3.WithLease(other))}, nil),
	).Commit())(t)
	expect.Must(client.Revoke(ctx, id))(t)
	expect.Equal(t, "left", pairs(expect.Must(client.Get(ctx, "", clientv3.WithPrefix()))(t).Kvs), "a=2 c=2")
}

func TestLeaseKeepAliveOnce(t *testing.T) {
	_, client, ctx := start(t)
	id := expect.Must(client.Grant(ctx, 50))(t).ID
	expect.Equal(t, "ttl", expect.Must(client.KeepAliveOnce(ctx, id))(t).TTL, 50)
	_, err := client.KeepAliveOnce(ctx, 404)
	wantStatus(t, err, codes.NotFound, leaseNotFound)
}

func TestLeaseKeepAliveStream(t *testing.T) {
	_, client, ctx := start(t)
	id := expect.Must(client.Grant(ctx, 50))(t).ID
	stream := expect.Must(pb.NewLeaseClient(client.ActiveConnection()).LeaseKeepAlive(ctx))(t)
	// Unknown leases are answered with a TTL of zero and leave the stream usable.
	for _, step := range []struct{ id, ttl int64 }{{404, 0}, {int64(id), 50}, {0, 0}, {int64(id), 50}} {
		expect.NoError(t, stream.Send(&pb.LeaseKeepAliveRequest{ID: step.id}))
		answer := expect.Must(stream.Recv())(t)
		expect.Equal(t, "id", answer.ID, step.id)
		expect.Equal(t, "ttl", answer.TTL, step.ttl)
	}
}

func TestLeaseExpires(t *testing.T) {
	_, client, ctx := start(t)
	watch := client.Watch(ctx, "", clientv3.WithPrefix(), clientv3.WithRev(1))
	before := time.Now()
	id := expect.Must(client.Grant(ctx, shortestTTL))(t).ID
	expect.Must(client.Txn(ctx).Then(
		clientv3.OpPut("b", "1", clientv3.WithLease(id)),
		clientv3.OpPut("a", "1", clientv3.WithLease(id)),
	).Commit())(t)
	wantEvents(t, watch, "PUT b=1 @2", "PUT a=1 @2")
	wantEvents(t, watch, "DELETE a @3", "DELETE b @3")
	lived := time.Since(before)
	expect.Equal(t, fmt.Sprintf("not early (%v)", lived), lived >= shortestTTL*time.Second, true)
	expect.Equal(t, fmt.Sprintf("not very late (%v)", lived), lived < (shortestTTL+4)*time.Second, true)
	expect.Equal(t, "ttl", expect.Must(client.TimeToLive(ctx, id))(t).TTL, -1)
	_, err := client.KeepAliveOnce(ctx, id)
	wantStatus(t, err, codes.NotFound, leaseNotFound)
	expect.Equal(t, "leases", len(expect.Must(client.Leases(ctx))(t).Leases), 0)
}

func TestLeaseKeptAliveOutlivesItsTTL(t *testing.T) {
	_, client, ctx := start(t)
	id := expect.Must(client.Grant(ctx, shortestTTL))(t).ID
	expect.Must(client.Put(ctx, "k", "1", clientv3.WithLease(id)))(t)
	watch := client.Watch(ctx, "k", clientv3.WithRev(3))
	kept, stop := context.WithCancel(ctx)
	defer stop()
	answers := expect.Must(client.KeepAlive(kept, id))(t)
	deadline := time.Now().Add(3 * shortestTTL * time.Second)
	for time.Now().Before(deadline) {
		select {
		case answer, open := <-answers:
			expect.Equal(t, "open", open, true)
			expect.Equal(t, "ttl", answer.TTL, shortestTTL)
		case response := <-watch:
			t.Fatalf("deleted while kept alive: %v", response.Events)
		case <-time.After(callDeadline):
			t.Fatal("no answer")
		}
	}
	stop()
	wantEvents(t, watch, "DELETE k @3")
}

func TestLeaseRevokedUnderKeepAlive(t *testing.T) {
	_, client, ctx := start(t)
	id := expect.Must(client.Grant(ctx, shortestTTL))(t).ID
	answers := expect.Must(client.KeepAlive(ctx, id))(t)
	expect.Must(client.Revoke(ctx, id))(t)
	harness.Eventually(t, callDeadline, "keep-alive channel closes", func() error {
		for {
			select {
			case _, open := <-answers:
				if !open {
					return nil
				}
			default:
				return errors.New("still open")
			}
		}
	})
}

func TestLeaseWithManyKeys(t *testing.T) {
	_, client, ctx := start(t)
	id := expect.Must(client.Grant(ctx, 100))(t).ID
	const batches = 40
	for batch := range batches {
		var ops []clientv3.Op
		for i := range 100 {
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("k%02d/%02d", batch, i), "v", clientv3.WithLease(id)))
		}
		expect.Must(client.Txn(ctx).Then(ops...).Commit())(t)
	}
	expect.Equal(t, "keys", len(expect.Must(client.TimeToLive(ctx, id, clientv3.WithAttachedKeys()))(t).Keys), batches*100)
	watch := client.Watch(ctx, "k", clientv3.WithPrefix(), clientv3.WithRev(batches+2))
	expect.Equal(t, "one revision", expect.Must(client.Revoke(ctx, id))(t).Header.Revision, batches+2)
	response := nextResponse(t, watch)
	expect.Equal(t, "one response", len(response.Events), batches*100)
	for i, e := range response.Events {
		expect.Equal(t, "sorted by key", string(e.Kv.Key), fmt.Sprintf("k%02d/%02d", i/100, i%100))
	}
	expect.Equal(t, "left", expect.Must(client.Get(ctx, "k", clientv3.WithPrefix()))(t).Count, 0)
}

func TestLeaseSurvivesRestart(t *testing.T) {
	for _, how := range []string{"SIGTERM", "SIGKILL"} {
		t.Run(how, func(t *testing.T) {
			server, client, ctx := start(t)
			long := expect.Must(client.Grant(ctx, 100))(t).ID
			short := expect.Must(client.Grant(ctx, 3))(t).ID
			expect.Must(client.Put(ctx, "long", "1", clientv3.WithLease(long)))(t)
			expect.Must(client.Put(ctx, "short", "1", clientv3.WithLease(short)))(t)
			watch := client.Watch(ctx, "", clientv3.WithPrefix(), clientv3.WithRev(4))
			if how == "SIGTERM" {
				server.Stop()
			} else {
				server.Kill()
			}
			server.Resume()
			resumed := time.Now()
			after := server.Client()
			status := expect.Must(after.TimeToLive(ctx, long, clientv3.WithAttachedKeys()))(t)
			expect.Equal(t, "granted", status.GrantedTTL, 100)
			expect.Equal(t, "a restart does not shorten", status.TTL >= 98, true)
			expect.Equal(t, "keys", fmt.Sprintf("%s", status.Keys), "[long]")
			expect.Equal(t, "keep-alive", expect.Must(after.KeepAliveOnce(ctx, long))(t).TTL, 100)
			// The short one still ends, counted anew from the restart at the latest.
			wantEvents(t, watch, "DELETE short @4")
			expect.Equal(t, "in time", time.Since(resumed) < 8*time.Second, true)
			expect.Equal(t, "left", pairs(expect.Must(after.Get(ctx, "", clientv3.WithPrefix()))(t).Kvs), "long=1")
		})
	}
}

func TestManyLeasesExpireTogether(t *testing.T) {
	_, client, ctx := start(t)
	const leases = 1000
	watch := client.Watch(ctx, "k", clientv3.WithPrefix(), clientv3.WithFilterPut(), clientv3.WithRev(1))
	var group sync.WaitGroup
	for worker := range 20 {
		group.Go(func() {
			for i := worker; i < leases; i += 20 {
				lease, err := client.Grant(ctx, shortestTTL)
				if err == nil {
					_, err = client.Put(ctx, fmt.Sprintf("k%04d", i), "v", clientv3.WithLease(lease.ID))
				}
				if err != nil {
					t.Errorf("lease %d: %v", i, err)
					return
				}
			}
		})
	}
	group.Wait()
	if t.Failed() {
		return
	}
	// Writes flow on while the leases end.
	stop, slowest := make(chan struct{}), make(chan time.Duration, 1)
	go func() {
		var longest time.Duration
		for {
			select {
			case <-stop:
				slowest <- longest
				return
			default:
			}
			began := time.Now()
			if _, err := client.Put(ctx, "other", "v"); err != nil {
				t.Errorf("put: %v", err)
				slowest <- longest
				return
			}
			longest = max(longest, time.Since(began))
		}
	}()
	revisions := map[int64]bool{}
	for len(revisions) < leases {
		for _, e := range nextResponse(t, watch).Events {
			expect.Equal(t, "a revision of its own for every lease", revisions[e.Kv.ModRevision], false)
			revisions[e.Kv.ModRevision] = true
		}
	}
	close(stop)
	longest := <-slowest
	expect.Equal(t, fmt.Sprintf("puts went on (slowest %v)", longest), longest < 5*time.Second, true)
	expect.Equal(t, "left", expect.Must(client.Get(ctx, "k", clientv3.WithPrefix()))(t).Count, 0)
}
