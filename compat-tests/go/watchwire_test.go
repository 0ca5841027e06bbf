package clientsuite

import (
	"context"
	"fmt"
	"math"
	"testing"

	"google.golang.org/grpc"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"leaseway/compat-tests/expect"
)

// What the Go client hides: ids, refusals and the order of messages on a stream.

func createRequest(create *pb.WatchCreateRequest) *pb.WatchRequest {
	return &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}}
}

func cancelRequest(id int64) *pb.WatchRequest {
	return &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: id}}}
}

func progressRequest() *pb.WatchRequest {
	return &pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}}
}

// message renders a response with everything but the header's ids.
func message(r *pb.WatchResponse) string {
	text := fmt.Sprintf("id=%d", r.WatchId)
	if r.Created {
		text += " created"
	}
	if r.Canceled {
		text += " canceled"
	}
	if r.CancelReason != "" {
		text += fmt.Sprintf(" reason=%q", r.CancelReason)
	}
	if r.CompactRevision != 0 {
		text += fmt.Sprintf(" compacted=%d", r.CompactRevision)
	}
	for _, e := range r.Events {
		text += " " + event((*clientv3.Event)(e))
	}
	return text
}

// unboundedAnswers lifts gRPC's own limit of 4 MiB, as etcd's clients do.
var unboundedAnswers = grpc.MaxCallRecvMsgSize(math.MaxInt32)

type wireWatch struct {
	t      *testing.T
	stream pb.Watch_WatchClient
}

func openWatch(t *testing.T, ctx context.Context, client *clientv3.Client) wireWatch {
	return wireWatch{t, expect.Must(pb.NewWatchClient(client.ActiveConnection()).Watch(ctx, unboundedAnswers))(t)}
}

func (w wireWatch) send(request *pb.WatchRequest) {
	w.t.Helper()
	expect.NoError(w.t, w.stream.Send(request))
}

func (w wireWatch) want(message_ string) *pb.WatchResponse {
	w.t.Helper()
	response := expect.Must(w.stream.Recv())(w.t)
	expect.Equal(w.t, "message", message(response), message_)
	return response
}

func TestWatchIdsAndRefusals(t *testing.T) {
	_, client, ctx := start(t)
	putAll(t, ctx, client, "k=1", "k=2", "k=3", "k=4", "k=5") // 2..6
	expect.Must(client.Compact(ctx, 4))(t)
	w := openWatch(t, ctx, client)

	w.send(createRequest(&pb.WatchCreateRequest{Key: []byte("a")}))
	w.want("id=0 created")
	w.send(createRequest(&pb.WatchCreateRequest{Key: []byte("a")}))
	w.want("id=1 created")
	w.send(createRequest(&pb.WatchCreateRequest{Key: []byte("a"), WatchId: 7}))
	w.want("id=7 created")
	w.send(createRequest(&pb.WatchCreateRequest{Key: []byte("a"), WatchId: 7}))
	w.want(`id=-1 created canceled reason="mvcc: duplicate watch ID provided on the WatchStream"`)
	w.send(createRequest(&pb.WatchCreateRequest{Key: []byte("b"), RangeEnd: []byte("a")}))
	w.want(`id=-1 created canceled reason="mvcc: watcher range is empty"`)
	w.send(createRequest(&pb.WatchCreateRequest{Key: []byte("a"), RangeEnd: []byte("a")}))
	w.want(`id=-1 created canceled reason="mvcc: watcher range is empty"`)
	w.send(createRequest(&pb.WatchCreateRequest{Key: []byte("a"), StartRevision: -1}))
	w.want(`id=-1 created canceled reason="` + compactedText + `"`)

	// An unknown id is passed over in silence: the next answer is for id 1.
	w.send(cancelRequest(999))
	w.send(cancelRequest(1))
	w.want("id=1 canceled")

	w.send(createRequest(&pb.WatchCreateRequest{Key: []byte("k"), StartRevision: 3, WatchId: 50}))
	w.want("id=50 created")
	compacted := w.want("id=50 canceled compacted=4")
	expect.Equal(t, "revision in the header", compacted.Header.Revision, 0)

	// The id of a watcher that compaction ended stays taken until the client
	// cancels it as well, which is answered once more; then it is free.
	w.send(createRequest(&pb.WatchCreateRequest{Key: []byte("k"), StartRevision: 6, WatchId: 50}))
	w.want(`id=-1 created canceled reason="mvcc: duplicate watch ID provided on the WatchStream"`)
	w.send(cancelRequest(50))
	w.want("id=50 canceled")
	w.send(createRequest(&pb.WatchCreateRequest{Key: []byte("k"), StartRevision: 6, WatchId: 50}))
	w.want("id=50 created")
	w.want("id=50 PUT k=5 @6")
}

func TestWatchProgressOnTheWire(t *testing.T) {
	_, client, ctx := start(t)
	putAll(t, ctx, client, "x=1", "x=2") // 2, 3
	w := openWatch(t, ctx, client)
	for id := range 3 {
		w.send(createRequest(&pb.WatchCreateRequest{Key: fmt.Appendf(nil, "k%d", id)}))
		w.want(fmt.Sprintf("id=%d created", id))
	}
	putAll(t, ctx, client, "k1=v") // 4
	w.want("id=1 PUT k1=v @4")
	w.send(progressRequest())
	expect.Equal(t, "progress", w.want("id=-1").Header.Revision, 4)
	putAll(t, ctx, client, "x=3") // 5
	w.send(progressRequest())
	expect.Equal(t, "progress", w.want("id=-1").Header.Revision, 5)

	// A watcher that waits for a later revision silences progress on its stream.
	w.send(createRequest(&pb.WatchCreateRequest{Key: []byte("f"), StartRevision: 7}))
	w.want("id=3 created")
	w.send(progressRequest())
	putAll(t, ctx, client, "f=6", "f=7") // 6, 7
	w.want("id=3 PUT f=7 @7")
	w.send(progressRequest())
	expect.Equal(t, "progress", w.want("id=-1").Header.Revision, 7)
}
