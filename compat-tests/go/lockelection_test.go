package clientsuite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	epb "go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
	lpb "go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"

	"leaseway/compat-tests/expect"
	"leaseway/compat-tests/harness"
)

// The services Lock and Election, with the generated stubs.

// servicesOf returns stubs on a connection of their own.
func servicesOf(t *testing.T, server *harness.Server) (lpb.LockClient, epb.ElectionClient) {
	connection := plain(t, server)
	return lpb.NewLockClient(connection), epb.NewElectionClient(connection)
}

func grantLease(t *testing.T, ctx context.Context, client *clientv3.Client, ttl int64) int64 {
	t.Helper()
	return int64(expect.Must(client.Grant(ctx, ttl))(t).ID)
}

// wantRaw requires a gRPC error as it is on the wire.
func wantRaw(t *testing.T, err error, code codes.Code, text string) {
	t.Helper()
	if s, _ := status.FromError(err); err == nil || s.Code() != code || s.Message() != text {
		t.Fatalf("got %v, want %v %q", err, code, text)
	}
}

// pending is a call that may wait for others.
type pending[T any] struct {
	done   chan struct{}
	answer T
	err    error
	cancel context.CancelFunc
}

func begin[T any](ctx context.Context, call func(context.Context) (T, error)) *pending[T] {
	ctx, cancel := context.WithCancel(ctx)
	p := &pending[T]{done: make(chan struct{}), cancel: cancel}
	go func() {
		defer close(p.done)
		p.answer, p.err = call(ctx)
	}()
	return p
}

func (p *pending[T]) wait(t *testing.T) T {
	t.Helper()
	select {
	case <-p.done:
		expect.NoError(t, p.err)
		return p.answer
	case <-time.After(callDeadline):
		t.Fatal("still waiting")
	}
	panic("unreachable")
}

func (p *pending[T]) isWaiting() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// queueLength waits until there are so many keys under a name.
func queueLength(t *testing.T, ctx context.Context, client *clientv3.Client, name string, want int64) {
	t.Helper()
	harness.Eventually(t, callDeadline, "the queue's length", func() error {
		got, err := client.Get(ctx, name+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err == nil && got.Count != want {
			err = fmt.Errorf("%d keys, want %d", got.Count, want)
		}
		return err
	})
}

func TestLockKeys(t *testing.T) {
	server, client, ctx := start(t)
	locks, _ := servicesOf(t, server)
	lease := grantLease(t, ctx, client, 60)
	first := expect.Must(locks.Lock(ctx, &lpb.LockRequest{Name: []byte("l"), Lease: lease}))(t)
	expect.Equal(t, "key", string(first.Key), fmt.Sprintf("l/%x", lease))
	expect.Equal(t, "revision", first.Header.Revision, 2)
	got := expect.Must(client.Get(ctx, string(first.Key)))(t)
	expect.Equal(t, "row", versions(got.Kvs), fmt.Sprintf("l/%x c2 m2 v1 l%d", lease, lease))
	// Again with the same lease: the same lock.
	again := expect.Must(locks.Lock(ctx, &lpb.LockRequest{Name: []byte("l"), Lease: lease}))(t)
	expect.Equal(t, "key", string(again.Key), string(first.Key))
	expect.Equal(t, "revision", again.Header.Revision, 2)
	// The key's creation proves the ownership.
	fenced := expect.Must(client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(string(first.Key)), "=", first.Header.Revision)).
		Then(clientv3.OpPut("guarded", "1")).Commit())(t)
	expect.Equal(t, "fenced", fenced.Succeeded, true)
	unlocked := expect.Must(locks.Unlock(ctx, &lpb.UnlockRequest{Key: first.Key}))(t)
	expect.Equal(t, "revision", unlocked.Header.Revision, 4)
	unlocked = expect.Must(locks.Unlock(ctx, &lpb.UnlockRequest{Key: first.Key}))(t)
	expect.Equal(t, "revision", unlocked.Header.Revision, 4)

	// Without a lease there is a new one, of a minute.
	own := expect.Must(locks.Lock(ctx, &lpb.LockRequest{Name: []byte("own")}))(t)
	row := expect.Must(client.Get(ctx, string(own.Key)))(t).Kvs[0]
	expect.Equal(t, "key", string(own.Key), fmt.Sprintf("own/%x", row.Lease))
	ttl := expect.Must(client.TimeToLive(ctx, clientv3.LeaseID(row.Lease), clientv3.WithAttachedKeys()))(t)
	expect.Equal(t, "TTL", ttl.GrantedTTL, 60)
	expect.Equal(t, "keys", len(ttl.Keys), 1)

	// Names may be empty or binary.
	for _, name := range []string{"", "\xff\xff", "a/b"} {
		locked := expect.Must(locks.Lock(ctx, &lpb.LockRequest{Name: []byte(name), Lease: lease}))(t)
		expect.Equal(t, "key", string(locked.Key), fmt.Sprintf("%s/%x", name, lease))
	}
}

