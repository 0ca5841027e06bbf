package clientsuite

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"leaseway/compat-tests/expect"
)

const (
	defaultRequestBytes = 1536 << 10
	// transportSlack is what the transport takes beyond the request limit.
	transportSlack  = 512 << 10
	tooLarge        = "etcdserver: request is too large"
	unboundedToSend = math.MaxInt32
)

func TestRequestSizeLimit(t *testing.T) {
	_, client, ctx := start(t)
	kv := pb.NewKVClient(client.ActiveConnection())
	send := grpc.MaxCallSendMsgSize(unboundedToSend)
	put := func(bytes int) (*pb.PutRequest, error) {
		request := &pb.PutRequest{Key: []byte("k"), Value: []byte(strings.Repeat("x", bytes))}
		_, err := kv.Put(ctx, request, send)
		return request, err
	}
	_, err := put(defaultRequestBytes - 1000)
	expect.NoError(t, err)
	_, err = put(defaultRequestBytes)
	wantStatus(t, err, codes.InvalidArgument, tooLarge)
	request, err := put(defaultRequestBytes + transportSlack + 1000)
	wantStatus(t, err, codes.ResourceExhausted, fmt.Sprintf("grpc: received message larger than max (%d vs. %d)",
		proto.Size(request), defaultRequestBytes+transportSlack))
	_, err = client.Txn(ctx).Then(
		clientv3.OpPut("a", strings.Repeat("x", defaultRequestBytes/2)),
		clientv3.OpPut("b", strings.Repeat("x", defaultRequestBytes/2)),
	).Commit()
	wantStatus(t, err, codes.InvalidArgument, tooLarge)
	// The connection is as good as before.
	putAll(t, ctx, client, "k=small")
}

func TestRequestSizeFlag(t *testing.T) {
	const limit = 10 << 10
	_, client, ctx := start(t, fmt.Sprintf("--max-request-bytes=%d", limit))
	expect.Must(client.Put(ctx, "k", strings.Repeat("x", limit-200)))(t)
	_, err := client.Put(ctx, "k", strings.Repeat("x", limit))
	wantStatus(t, err, codes.InvalidArgument, tooLarge)
	request := &pb.PutRequest{Key: []byte("k"), Value: []byte(strings.Repeat("x", limit+transportSlack))}
	_, err = pb.NewKVClient(client.ActiveConnection()).Put(ctx, request)
	wantStatus(t, err, codes.ResourceExhausted, fmt.Sprintf("grpc: received message larger than max (%d vs. %d)",
		proto.Size(request), limit+transportSlack))
}

func TestLargeAnswers(t *testing.T) {
	_, client, ctx := start(t)
	value := strings.Repeat("x", 1<<20)
	const keys = 24
	for i := range keys {
		expect.Must(client.Put(ctx, fmt.Sprintf("k%02d", i), value))(t)
	}
	got := expect.Must(client.Get(ctx, "k", clientv3.WithPrefix()))(t)
	expect.Equal(t, "keys in one answer", len(got.Kvs), keys)
	expect.Equal(t, "watched in whole", len(nextEvents(t, client.Watch(ctx, "k", clientv3.WithPrefix(), clientv3.WithRev(2)), keys)), keys)
	deleted := expect.Must(client.Delete(ctx, "k", clientv3.WithPrefix(), clientv3.WithPrevKV()))(t)
	expect.Equal(t, "previous values in one answer", len(deleted.PrevKvs), keys)
}

func TestManyStreamsOnOneConnection(t *testing.T) {
	_, client, ctx := start(t)
	// More than the 100 or 250 concurrent streams that transports often default to.
	const streams = 1200
	kv := pb.NewWatchClient(client.ActiveConnection())
	var group sync.WaitGroup
	open := make([]pb.Watch_WatchClient, streams)
	for i := range open {
		group.Go(func() {
			stream, err := kv.Watch(ctx)
			if err == nil {
				err = stream.Send(createRequest(&pb.WatchCreateRequest{Key: []byte("k")}))
			}
			if err == nil {
				_, err = stream.Recv()
			}
			if err != nil {
				t.Errorf("stream %d: %v", i, err)
			}
			open[i] = stream
		})
	}
	group.Wait()
	if t.Failed() {
		return
	}
	putAll(t, ctx, client, "k=1")
	for i, stream := range open {
		response := expect.Must(stream.Recv())(t)
		expect.Equal(t, fmt.Sprintf("events of stream %d", i), len(response.Events), 1)
	}
}

func TestUnknownMethods(t *testing.T) {
	_, client, ctx := start(t)
	for method, text := range map[string]string{
		"/etcdserverpb.KV/Nope":     "unknown method Nope for service etcdserverpb.KV",
		"/no.such.Service/Anything": "unknown service no.such.Service",
	} {
		err := client.ActiveConnection().Invoke(ctx, method, &pb.RangeRequest{}, &pb.RangeResponse{})
		wantStatus(t, err, codes.Unimplemented, text)
	}
}

func TestMalformedMessages(t *testing.T) {
	_, client, ctx := start(t)
	err := client.ActiveConnection().Invoke(ctx, "/etcdserverpb.KV/Range", []byte("\xff\xff\xff"), &pb.RangeResponse{}, grpc.ForceCodec(rawCodec{}))
	expect.Equal(t, "code", status.Code(err), codes.Internal)
	putAll(t, ctx, client, "k=1")
}

// rawCodec sends bytes as they are, so that a request can be no message at all.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) ([]byte, error) {
	raw, ok := v.([]byte)
	if !ok {
		return nil, fmt.Errorf("not bytes: %T", v)
	}
	return raw, nil
}

func (rawCodec) Unmarshal(data []byte, v any) error {
	message, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("not a message: %T", v)
	}
	return proto.Unmarshal(data, message)
}
