package faultsuite

import (
	"context"
	"math"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// client sends requests to any of the servers, one at a time, and records them.
// It uses the generated stubs, since etcd's client hides errors by trying again.
type client struct {
	number    int
	recording *recording
	world     *world
	random    *rand.Rand
	// connections are one to each server.
	connections []*grpc.ClientConn
	// server is the one in use.
	server int
	failed bool
}

func (w *world) client(number int) *client {
	c := &client{number: number, recording: w.recording, world: w, random: rand.New(rand.NewPCG(w.seed, uint64(number)))}
	for _, server := range w.servers {
		c.connections = append(c.connections, connect(server.Endpoint))
	}
	c.server = c.random.IntN(len(c.connections))
	return c
}

func (c *client) close() {
	for _, connection := range c.connections {
		_ = connection.Close()
	}
}

// connect never fails: the connection is made when it is first used. It is tried
// again soon after a failure, as a killed server comes back soon.
func connect(endpoint string) *grpc.ClientConn {
	eager := backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 300 * time.Millisecond}
	connection, err := grpc.NewClient("passthrough:///"+endpoint,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: eager, MinConnectTimeout: time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)),
		grpc.WithDisableRetry())
	if err != nil {
		panic(err) // only for options that contradict each other
	}
	return connection
}

// move goes to another server now and then, and always after a failure.
func (c *client) move() {
	const oftenStays = 3
	if c.failed || c.random.IntN(oftenStays) == 0 {
		c.server = c.random.IntN(len(c.connections))
	}
}

// deadline of a request: some give up before a server would, some do not.
func (c *client) deadline() time.Duration {
	return []time.Duration{2 * time.Second, 2 * time.Second, 4 * time.Second, 9 * time.Second}[c.random.IntN(4)]
}

// call sends one request, and records the answer that it writes into o.
func (c *client) call(ctx context.Context, o *operation, send func(context.Context, *grpc.ClientConn) error) {
	bounded, cancel := context.WithTimeout(ctx, c.deadline())
	defer cancel()
	o.Client, o.At = c.number, c.world.run(c.server)
	o.Call = c.recording.now()
	err := send(bounded, c.connections[c.server])
	o.Return = c.recording.now()
	// The process may have been replaced meanwhile: then this is no witness of either.
	if after := c.world.run(c.server); after != o.At {
		o.At = serverRun{Server: c.server, Life: -c.recording.size() - 1}
	}
	o.Outcome = done
	c.failed = err != nil
	if err != nil {
		o.Outcome, o.Failure = unknown, err.Error()
		if isLeaseNotFound(err) {
			o.Outcome, c.failed = refused, false
		}
	}
	c.recording.add(o)
}

func isLeaseNotFound(err error) bool {
	return status.Convert(err).Message() == status.Convert(rpctypes.ErrGRPCLeaseNotFound).Message()
}

func (c *client) put(ctx context.Context, o *operation) {
	c.call(ctx, o, func(ctx context.Context, connection *grpc.ClientConn) error {
		answer, err := pb.NewKVClient(connection).Put(ctx, putRequest(o))
		if err == nil {
			o.Revision, o.Previous = answer.Header.Revision, rowPointer(answer.PrevKv)
		}
		return err
	})
}

func putRequest(o *operation) *pb.PutRequest {
	return &pb.PutRequest{Key: []byte(o.Key), Value: []byte(o.Value), Lease: o.Lease, PrevKv: o.WantPrevious}
}

func (c *client) get(ctx context.Context, o *operation) {
	c.call(ctx, o, func(ctx context.Context, connection *grpc.ClientConn) error {
		answer, err := pb.NewKVClient(connection).Range(ctx, rangeRequest(o))
		if err == nil {
			o.Revision, o.Rows = answer.Header.Revision, rowsOf(answer.Kvs)
		}
		return err
	})
}

func rangeRequest(o *operation) *pb.RangeRequest {
	request := &pb.RangeRequest{Key: []byte(o.Key), Serializable: o.Serializable}
	if o.End != "" {
		request.RangeEnd = []byte(o.End)
	}
	return request
}

func (c *client) remove(ctx context.Context, o *operation) {
	c.call(ctx, o, func(ctx context.Context, connection *grpc.ClientConn) error {
		answer, err := pb.NewKVClient(connection).DeleteRange(ctx, &pb.DeleteRangeRequest{Key: []byte(o.Key), PrevKv: o.WantPrevious})
		if err != nil {
			return err
		}
		o.Revision, o.Deleted = answer.Header.Revision, answer.Deleted
		if len(answer.PrevKvs) > 0 {
			o.Previous = rowPointer(answer.PrevKvs[0])
		}
		return nil
	})
}

func (c *client) swap(ctx context.Context, o *operation) {
	request := &pb.TxnRequest{
		Compare: []*pb.Compare{{
			Key: []byte(o.Key), Target: pb.Compare_MOD, Result: pb.Compare_EQUAL,
			TargetUnion: &pb.Compare_ModRevision{ModRevision: o.Expect},
		}},
		Success: []*pb.RequestOp{requestPut(putRequest(o))},
		Failure: []*pb.RequestOp{{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte(o.Key)}}}},
	}
	c.call(ctx, o, func(ctx context.Context, connection *grpc.ClientConn) error {
		answer, err := pb.NewKVClient(connection).Txn(ctx, request)
		if err != nil {
			return err
		}
		o.Revision, o.Succeeded = answer.Header.Revision, answer.Succeeded
		if o.Succeeded {
			o.Previous = rowPointer(answer.Responses[0].GetResponsePut().PrevKv)
		} else {
			o.Rows = rowsOf(answer.Responses[0].GetResponseRange().Kvs)
		}
		return nil
	})
}