func TestLockIsFair(t *testing.T) {
	server, client, ctx := start(t)
	locks, _ := servicesOf(t, server)
	const count = 5
	var waiting []*pending[*lpb.LockResponse]
	for i := range count {
		lease := grantLease(t, ctx, client, 60)
		waiting = append(waiting, begin(ctx, func(ctx context.Context) (*lpb.LockResponse, error) {
			return locks.Lock(ctx, &lpb.LockRequest{Name: []byte("fair"), Lease: lease})
		}))
		queueLength(t, ctx, client, "fair", int64(i+1))
	}
	for i, holder := range waiting {
		held := holder.wait(t)
		for _, later := range waiting[i+1:] {
			expect.Equal(t, "a later one waits", later.isWaiting(), true)
		}
		row := expect.Must(client.Get(ctx, string(held.Key)))(t)
		expect.Equal(t, "the holder's place", row.Kvs[0].CreateRevision, int64(2+i))
		if i > 0 {
			expect.Equal(t, "revision", held.Header.Revision, int64(1+count+i))
		}
		expect.Must(locks.Unlock(ctx, &lpb.UnlockRequest{Key: held.Key}))(t)
	}
}

func TestLockWaitersLeave(t *testing.T) {
	server, client, ctx := start(t)
	locks, _ := servicesOf(t, server)
	lock := func(lease int64) *pending[*lpb.LockResponse] {
		return begin(ctx, func(ctx context.Context) (*lpb.LockResponse, error) {
			return locks.Lock(ctx, &lpb.LockRequest{Name: []byte("l"), Lease: lease})
		})
	}
	holder := lock(grantLease(t, ctx, client, 60)).wait(t)
	middle := lock(grantLease(t, ctx, client, 60))
	queueLength(t, ctx, client, "l", 2)
	last := lock(grantLease(t, ctx, client, 60))
	queueLength(t, ctx, client, "l", 3)
	// One that gives up leaves no key, and lets nobody in.
	middle.cancel()
	queueLength(t, ctx, client, "l", 2)
	<-middle.done
	expect.Equal(t, "code", status.Code(middle.err), codes.Canceled)
	expect.Equal(t, "the last waits", last.isWaiting(), true)
	// A deadline is no different.
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	_, err := locks.Lock(short, &lpb.LockRequest{Name: []byte("l"), Lease: grantLease(t, ctx, client, 60)})
	expect.Equal(t, "code", status.Code(err), codes.DeadlineExceeded)
	queueLength(t, ctx, client, "l", 2)
	expect.Must(locks.Unlock(ctx, &lpb.UnlockRequest{Key: holder.Key}))(t)
	last.wait(t)
}

