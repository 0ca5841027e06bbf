package faultsuite

import (
	"fmt"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

// porcupineDeadline bounds the search. Histories here take well below a second.
const porcupineDeadline = time.Minute

// checkRegisters asks a checker that does not start from the timeline: is there, for
// every key, an order of its operations that respects real time and explains each
// answer? A write of unknown outcome that is nowhere in the history did not happen.
// One that is there may have happened at any time from its call until somebody saw
// its revision, but only behind the change that it follows in the history: without
// that the search would be endless.
func (v *verdict) checkRegisters() {
	history := v.registerHistory()
	if porcupine.CheckOperationsTimeout(registers, history, porcupineDeadline) == porcupine.Ok {
		return
	}
	// Which key, for whoever looks into it.
	for _, part := range registers.Partition(history) {
		if result := porcupine.CheckOperationsTimeout(registers, part, porcupineDeadline); result != porcupine.Ok {
			v.add("not linearizable (%v): the %d operations on %q", result, len(part), part[0].Input.(*operation).Key)
		}
	}
}

func (v *verdict) registerHistory() []porcupine.Operation {
	others := map[string]bool{} // keys that are no registers
	for _, o := range v.recording.Operations {
		if o.Kind == attach || o.Kind == pair {
			others[o.Key], others[o.OtherKey] = true, true
		}
	}
	var history []porcupine.Operation
	for _, o := range v.recording.Operations {
		if !isRegister(o) || others[o.Key] || o.Serializable || o.Outcome == refused {
			continue
		}
		returned, found := o.Return, v.effectOn(o)
		if o.Outcome == unknown {
			if found.revision == 0 {
				continue
			}
			returned = max(v.clock.seenBy[found.revision], o.Call)
		}
		history = append(history, porcupine.Operation{ClientId: o.Client, Input: o, Output: found, Call: int64(o.Call), Return: int64(returned)})
	}
	return history
}

// registerEffect is where a write is in its key's history, 0 if it is not.
type registerEffect struct{ revision, follows int64 }

func (v *verdict) effectOn(o *operation) registerEffect {
	revision := v.effect[o]
	if revision == 0 {
		return registerEffect{}
	}
	changes := v.timeline.changes[o.Key]
	before := sort.Search(len(changes), func(i int) bool { return changes[i].Row.Mod >= revision })
	if before == 0 {
		return registerEffect{revision: revision}
	}
	return registerEffect{revision, changes[before-1].Row.Mod}
}

// isRegister: operations on one key without a lease.
func isRegister(o *operation) bool {
	switch o.Kind {
	case put, get, swap, remove, bury:
		return true
	default:
		return false
	}
}

// register is a key's state: what a read of it shows, if version is not 0. mod is
// also kept of a deleted key.
type register struct {
	value        string
	version, mod int64
}

var registers = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[string][]porcupine.Operation{}
		for _, o := range history {
			key := o.Input.(*operation).Key
			byKey[key] = append(byKey[key], o)
		}
		var parts [][]porcupine.Operation
		for _, part := range byKey {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return register{} },
	Step: func(state, input, output any) (bool, any) {
		return stepRegister(state.(register), input.(*operation), output.(registerEffect))
	},
	DescribeOperation: func(input, _ any) string { return fmt.Sprint(input) },
}

func stepRegister(state register, o *operation, found registerEffect) (bool, register) {
	known := o.Outcome == done
	if !known && found.follows != state.mod {
		return false, state
	}
	written := register{o.Value, state.version + 1, found.revision}
	switch o.Kind {
	case get:
		return shows(o.Rows, state), state
	case swap:
		if state.version == 0 && o.Expect == 0 || state.version > 0 && state.mod == o.Expect {
			return !known || o.Succeeded, written
		}
		return known && !o.Succeeded && shows(o.Rows, state), state
	case remove, bury:
		if known && (o.Deleted > 0) != (state.version > 0) || !previousFits(o, state) {
			return false, state
		}
		if state.version == 0 {
			return true, state
		}
		return found.revision > state.mod, register{mod: found.revision}
	default:
		return found.revision > state.mod && previousFits(o, state), written
	}
}

func shows(rows []row, state register) bool {
	if len(rows) == 0 {
		return state.version == 0
	}
	return rows[0].Value == state.value && rows[0].Version == state.version && rows[0].Mod == state.mod
}

func previousFits(o *operation, state register) bool {
	if o.Outcome != done || !o.WantPrevious {
		return true
	}
	if o.Previous == nil {
		return state.version == 0
	}
	return shows([]row{*o.Previous}, state)
}
