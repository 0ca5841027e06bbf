package faultsuite

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// kind is what a client asked for.
type kind string

const (
	put        kind = "put"
	get        kind = "get"          // one key
	list       kind = "list"         // a range of keys
	swap       kind = "swap"         // a put if the key has a certain modification revision, else a get
	remove     kind = "delete"       // leaves no trace of who did it
	bury       kind = "bury"         // a delete and the put of a unique value elsewhere, in one transaction
	pair       kind = "pair"         // the puts of one value to two keys, in one transaction
	attach     kind = "attach"       // a put with a lease
	grant      kind = "grant"        //
	renew      kind = "renew"        //
	revoke     kind = "revoke"       //
	timeToLive kind = "time to live" // with the lease's keys
	compact    kind = "compact"
)

// outcome is what a client knows of its request.
type outcome string

const (
	done    outcome = "done"
	refused outcome = "refused" // certainly without effect
	unknown outcome = "unknown" // it may have happened, or happen yet
)

// instant is a time of this process's monotonic clock, since the run began.
type instant time.Duration

func (i instant) String() string { return time.Duration(i).Round(time.Millisecond).String() }

// never is later than all that is recorded.
const never = instant(1<<63 - 1)

// serverRun is one life of one server's process.
type serverRun struct{ Server, Life int }

// row is a key as a server shows it.
type row struct {
	Key, Value                  string
	Create, Mod, Version, Lease int64
}

// operation is one request and what came back.
type operation struct {
	Client int
	Kind   kind
	At     serverRun
	// Key and End are the range; OtherKey is the second key of bury and pair.
	Key, End, OtherKey string
	// Value is unique to this operation, if it writes.
	Value string
	// Expect is the modification revision that a swap asks for, 0 for an absent key.
	Expect       int64
	Lease, TTL   int64 // in seconds; TTL is the answered one, 0 or below of a lease that has ended
	Serializable bool
	Call, Return instant

	Outcome outcome
	Failure string
	// Revision is the header's.
	Revision int64
	Rows     []row
	// Previous is set if WantPrevious was, and the key existed.
	WantPrevious bool
	Previous     *row
	Succeeded    bool
	Deleted      int64
	CompactAt    int64
	// Keys are those that a lease was said to have.
	Keys []string
}

func (o *operation) String() string {
	text := fmt.Sprintf("%s %q by client %d at server %d.%d, %v to %v, %s", o.Kind, o.Key, o.Client, o.At.Server, o.At.Life, o.Call, o.Return, o.Outcome)
	if o.Value != "" {
		text += fmt.Sprintf(", value %q", o.Value)
	}
	if o.Lease != 0 {
		text += fmt.Sprintf(", lease %x", o.Lease)
	}
	if o.Revision != 0 {
		text += fmt.Sprintf(", revision %d", o.Revision)
	}
	if o.Failure != "" {
		text += ": " + o.Failure
	}
	return text
}

// event is a change of one key.
type event struct {
	Delete   bool
	Row      row
	Previous *row
}

// watchAnswer is one message of a watch.
type watchAnswer struct {
	At       instant
	Revision int64 // the header's
	Events   []event
}

// watchSession is a watch on one server, from its creation until something ended it.
type watchSession struct {
	At     serverRun
	Called instant
	// Start is the revision asked for; 0 is "from now on".
	Start int64
	// Created is the header's revision of the first answer, 0 if there was none.
	Created  int64
	Answers  []watchAnswer
	Canceled string // why the server ended it, if it did
}

// watching is one watcher: its sessions follow each other, each going on where
// the one before was told that it had seen everything.
type watching struct {
	Name     string
	Key, End string
	Previous bool
	// FromNow watchers do not resume, they start anew.
	FromNow  bool
	Sessions []*watchSession
	// next is the first revision that it has not accounted for yet.
	next atomic.Int64
}

// recording is all that the clients saw.
type recording struct {
	mu         sync.Mutex
	began      time.Time
	Operations []*operation
	Watchers   []*watching
}

func newRecording() *recording { return &recording{began: time.Now()} }

func (r *recording) now() instant { return instant(time.Since(r.began)) }

func (r *recording) add(o *operation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Operations = append(r.Operations, o)
}

// size is how many operations have been recorded so far.
func (r *recording) size() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.Operations)
}

// findings collects what is wrong. Beyond a number that nobody reads it only counts.
type findings struct {
	texts []string
	count int
}

const findingsShown = 25

func (f *findings) add(format string, arguments ...any) {
	f.count++
	if len(f.texts) < findingsShown {
		f.texts = append(f.texts, fmt.Sprintf(format, arguments...))
	}
}