// TestLockCallsOfOneLease covers calls that share a key, because they have one lease and one name.
func TestLockCallsOfOneLease(t *testing.T) {
	server, client, ctx := start(t)
	locks, elections := servicesOf(t, server)
	holder := expect.Must(locks.Lock(ctx, &lpb.LockRequest{Name: []byte("l"), Lease: grantLease(t, ctx, client, 60)}))(t)
	lease := grantLease(t, ctx, client, 60)
	lock := func() *pending[*lpb.LockResponse] {
		return begin(ctx, func(ctx context.Context) (*lpb.LockResponse, error) {
			return locks.Lock(ctx, &lpb.LockRequest{Name: []byte("l"), Lease: lease})
		})
	}
	one := lock()
	queueLength(t, ctx, client, "l", 2)
	two := lock()
	expect.Must(client.Put(ctx, "between", ""))(t)
	queueLength(t, ctx, client, "l", 2)
	expect.Equal(t, "both wait", one.isWaiting() && two.isWaiting(), true)
	expect.Must(locks.Unlock(ctx, &lpb.UnlockRequest{Key: holder.Key}))(t)
	key := fmt.Sprintf("l/%x", lease)
	expect.Equal(t, "the first one's key", string(one.wait(t).Key), key)
	expect.Equal(t, "the second one's key", string(two.wait(t).Key), key)
	// Neither call takes the key along that the other has got.
	one.cancel()
	two.cancel()
	third := lock()
	expect.Equal(t, "and one that comes later", string(third.wait(t).Key), key)
	third.cancel()
	rival := begin(ctx, func(ctx context.Context) (*lpb.LockResponse, error) {
		return locks.Lock(ctx, &lpb.LockRequest{Name: []byte("l")})
	})
	queueLength(t, ctx, client, "l", 2)
	expect.Equal(t, "the lock is held", rival.isWaiting(), true)
	expect.Must(locks.Unlock(ctx, &lpb.UnlockRequest{Key: []byte(key)}))(t)
	held := rival.wait(t)
	// One that gives up leaves the key to the other; in etcd it takes it along, and the other has waited in vain.
	one, two = lock(), lock()
	harness.Eventually(t, callDeadline, "two who wait", func() error {
		response := expect.Must(http.Get(server.URL() + "/metrics"))(t)
		defer response.Body.Close()
		page := string(expect.Must(io.ReadAll(response.Body))(t))
		if !strings.Contains(page, "\netcd_debugging_mvcc_watcher_total 2\n") {
			return errors.New("there are not two watchers")
		}
		return nil
	})
	one.cancel()
	<-one.done
	expect.Equal(t, "code", status.Code(one.err), codes.Canceled)
	expect.Equal(t, "the other waits", two.isWaiting(), true)
	if !server.Subject().IsOurs() {
		queueLength(t, ctx, client, "l", 1)
	}
	expect.Must(locks.Unlock(ctx, &lpb.UnlockRequest{Key: held.Key}))(t)
	if server.Subject().IsOurs() {
		expect.Equal(t, "the other's key", string(two.wait(t).Key), key)
		queueLength(t, ctx, client, "l", 1)
	} else {
		<-two.done
		wantRaw(t, two.err, codes.Unknown, "mutex: session is expired")
	}

	// The same for those who want to lead: the last value counts.
	campaign := func(value string) *pending[*epb.CampaignResponse] {
		return begin(ctx, func(ctx context.Context) (*epb.CampaignResponse, error) {
			return elections.Campaign(ctx, &epb.CampaignRequest{Name: []byte("e"), Lease: lease, Value: []byte(value)})
		})
	}
	leads := expect.Must(elections.Campaign(ctx, &epb.CampaignRequest{Name: []byte("e"), Value: []byte("z")}))(t)
	first := campaign("a")
	queueLength(t, ctx, client, "e", 2)
	second := campaign("b")
	harness.Eventually(t, callDeadline, "the second value", func() error {
		got, err := client.Get(ctx, fmt.Sprintf("e/%x", lease))
		if err == nil && string(got.Kvs[0].Value) != "b" {
			err = fmt.Errorf("%q", got.Kvs[0].Value)
		}
		return err
	})
	expect.Must(elections.Resign(ctx, &epb.ResignRequest{Leader: leads.Leader}))(t)
	expect.Equal(t, "both lead", first.wait(t).Leader.String(), second.wait(t).Leader.String())
	first.cancel()
	second.cancel()
	expect.Must(elections.Proclaim(ctx, &epb.ProclaimRequest{Leader: first.answer.Leader, Value: []byte("c")}))(t)
	expect.Must(elections.Resign(ctx, &epb.ResignRequest{Leader: first.answer.Leader}))(t)
	_, err := elections.Proclaim(ctx, &epb.ProclaimRequest{Leader: second.answer.Leader, Value: []byte("d")})
	wantRaw(t, err, codes.Unknown, "election: not leader")
}