// pair puts one value to two keys.
func (c *client) pair(ctx context.Context, o *operation) {
	second := &pb.PutRequest{Key: []byte(o.OtherKey), Value: []byte(o.Value)}
	request := &pb.TxnRequest{Success: []*pb.RequestOp{requestPut(putRequest(o)), requestPut(second)}}
	c.call(ctx, o, func(ctx context.Context, connection *grpc.ClientConn) error {
		answer, err := pb.NewKVClient(connection).Txn(ctx, request)
		if err == nil {
			o.Revision, o.Previous = answer.Header.Revision, rowPointer(answer.Responses[0].GetResponsePut().PrevKv)
		}
		return err
	})
}

// bury deletes a key and says who did it.
func (c *client) bury(ctx context.Context, o *operation) {
	deletion := &pb.DeleteRangeRequest{Key: []byte(o.Key), PrevKv: o.WantPrevious}
	marker := &pb.PutRequest{Key: []byte(o.OtherKey), Value: []byte(o.Value)}
	request := &pb.TxnRequest{Success: []*pb.RequestOp{
		{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: deletion}}, requestPut(marker),
	}}
	c.call(ctx, o, func(ctx context.Context, connection *grpc.ClientConn) error {
		answer, err := pb.NewKVClient(connection).Txn(ctx, request)
		if err != nil {
			return err
		}
		o.Revision = answer.Header.Revision
		deleted := answer.Responses[0].GetResponseDeleteRange()
		if o.Deleted = deleted.Deleted; len(deleted.PrevKvs) > 0 {
			o.Previous = rowPointer(deleted.PrevKvs[0])
		}
		return nil
	})
}

func (c *client) grant(ctx context.Context, o *operation) {
	seconds := o.TTL
	c.call(ctx, o, func(ctx context.Context, connection *grpc.ClientConn) error {
		answer, err := pb.NewLeaseClient(connection).LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: seconds})
		if err == nil {
			o.Revision, o.Lease, o.TTL = answer.Header.Revision, answer.ID, answer.TTL
		}
		return err
	})
}

// renew opens a stream for the one renewal, as the next is likely to go elsewhere.
func (c *client) renew(ctx context.Context, o *operation) {
	c.call(ctx, o, func(ctx context.Context, connection *grpc.ClientConn) error {
		stream, err := pb.NewLeaseClient(connection).LeaseKeepAlive(ctx)
		if err != nil {
			return err
		}
		if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: o.Lease}); err != nil {
			return err
		}
		answer, err := stream.Recv()
		if err == nil {
			o.Revision, o.TTL = answer.Header.Revision, answer.TTL
		}
		return err
	})
}

func (c *client) revoke(ctx context.Context, o *operation) {
	c.call(ctx, o, func(ctx context.Context, connection *grpc.ClientConn) error {
		answer, err := pb.NewLeaseClient(connection).LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: o.Lease})
		if err == nil {
			o.Revision = answer.Header.Revision
		}
		return err
	})
}

func (c *client) timeToLive(ctx context.Context, o *operation) {
	c.call(ctx, o, func(ctx context.Context, connection *grpc.ClientConn) error {
		answer, err := pb.NewLeaseClient(connection).LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: o.Lease, Keys: true})
		if err != nil {
			return err
		}
		o.Revision, o.TTL = answer.Header.Revision, answer.TTL
		for _, key := range answer.Keys {
			o.Keys = append(o.Keys, string(key))
		}
		return nil
	})
}

func (c *client) compact(ctx context.Context, o *operation) {
	c.call(ctx, o, func(ctx context.Context, connection *grpc.ClientConn) error {
		answer, err := pb.NewKVClient(connection).Compact(ctx, &pb.CompactionRequest{Revision: o.CompactAt})
		if err == nil {
			o.Revision = answer.Header.Revision
		}
		return err
	})
}

func requestPut(request *pb.PutRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: request}}
}

func rowsOf(kvs []*mvccpb.KeyValue) []row {
	var rows []row
	for _, kv := range kvs {
		rows = append(rows, *rowPointer(kv))
	}
	return rows
}

func rowPointer(kv *mvccpb.KeyValue) *row {
	if kv == nil {
		return nil
	}
	return &row{
		Key: string(kv.Key), Value: string(kv.Value), Lease: kv.Lease,
		Create: kv.CreateRevision, Mod: kv.ModRevision, Version: kv.Version,
	}
}

func eventsOf(events []*mvccpb.Event) []event {
	var list []event
	for _, e := range events {
		list = append(list, event{Delete: e.Type == mvccpb.Event_DELETE, Row: *rowPointer(e.Kv), Previous: rowPointer(e.PrevKv)})
	}
	return list
}
