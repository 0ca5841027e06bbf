// Package faultsuite keeps clients busy while processes are killed and paused,
// records everything that the clients were told, and then judges it.
//
//	load.go, leases.go, watchers.go  the clients
//	faults.go, world.go              what is done to the servers
//	history.go                       what is recorded
//	timeline.go                      the keyspace's whole history, as watches tell it
//	check*.go                        the judges: functions of recording and timeline, which know no server
//
// Nothing else writes, so the timeline has no holes, and every written value is
// unique. So each answer can be held against the one order of revisions that
// the server itself claims: what was acknowledged must be in it, once and at the
// revision of the answer; every read, watch and lease must agree with it; and it
// must agree with the order in which the clients saw things happen.
package faultsuite
