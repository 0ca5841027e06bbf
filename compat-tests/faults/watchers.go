package faultsuite

import (
	"context"
	"fmt"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// finalKey ends the key that is written in every watched range when all is over; a
// watcher that has seen it has seen everything.
const finalKey = "zz-final"

// watch follows a range until it has seen the final key in it, on one server after
// the other: it changes when a stream breaks, when nothing was heard for a while,
// and now and then without a reason.
func (w *world) watch(ctx context.Context, c *client, watcher *watching) {
	if !watcher.FromNow {
		watcher.next.Store(firstRevision + 1)
	}
	for ctx.Err() == nil {
		c.failed = true
		c.move()
		session := &watchSession{At: w.run(c.server), Start: watcher.next.Load(), Called: w.recording.now()}
		stay := time.Duration(1+c.random.IntN(8)) * time.Second
		finished := c.follow(ctx, watcher, session, stay)
		w.recording.mu.Lock()
		watcher.Sessions = append(watcher.Sessions, session)
		w.recording.mu.Unlock()
		if finished {
			return
		}
		if !watcher.FromNow {
			watcher.next.Store(resumeAt(session))
		}
		if len(session.Answers) == 0 {
			pause(ctx, retryPause)
		}
	}
}

// resumeAt is the first revision that a session has not accounted for.
func resumeAt(session *watchSession) int64 {
	if len(session.Answers) == 0 {
		return session.Start
	}
	last := session.Answers[len(session.Answers)-1]
	if count := len(last.Events); count > 0 {
		return last.Events[count-1].Row.Mod + 1
	}
	return last.Revision + 1
}

// follow is one session. It returns true when the final key was seen.
func (c *client) follow(ctx context.Context, watcher *watching, session *watchSession, stay time.Duration) bool {
	bounded, cancel := context.WithTimeout(ctx, stay)
	defer cancel()
	stream, err := pb.NewWatchClient(c.connections[c.server]).Watch(bounded)
	if err != nil {
		return false
	}
	create := &pb.WatchCreateRequest{
		Key: []byte(watcher.Key), RangeEnd: []byte(watcher.End), StartRevision: session.Start,
		PrevKv: watcher.Previous, ProgressNotify: true,
	}
	if stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}}) != nil {
		return false
	}
	askProgress := c.random.IntN(2) == 0
	for {
		answer, err := stream.Recv()
		if err != nil {
			return false
		}
		switch {
		case answer.Canceled:
			session.Canceled = fmt.Sprintf("%s (compacted at %d)", answer.CancelReason, answer.CompactRevision)
			return false
		case answer.Created:
			session.Created = answer.Header.Revision
			continue
		}
		told := watchAnswer{At: c.recording.now(), Revision: answer.Header.Revision, Events: eventsOf(answer.Events)}
		session.Answers = append(session.Answers, told)
		for _, e := range told.Events {
			if strings.HasSuffix(e.Row.Key, finalKey) {
				return true
			}
		}
		if askProgress && c.random.IntN(8) == 0 {
			_ = stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}})
		}
	}
}
