package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// inlineBytes of bodies come with a claim, which holds the lock while it is sent: what fits the buffers of a socket.
const inlineBytes = 65_536

type claimAnswer struct {
	outcome string // claimed, busy, full, limited, empty or unsure
	tasks   []*Task
	nextDue *time.Duration
}

// claim is the call for tasks: for the free slots, and for some ahead (see ahead.go). listener is the number by which this process is woken,
// 0 while it hears nothing. When flush is false its answer counts only once a sqlFlush behind it was answered:
// until then a crash of the server may undo it.
func claim(worker string, slots, ahead int, held []int64, lease time.Duration, types []string, flush bool, listener int32) statement {
	return statement{sqlClaim, []param{text(worker), number(slots), literal(integers(held)), text(interval(lease)),
		binaryForm(textArray(types, nil)), number(inlineBytes), text(strconv.FormatBool(flush)), number(int(listener)), number(ahead)}}
}

// claimed reads the answer. Large bodies are missing in it.
func claimed(rows [][][]byte) (claimAnswer, error) {
	if len(rows) == 0 {
		return claimAnswer{}, errors.New("claim answered no row")
	}
	if rows[0][2] == nil {
		answer := claimAnswer{outcome: string(rows[0][0])}
		if rows[0][1] != nil {
			due, err := seconds(rows[0][1])
			if err != nil {
				return claimAnswer{}, fmt.Errorf("claim: next_due: %w", err)
			}
			answer.nextDue = &due
		}
		return answer, nil
	}
	answer := claimAnswer{outcome: "claimed", tasks: make([]*Task, len(rows))}
	for i, row := range rows {
		var err error
		if answer.tasks[i], err = claimedTask(row); err != nil {
			return claimAnswer{}, err
		}
	}
	return answer, nil
}

// bodies fetches the large bodies that the claim left out. When that fails, the next claim has the same tasks again.
func (c calls) bodies(ctx context.Context, answer *claimAnswer) error {
	var ids []string
	var tokens []int64
	large := map[int64]*Task{}
	for _, task := range answer.tasks {
		if task.Request == nil {
			ids, tokens = append(ids, task.ID), append(tokens, task.Token)
			large[task.Token] = task
		}
	}
	if len(large) == 0 {
		return nil
	}
	rows, err := c.rows(ctx, sqlBodies, binaryForm(textArray(ids, nil)), literal(integers(tokens)))
	if err != nil {
		return err
	}
	for _, row := range rows {
		token, err := strconv.ParseInt(string(row[1]), 10, 64)
		if task := large[token]; err == nil && task != nil {
			task.Request, task.Metadata, task.Checkpoint = row[2], row[3], row[4]
		}
	}
	// one that is still without was taken away meanwhile
	answer.tasks = slices.DeleteFunc(answer.tasks, func(task *Task) bool { return task.Request == nil })
	return nil
}

func claimedTask(row [][]byte) (*Task, error) {
	token, err := strconv.ParseInt(string(row[3]), 10, 64)
	attempt, err2 := strconv.Atoi(string(row[6]))
	most, err3 := strconv.Atoi(string(row[7]))
	var limit, waited time.Duration
	var err4, err5 error
	if row[8] != nil {
		limit, err4 = seconds(row[8])
	}
	if row[13] != nil {
		waited, err5 = seconds(row[13])
	}
	if err := errors.Join(err, err2, err3, err4, err5); err != nil {
		return nil, fmt.Errorf("claim answered what this program does not understand: %w", err)
	}
	var paid *Paid
	if row[16] != nil {
		if err := json.Unmarshal(row[16], &paid); err != nil {
			return nil, fmt.Errorf("claim answered a paid call that this program does not understand: %w", err)
		}
	}
	return &Task{
		ID: string(row[2]), Token: token, Type: string(row[4]), Request: row[5], Attempt: attempt, MaxAttempts: most,
		Timeout: limit, Tenant: string(row[9]), Metadata: row[10], Checkpoint: row[11], Traceparent: string(row[12]),
		Upstream: string(row[14]), Model: string(row[15]), Paid: paid, waited: waited, again: string(row[0]) == "again",
	}, nil
}
