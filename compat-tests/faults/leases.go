package faultsuite

import (
	"context"
	"fmt"
	"time"
)

const (
	// longTTL in seconds is above what a session of Oxia may have, so that gateways
	// keep such a lease's time by themselves.
	longTTL = 310
	// revokePatience bounds the revocation of a lease while servers are away.
	revokePatience = 3 * time.Minute
)

// holdLeases lives through one lease after the other until the load ends. Every
// request goes to another server.
func (w *world) holdLeases(load context.Context, c *client) {
	for lease := 0; load.Err() == nil; lease++ {
		o := &operation{Kind: grant, TTL: 2 + c.random.Int64N(4)}
		long := c.random.IntN(6) == 0
		if long {
			o.TTL = longTTL
		}
		c.request(load, o)
		if o.Outcome != done {
			continue
		}
		w.holdLease(load, c, o, fmt.Sprintf("lease/%d/%04d/", c.number, lease))
		if long || c.random.IntN(2) == 0 {
			c.end(o.Lease)
		}
	}
}

// holdLease attaches keys and renews for a while.
func (w *world) holdLease(load context.Context, c *client, granted *operation, prefix string) {
	keys := 1 + c.random.IntN(3)
	for key := range keys {
		c.request(load, &operation{Kind: attach, Key: fmt.Sprint(prefix, key), Value: w.values.next(c), Lease: granted.Lease})
	}
	ttl := min(time.Duration(granted.TTL)*time.Second, 5*time.Second)
	for range c.random.IntN(7) {
		// From well in time to just in time, so that some are too late.
		pause(load, ttl*time.Duration(20+c.random.IntN(80))/100)
		if load.Err() != nil {
			return
		}
		o := &operation{Kind: renew, Lease: granted.Lease}
		c.request(load, o)
		if o.Outcome == done && o.TTL <= 0 {
			return
		}
		switch c.random.IntN(6) {
		case 0:
			c.request(load, &operation{Kind: timeToLive, Lease: granted.Lease})
		case 1: // another key
			c.request(load, &operation{Kind: attach, Key: prefix + "more", Value: w.values.next(c), Lease: granted.Lease})
		case 2: // one that the lease holds no longer, and must leave alone
			c.request(load, &operation{Kind: put, Key: prefix + "0", Value: w.values.next(c)})
		}
	}
}

// request sends an operation to some server.
func (c *client) request(load context.Context, o *operation) {
	c.failed = true // which makes it move
	c.move()
	c.perform(context.Background(), o)
	if c.failed {
		pause(load, retryPause)
	}
}

// end revokes a lease, whatever it takes; a long one would outlive the run.
func (c *client) end(lease int64) {
	for deadline := time.Now().Add(revokePatience); time.Now().Before(deadline) && !c.world.abandoned.Load(); {
		o := &operation{Kind: revoke, Lease: lease}
		c.request(context.Background(), o)
		if o.Outcome != unknown {
			return
		}
	}
}