func TestLockHolderDies(t *testing.T) {
	server, client, ctx := start(t)
	locks, _ := servicesOf(t, server)
	dying := grantLease(t, ctx, client, 2)
	expect.Must(locks.Lock(ctx, &lpb.LockRequest{Name: []byte("l"), Lease: dying}))(t)
	lease := grantLease(t, ctx, client, 60)
	next := expect.Must(locks.Lock(ctx, &lpb.LockRequest{Name: []byte("l"), Lease: lease}))(t)
	expect.Equal(t, "key", string(next.Key), fmt.Sprintf("l/%x", lease))
	left := expect.Must(client.TimeToLive(ctx, clientv3.LeaseID(dying)))(t)
	expect.Equal(t, "the holder's lease", left.TTL, -1)
}

func TestLockErrors(t *testing.T) {
	server, client, ctx := start(t)
	locks, _ := servicesOf(t, server)
	// etcd passes on the errors of a client, which have no code.
	_, err := locks.Lock(ctx, &lpb.LockRequest{Name: []byte("l"), Lease: 4711})
	wantRaw(t, err, codes.Unknown, "etcdserver: requested lease not found")
	_, err = locks.Lock(ctx, &lpb.LockRequest{Name: []byte("l"), Lease: -1})
	wantRaw(t, err, codes.Unknown, "etcdserver: requested lease not found")
	_, err = locks.Unlock(ctx, &lpb.UnlockRequest{})
	wantRaw(t, err, codes.Unknown, "etcdserver: key is not provided")

	// Whose lease ends while they wait are told when it would be their turn.
	holder := expect.Must(locks.Lock(ctx, &lpb.LockRequest{Name: []byte("l")}))(t)
	lease := grantLease(t, ctx, client, 60)
	waiting := begin(ctx, func(ctx context.Context) (*lpb.LockResponse, error) {
		return locks.Lock(ctx, &lpb.LockRequest{Name: []byte("l"), Lease: lease})
	})
	queueLength(t, ctx, client, "l", 2)
	expect.Must(client.Revoke(ctx, clientv3.LeaseID(lease)))(t)
	expect.Equal(t, "still waits", waiting.isWaiting(), true)
	expect.Must(locks.Unlock(ctx, &lpb.UnlockRequest{Key: holder.Key}))(t)
	<-waiting.done
	wantRaw(t, waiting.err, codes.Unknown, "mutex: session is expired")
}

