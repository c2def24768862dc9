package worker

import "context"

// A finished task frees a slot, and a free slot is to be filled: a tiny worker does both in one round trip, by the
// claimer's connection. While that one is busy, or away, the link writes outcomes; and always in a larger worker, where
// the two connections do more than one: one half is written while the other is claimed.

// attend says whether the claimer takes the outcomes that come from now on.
func (c *claimer) attend(yes bool) {
	c.w.link.attended.Store(yes && c.pipelines() && c.w.book.slots <= tinyWorker)
}

// pipelines is false behind a transaction-mode pooler, which may tear one apart.
func (c *claimer) pipelines() bool { return !c.w.cfg.DatabasePooler }

// outcomes takes a batch that goes with the next claim. The link gets what does not.
func (c *claimer) outcomes() (v verb, batch []settlement) {
	buffer := &c.w.link.buffer
	if c.pipelines() && c.w.book.slots <= tinyWorker {
		buffer.gather()
		v, batch = buffer.take()
		if buffer.count() > 0 {
			c.w.link.kick()
		}
	}
	return v, batch
}

// cycle writes a batch of outcomes, if there is one, and claims for the free slots and those that it leaves.
// Three transactions in one round trip: the outcomes; the claim, whose commit does not keep the others waiting at the
// lock until it is on disk; and the flush that makes it count. Without the last one's answer the claim counts as lost:
// its tasks come with the next one again.
func (c *claimer) cycle(ctx context.Context, v verb, batch []settlement, free int, held []int64) (claimAnswer, error) {
	slots, ahead := c.w.book.ask(free + len(batch))
	ask := func(flush bool) statement {
		return claim(c.w.id, slots, ahead, held, c.w.cfg.Lease, c.w.types, flush, c.w.link.number.Load())
	}
	// An idle poll seldom finds anything, and then nobody else is in a hurry: one call, which waits for the disk itself.
	if !c.pipelines() || c.quiet && len(batch) == 0 {
		call := ask(true)
		rows, err := c.client.rows(ctx, call.sql, call.params...)
		return c.received(ctx, answer{rows, err})
	}
	calls := []statement{ask(false), {sql: sqlFlush}}
	if len(batch) > 0 {
		calls = append([]statement{settle(v, batch)}, calls...)
	}
	var tasks, flush answer
	var refused *answer
	written := len(batch) == 0
	err := c.client.pipeline(ctx, calls, func(i int, got answer) {
		switch {
		case i == len(calls)-1:
			flush = got
		case i == len(calls)-2:
			tasks = got
		case got.err != nil:
			refused = &got
		default: // at once: the claim may have to wait for the lock
			written = true
			_ = c.w.written(ctx, c.client, v, batch, got) // no error but got's
		}
	})
	if err != nil {
		if !written {
			c.w.link.buffer.putBack(v, batch)
		}
		return claimAnswer{}, err
	}
	if refused != nil {
		err = c.w.written(ctx, c.client, v, batch, *refused)
	}
	if err == nil {
		err = flush.err
	}
	if err != nil {
		return claimAnswer{}, err
	}
	return c.received(ctx, tasks)
}

func (c *claimer) received(ctx context.Context, got answer) (claimAnswer, error) {
	if got.err != nil {
		return claimAnswer{}, got.err
	}
	found, err := claimed(got.rows)
	if err != nil {
		return claimAnswer{}, err
	}
	return found, c.client.bodies(ctx, &found)
}
