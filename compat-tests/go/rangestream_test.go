package clientsuite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"google.golang.org/grpc/codes"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"leaseway/compat-tests/expect"
)

// stream collects the chunks of one RangeStream call.
func stream(ctx context.Context, client *clientv3.Client, request *pb.RangeRequest) ([]*pb.RangeResponse, error) {
	call, err := pb.NewKVClient(client.ActiveConnection()).RangeStream(ctx, request)
	if err != nil {
		return nil, err
	}
	var chunks []*pb.RangeResponse
	for {
		chunk, err := call.Recv()
		if errors.Is(err, io.EOF) {
			return chunks, nil
		}
		if err != nil {
			return nil, err
		}
		chunks = append(chunks, chunk.RangeResponse)
	}
}

func TestRangeStreamEqualsRange(t *testing.T) {
	_, client, ctx := start(t)
	for i := range 25 {
		putAll(t, ctx, client, fmt.Sprintf("k%02d=%d", i, i))
	}
	expect.Must(client.Delete(ctx, "k07"))(t)
	for _, request := range []*pb.RangeRequest{
		{Key: []byte("k"), RangeEnd: []byte("l")},
		{Key: []byte("k"), RangeEnd: []byte("l"), Limit: 12},
		{Key: []byte("k"), RangeEnd: []byte("l"), Limit: 24},
		{Key: []byte("k"), RangeEnd: []byte("l"), Revision: 20},
		{Key: []byte("k"), RangeEnd: []byte("l"), KeysOnly: true},
		{Key: []byte("k"), RangeEnd: []byte("l"), CountOnly: true},
		{Key: []byte("k10"), RangeEnd: []byte{0}, Serializable: true},
		{Key: []byte("k05")},
		{Key: []byte("none")},
	} {
		chunks, err := stream(ctx, client, request)
		expect.NoError(t, err)
		whole := expect.Must(pb.NewKVClient(client.ActiveConnection()).Range(ctx, request))(t)
		var got []string
		for i, chunk := range chunks {
			last := i == len(chunks)-1
			expect.Equal(t, "header only on the last chunk", chunk.Header != nil, last)
			if !last {
				expect.Equal(t, "count before the last chunk", chunk.Count, 0)
				expect.Equal(t, "more before the last chunk", chunk.More, false)
			}
			if text := pairs(chunk.Kvs); text != "" {
				got = append(got, text)
			}
		}
		final := chunks[len(chunks)-1]
		joined := ""
		for i, text := range got {
			if i > 0 {
				joined += " "
			}
			joined += text
		}
		expect.Equal(t, "keys", joined, pairs(whole.Kvs))
		expect.Equal(t, "count", final.Count, whole.Count)
		expect.Equal(t, "more", final.More, whole.More)
		expect.Equal(t, "revision", final.Header.Revision, whole.Header.Revision)
	}
}

func TestRangeStreamRefusals(t *testing.T) {
	_, client, ctx := start(t)
	putAll(t, ctx, client, "k=1")
	for _, test := range []struct {
		request *pb.RangeRequest
		code    codes.Code
		text    string
	}{
		{&pb.RangeRequest{}, codes.InvalidArgument, "etcdserver: key is not provided"},
		{&pb.RangeRequest{Key: []byte("k"), Revision: 99}, codes.OutOfRange, "etcdserver: mvcc: required revision is a future revision"},
		{&pb.RangeRequest{Key: []byte("k"), RangeEnd: []byte("l"), SortOrder: pb.RangeRequest_DESCEND}, codes.Unimplemented, "RangeStream does not support custom sort orders"},
		{&pb.RangeRequest{Key: []byte("k"), RangeEnd: []byte("l"), MinModRevision: 1}, codes.Unimplemented, "RangeStream does not support revision filters"},
	} {
		_, err := stream(ctx, client, test.request)
		wantStatus(t, err, test.code, test.text)
	}
}

func TestClientGetStream(t *testing.T) {
	_, client, ctx := start(t)
	for i := range 300 {
		putAll(t, ctx, client, fmt.Sprintf("k%03d=%d", i, i))
	}
	chunks := expect.Must(client.GetStream(ctx, "k", clientv3.WithPrefix()))(t)
	merged := expect.Must(clientv3.GetStreamToGetResponse(chunks))(t)
	expect.Equal(t, "count", merged.Count, 300)
	whole := expect.Must(client.Get(ctx, "k", clientv3.WithPrefix()))(t)
	expect.Equal(t, "keys", pairs(merged.Kvs), pairs(whole.Kvs))
}