func TestElectionService(t *testing.T) {
	server, client, ctx := start(t)
	_, elections := servicesOf(t, server)
	name := []byte("e")
	_, err := elections.Leader(ctx, &epb.LeaderRequest{Name: name})
	wantRaw(t, err, codes.Unknown, "election: no leader")
	watching, stop := context.WithCancel(ctx)
	defer stop()
	observed := expect.Must(elections.Observe(watching, &epb.LeaderRequest{Name: name}))(t)
	wantObserved := func(value string, revision int64) {
		t.Helper()
		got := expect.Must(observed.Recv())(t)
		expect.Equal(t, "observed", fmt.Sprintf("%s @%d", got.Kv.Value, got.Kv.ModRevision), fmt.Sprintf("%s @%d", value, revision))
		if got.Header.Revision < revision {
			t.Fatalf("the header's revision %d is below the value's", got.Header.Revision)
		}
	}

	one, two := grantLease(t, ctx, client, 60), grantLease(t, ctx, client, 60)
	won := expect.Must(elections.Campaign(ctx, &epb.CampaignRequest{Name: name, Lease: one, Value: []byte("a")}))(t)
	expect.Equal(t, "leader", won.Leader.String(), (&epb.LeaderKey{Name: name, Key: fmt.Appendf(nil, "e/%x", one), Rev: 2, Lease: one}).String())
	expect.Equal(t, "revision", won.Header.Revision, 2)
	wantObserved("a", 2)
	leader := expect.Must(elections.Leader(ctx, &epb.LeaderRequest{Name: name}))(t)
	expect.Equal(t, "leader's value", string(leader.Kv.Value), "a")
	expect.Equal(t, "revision", leader.Header.Revision, 2)

	proclaimed := expect.Must(elections.Proclaim(ctx, &epb.ProclaimRequest{Leader: won.Leader, Value: []byte("b")}))(t)
	expect.Equal(t, "revision", proclaimed.Header.Revision, 3)
	wantObserved("b", 3)
	// Again with the same lease, another value: it replaces the old one.
	again := expect.Must(elections.Campaign(ctx, &epb.CampaignRequest{Name: name, Lease: one, Value: []byte("c")}))(t)
	expect.Equal(t, "leader", again.Leader.String(), won.Leader.String())
	wantObserved("c", 4)

	rival := begin(ctx, func(ctx context.Context) (*epb.CampaignResponse, error) {
		return elections.Campaign(ctx, &epb.CampaignRequest{Name: name, Lease: two, Value: []byte("z")})
	})
	queueLength(t, ctx, client, "e", 2)
	expect.Equal(t, "the rival waits", rival.isWaiting(), true)
	resigned := expect.Must(elections.Resign(ctx, &epb.ResignRequest{Leader: won.Leader}))(t)
	expect.Equal(t, "revision", resigned.Header.Revision, 6)
	second := rival.wait(t)
	expect.Equal(t, "revision", second.Header.Revision, 5)
	expect.Equal(t, "rev", second.Leader.Rev, 5)
	wantObserved("z", 5)

	// Whoever leads no more can neither proclaim nor resign for another.
	_, err = elections.Proclaim(ctx, &epb.ProclaimRequest{Leader: won.Leader, Value: []byte("x")})
	wantRaw(t, err, codes.Unknown, "election: not leader")
	expect.Must(elections.Resign(ctx, &epb.ResignRequest{Leader: won.Leader}))(t)
	leader = expect.Must(elections.Leader(ctx, &epb.LeaderRequest{Name: name}))(t)
	expect.Equal(t, "leader's value", string(leader.Kv.Value), "z")
	_, err = elections.Proclaim(ctx, &epb.ProclaimRequest{Value: []byte("x")})
	wantRaw(t, err, codes.Unknown, `"leader" field must be provided`)
	_, err = elections.Resign(ctx, &epb.ResignRequest{})
	wantRaw(t, err, codes.Unknown, `"leader" field must be provided`)
	_, err = elections.Campaign(ctx, &epb.CampaignRequest{Name: name, Lease: 4711})
	wantRaw(t, err, codes.Unknown, "etcdserver: requested lease not found")

	// A leader whose lease ends is followed by the next.
	third := begin(ctx, func(ctx context.Context) (*epb.CampaignResponse, error) {
		return elections.Campaign(ctx, &epb.CampaignRequest{Name: name, Lease: one, Value: []byte("t")})
	})
	queueLength(t, ctx, client, "e", 2)
	expect.Must(client.Revoke(ctx, clientv3.LeaseID(two)))(t)
	wantObserved("t", third.wait(t).Leader.Rev)
	stop()
	_, err = observed.Recv()
	expect.Equal(t, "code", status.Code(err), codes.Canceled)
}

func TestElectionCampaignersLeave(t *testing.T) {
	server, client, ctx := start(t)
	_, elections := servicesOf(t, server)
	name := []byte("e")
	won := expect.Must(elections.Campaign(ctx, &epb.CampaignRequest{Name: name, Value: []byte("a")}))(t)
	expect.Equal(t, "key", string(won.Leader.Key), fmt.Sprintf("e/%x", won.Leader.Lease))
	rival := begin(ctx, func(ctx context.Context) (*epb.CampaignResponse, error) {
		return elections.Campaign(ctx, &epb.CampaignRequest{Name: name, Value: []byte("b")})
	})
	queueLength(t, ctx, client, "e", 2)
	rival.cancel()
	queueLength(t, ctx, client, "e", 1)
	<-rival.done
	expect.Equal(t, "code", status.Code(rival.err), codes.Canceled)
	// An observer that comes later hears of the leader that there is.
	observed := expect.Must(elections.Observe(ctx, &epb.LeaderRequest{Name: name}))(t)
	expect.Equal(t, "observed", string(expect.Must(observed.Recv())(t).Kv.Value), "a")
}

