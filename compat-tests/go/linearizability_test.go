package clientsuite

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	clientv3 "go.etcd.io/etcd/client/v3"

	"leaseway/compat-tests/expect"
)

// Concurrent clients read, write and swap a few registers while the server is
// killed and started again; the recorded history must be explainable by some
// order of the operations that respects real time.

type registerOp int

const (
	opRead registerOp = iota
	opWrite
	opSwap
)

// registerInput is an operation on one key. Written values are unique.
type registerInput struct {
	op            registerOp
	key           string
	expect, value string
}

// registerOutput is what came back; unknown if the call failed, in which case a
// write may have happened, may happen later, or never.
type registerOutput struct {
	unknown bool
	value   string
	swapped bool
}

var registers = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[string][]porcupine.Operation{}
		for _, operation := range history {
			key := operation.Input.(registerInput).key
			byKey[key] = append(byKey[key], operation)
		}
		var parts [][]porcupine.Operation
		for _, part := range byKey {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		present, in, out := state.(string), input.(registerInput), output.(registerOutput)
		switch in.op {
		case opRead:
			return out.unknown || out.value == present, present
		case opWrite:
			return true, in.value
		default:
			matches := in.expect == present
			if matches {
				return out.unknown || out.swapped, in.value
			}
			return out.unknown || !out.swapped, present
		}
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
}

type history struct {
	mu         sync.Mutex
	operations []porcupine.Operation
	started    time.Time
}

func (h *history) now() int64 { return int64(time.Since(h.started)) }

func (h *history) record(client int, in registerInput, out registerOutput, call int64) {
	returned := h.now()
	if out.unknown {
		if in.op == opRead {
			return // a read that failed says nothing
		}
		returned = int64(time.Hour) // it may take effect at any time after its call
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.operations = append(h.operations, porcupine.Operation{ClientId: client, Input: in, Output: out, Call: call, Return: returned})
}

func TestLinearizable(t *testing.T) {
	server, _, ctx := start(t)
	const clients, each, kills, keys = 6, 120, 3, 3
	h := &history{started: time.Now()}
	var group sync.WaitGroup
	for id := range clients {
		client := server.Client()
		random := rand.New(rand.NewPCG(uint64(id), 7))
		group.Go(func() {
			last := map[string]string{}
			for i := range each {
				in := registerInput{op: registerOp(random.IntN(3)), key: fmt.Sprintf("r%d", random.IntN(keys)), value: fmt.Sprintf("%d/%d", id, i)}
				in.expect = last[in.key]
				call := h.now()
				out := perform(ctx, client, in)
				h.record(id, in, out, call)
				if in.op == opRead && !out.unknown {
					last[in.key] = out.value
				}
				if out.unknown {
					id += clients // the old client may still be writing: go on as another
				}
			}
		})
	}
	for range kills {
		marker := expect.Must(server.Client().Get(ctx, "r", clientv3.WithPrefix(), clientv3.WithCountOnly()))(t).Header.Revision
		watch := server.Client().Watch(ctx, "r", clientv3.WithPrefix(), clientv3.WithRev(marker+20))
		select { // some twenty writes later
		case <-watch:
		case <-time.After(2 * time.Second):
		}
		server.Kill()
		server.Resume()
	}
	group.Wait()
	result := porcupine.CheckOperationsTimeout(registers, h.operations, time.Minute)
	if result != porcupine.Ok {
		t.Fatalf("history of %d operations: %v", len(h.operations), result)
	}
}

func perform(ctx context.Context, client *clientv3.Client, in registerInput) registerOutput {
	bounded, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	switch in.op {
	case opRead:
		answer, err := client.Get(bounded, in.key)
		if err != nil {
			return registerOutput{unknown: true}
		}
		if len(answer.Kvs) == 0 {
			return registerOutput{}
		}
		return registerOutput{value: string(answer.Kvs[0].Value)}
	case opWrite:
		_, err := client.Put(bounded, in.key, in.value)
		return registerOutput{unknown: err != nil}
	default:
		// An absent key is the empty value, which nobody writes.
		compare := clientv3.Compare(clientv3.Value(in.key), "=", in.expect)
		if in.expect == "" {
			compare = clientv3.Compare(clientv3.Version(in.key), "=", 0)
		}
		answer, err := client.Txn(bounded).If(compare).Then(clientv3.OpPut(in.key, in.value)).Commit()
		if err != nil {
			return registerOutput{unknown: true}
		}
		return registerOutput{swapped: answer.Succeeded}
	}
}

func TestLinearizabilityCheckerRefusesAStaleRead(t *testing.T) {
	write := func(value string, call, returned int64) porcupine.Operation {
		return porcupine.Operation{Input: registerInput{op: opWrite, value: value}, Output: registerOutput{}, Call: call, Return: returned}
	}
	read := func(value string, call, returned int64) porcupine.Operation {
		return porcupine.Operation{ClientId: 1, Input: registerInput{op: opRead}, Output: registerOutput{value: value}, Call: call, Return: returned}
	}
	expect.Equal(t, "overlapping", porcupine.CheckOperations(registers, []porcupine.Operation{write("1", 0, 10), write("2", 20, 40), read("1", 30, 50)}), true)
	expect.Equal(t, "stale", porcupine.CheckOperations(registers, []porcupine.Operation{write("1", 0, 10), write("2", 20, 40), read("1", 41, 50)}), false)
}
