package faultsuite

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"leaseway/compat-tests/harness"
)

// faultKind is what is done to whom.
type faultKind string

const (
	killServer      faultKind = "a server killed"
	killServerEmpty faultKind = "a server killed, back without its directory"
	pauseServer     faultKind = "a server paused"

	killNode         faultKind = "an Oxia follower killed"
	killLeader       faultKind = "the Oxia leader killed"
	pauseNode        faultKind = "an Oxia follower paused"
	pauseLeader      faultKind = "the Oxia leader paused"
	killCoordinator  faultKind = "the coordinator killed"
	pauseCoordinator faultKind = "the coordinator paused"

	// What one would not expect to happen, and what happens nevertheless.
	killTwoServers     faultKind = "two servers killed"
	killAllServers     faultKind = "all servers killed for 30 s"
	pauseAllServers    faultKind = "all servers paused"
	killServerAndNode  faultKind = "a server and the Oxia leader killed"
	pauseServerAndNode faultKind = "a server and the Oxia leader paused"
	pauseLeaderLong    faultKind = "the Oxia leader paused for 20 s"
	killHead           faultKind = "coordinator and Oxia leader killed"
	killMajority       faultKind = "two Oxia nodes killed"
	killOxia           faultKind = "all Oxia nodes killed"
	flapServer         faultKind = "a server killed again and again"
	flapLeader         faultKind = "each new Oxia leader killed"
)

// kindsFor are those that can be done to a subject.
func kindsFor(subject harness.Subject, nasty bool) []faultKind {
	if subject != harness.Gateway {
		return []faultKind{killServer, pauseServer}
	}
	kinds := []faultKind{
		killServer, killServerEmpty, pauseServer, killNode, killLeader, pauseNode, pauseLeader, killCoordinator, pauseCoordinator,
	}
	if nasty {
		kinds = append(kinds, killTwoServers, killAllServers, pauseAllServers, killServerAndNode, pauseServerAndNode,
			pauseLeaderLong, killHead, killMajority, killOxia, flapServer, flapLeader)
	}
	return kinds
}

// fault is one thing to be done.
type fault struct {
	Kind faultKind
	// For is how long it lasts.
	For time.Duration
	// Target chooses among servers or nodes, whatever their number.
	Target int
	// Quiet is how long the servers are left alone before.
	Quiet time.Duration
}

const (
	shortestFault = 500 * time.Millisecond
	longestFault  = 15 * time.Second
)

// planFaults draws what happens from a seed: every kind once in random order, then
// every kind again, for a given time. Durations are short more often than long.
func planFaults(seed uint64, kinds []faultKind, total time.Duration) []fault {
	random := rand.New(rand.NewPCG(seed, 0))
	var plan []fault
	for planned := time.Duration(0); planned < total; {
		for _, i := range random.Perm(len(kinds)) {
			spread := math.Log(float64(longestFault) / float64(shortestFault))
			f := fault{
				Kind:   kinds[i],
				For:    time.Duration(float64(shortestFault) * math.Exp(random.Float64()*spread)).Round(time.Millisecond),
				Target: random.IntN(1 << 16),
				Quiet:  time.Duration(random.Int64N(int64(2 * time.Second))).Round(time.Millisecond),
			}
			switch f.Kind {
			case killAllServers:
				f.For = 30 * time.Second
			case pauseLeaderLong:
				f.For = 20 * time.Second
			}
			plan = append(plan, f)
			if planned += f.For + f.Quiet; planned >= total {
				break
			}
		}
	}
	return plan
}

// breakIt does it, and returns who was chosen and how to make it good.
func (w *world) breakIt(f fault) (who string, heal func()) {
	server := f.Target % len(w.servers)
	who = fmt.Sprintf("server %d", server)
	switch f.Kind {
	case killServer, killServerEmpty:
		w.killServer(server)
		return who, func() { w.startServer(server, f.Kind == killServerEmpty) }
	case pauseServer:
		w.stopServer(server)
		return who, func() { w.continueServer(server) }
	case killTwoServers:
		other := (server + 1) % len(w.servers)
		return w.killServers(server, other)
	case killAllServers:
		return w.killServers(0, 1, 2)
	case pauseAllServers:
		for i := range w.servers {
			w.stopServer(i)
		}
		return "", func() {
			for i := range w.servers {
				w.continueServer(i)
			}
		}
	case killServerAndNode:
		_, server := w.breakIt(fault{Kind: killServer, Target: f.Target})
		who, node := w.breakIt(fault{Kind: killLeader})
		return who, func() { server(); node() }
	case pauseServerAndNode:
		_, server := w.breakIt(fault{Kind: pauseServer, Target: f.Target})
		who, node := w.breakIt(fault{Kind: pauseLeader})
		return who, func() { node(); server() }
	case flapServer:
		for range 4 {
			w.killServer(server)
			w.startServer(server, false)
			time.Sleep(time.Duration(f.Target%500) * time.Millisecond)
		}
		return who, func() {}
	default:
		return w.breakOxia(f)
	}
}

func (w *world) killServers(servers ...int) (string, func()) {
	for _, server := range servers {
		w.killServer(server)
	}
	return fmt.Sprint("servers ", servers), func() {
		for _, server := range servers {
			w.startServer(server, false)
		}
	}
}

// breakOxia is breakIt for what is behind the servers.
func (w *world) breakOxia(f fault) (who string, heal func()) {
	nodes := len(w.oxia.Addresses)
	leader := w.oxia.AwaitLeader()
	// A follower, whichever: the leader and those behind it in a circle.
	var first int
	fmt.Sscan(leader, &first)
	follower := fmt.Sprint((first-1+1+f.Target%(nodes-1))%nodes + 1)
	switch f.Kind {
	case killNode:
		return w.killNodes(follower)
	case killLeader:
		return w.killNodes(leader)
	case killMajority:
		return w.killNodes(leader, follower)
	case killOxia:
		return w.killNodes("1", "2", "3")
	case killCoordinator:
		return w.killNodes(harness.Coordinator)
	case killHead:
		return w.killNodes(harness.Coordinator, leader)
	case pauseNode:
		return w.pauseNode(follower)
	case pauseLeader, pauseLeaderLong:
		return w.pauseNode(leader)
	case pauseCoordinator:
		return w.pauseNode(harness.Coordinator)
	case flapLeader:
		for range 2 {
			_, restart := w.killNodes(w.oxia.AwaitLeader())
			w.mustServe("after one Oxia leader of several was killed")
			restart()
		}
		return w.killNodes(w.oxia.AwaitLeader())
	default:
		w.t.Fatalf("nobody knows how to do this: %s", f.Kind)
		return "", nil
	}
}

func (w *world) killNodes(nodes ...string) (string, func()) {
	for _, node := range nodes {
		w.oxia.Kill(node)
	}
	return fmt.Sprint("node ", nodes), func() {
		for _, node := range nodes {
			w.oxia.Restart(node)
		}
	}
}

func (w *world) pauseNode(node string) (string, func()) {
	w.oxia.Pause(node)
	return "node " + node, func() { w.oxia.Resume(node) }
}