func TestLockAndElectionServicePermissions(t *testing.T) {
	server, nobody, root, ann := secured(t)
	connection := plain(t, server)
	locks, elections := lpb.NewLockClient(connection), epb.NewElectionClient(connection)
	as := wire.context
	lock := func(w wire, name string) (*lpb.LockResponse, error) {
		return locks.Lock(as(w), &lpb.LockRequest{Name: []byte(name)})
	}
	_, err := lock(nobody, "l")
	wantRaw(t, err, codes.Unknown, "etcdserver: user name is empty")
	_, err = lock(ann, "l")
	wantRaw(t, err, codes.Unknown, "etcdserver: permission denied")
	_, err = elections.Leader(as(ann), &epb.LeaderRequest{Name: []byte("l")})
	wantRaw(t, err, codes.Unknown, "etcdserver: permission denied")
	// Who may not read observes nothing, and is not told why.
	denied := expect.Must(elections.Observe(as(ann), &epb.LeaderRequest{Name: []byte("l")}))(t)
	_, err = denied.Recv()
	expect.Equal(t, "the end", err, io.EOF)
	nothing := expect.Must(elections.Observe(as(nobody), &epb.LeaderRequest{Name: []byte("l")}))(t)
	_, err = nothing.Recv()
	expect.Equal(t, "the end", err, io.EOF)
	// In JSON neither.
	for _, token := range []string{"", "x", ann.token} {
		request := expect.Must(http.NewRequestWithContext(nobody.ctx, http.MethodPost, server.URL()+"/v3/election/observe", strings.NewReader(`{"name":"bA=="}`)))(t)
		if token != "" {
			request.Header.Set("Authorization", token)
		}
		response := expect.Must(http.DefaultClient.Do(request))(t)
		body := string(expect.Must(io.ReadAll(response.Body))(t))
		_ = response.Body.Close()
		expect.Equal(t, "HTTP status", response.StatusCode, http.StatusOK)
		expect.Equal(t, "body", body, "")
		expect.Equal(t, "type", response.Header.Get("Content-Type"), "")
	}
	_, err = locks.Lock(metadata.AppendToOutgoingContext(nobody.ctx, "token", "x"), &lpb.LockRequest{Name: []byte("l")})
	wantRaw(t, err, codes.Unknown, "etcdserver: invalid auth token")

	root.grant(t, "r", authpb.READWRITE, "l/", "l0")
	held := expect.Must(lock(ann, "l"))(t)
	waiting := begin(as(root), func(ctx context.Context) (*lpb.LockResponse, error) {
		return locks.Lock(ctx, &lpb.LockRequest{Name: []byte("l")})
	})
	harness.Eventually(t, callDeadline, "the second in the queue", func() error {
		got, err := root.kv().Range(root.context(), &pb.RangeRequest{Key: []byte("l/"), RangeEnd: []byte("l0"), CountOnly: true})
		if err == nil && got.Count != 2 {
			err = fmt.Errorf("%d keys", got.Count)
		}
		return err
	})
	_, err = locks.Unlock(as(nobody), &lpb.UnlockRequest{Key: held.Key})
	wantRaw(t, err, codes.Unknown, "etcdserver: user name is empty")
	expect.Must(locks.Unlock(as(ann), &lpb.UnlockRequest{Key: held.Key}))(t)
	waiting.wait(t)
}

func TestLockAndElectionServicesAreThere(t *testing.T) {
	server, _, ctx := start(t)
	locks, elections := servicesOf(t, server)
	expect.Must(locks.Lock(ctx, &lpb.LockRequest{Name: []byte("l")}))(t)
	expect.Must(elections.Campaign(ctx, &epb.CampaignRequest{Name: []byte("e")}))(t)
	response := expect.Must(http.Get(server.URL() + "/metrics"))(t)
	defer response.Body.Close()
	page := string(expect.Must(io.ReadAll(response.Body))(t))
	for _, line := range []string{
		`grpc_server_handled_total{grpc_code="OK",grpc_method="Lock",grpc_service="v3lockpb.Lock",grpc_type="unary"} 1`,
		`grpc_server_handled_total{grpc_code="OK",grpc_method="Campaign",grpc_service="v3electionpb.Election",grpc_type="unary"} 1`,
	} {
		if !strings.Contains(page, line+"\n") {
			t.Fatalf("no %s", line)
		}
	}
	err := plain(t, server).Invoke(ctx, "/v3lockpb.Lock/Steal", &lpb.LockRequest{}, &lpb.LockResponse{}, grpc.WaitForReady(true))
	wantRaw(t, err, codes.Unimplemented, "unknown method Steal for service v3lockpb.Lock")
}
