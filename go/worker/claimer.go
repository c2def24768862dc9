package worker

import (
	"context"
	"time"
)

// claimer owns the process's first connection: one claimer for all slots, whatever their number.
type claimer struct {
	w         *Worker
	client    calls
	recoverAt time.Time
	purgeAt   time.Time
	purging   pace
	pollAt    time.Time // not to claim before, unless there is news
	quiet     bool      // the last claim found nothing, and there was no news since
	unsure    time.Duration
	begun     int // tasks of the last claim
	gathered  bool
	woken     bool          // by a notification
	spread    time.Duration // notified claims come somewhere within it
}

const (
	purgeBatch   = 1000
	recoverEvery = 30 * time.Second // a claim recovers too, and so does every other process
	// an idle worker asks again before the database stops notifying it (a minute after its last empty claim)
	longestPoll = 45 * time.Second
	// where more slots come free than are free, one claim for all of them waits for so long at most
	gatherPause = 2 * time.Millisecond
	// A notification reaches every idle worker, and only one of them can win. Each waits at random within a spread of
	// its own, which a claim in vain widens by a step and one that brought tasks halves: so it grows with the number of
	// idle workers, and about two claims come each millisecond, the first at once, whatever the fleet's size.
	spreadStep = 250 * time.Microsecond
	spreadMost = 500 * time.Millisecond
	// What a claim in vain took beyond the first, it mostly stood in line behind others: the spread widens by that too,
	// up to the second, so that a large fleet need not be woken in vain by hundreds of tasks first.
	uncontended   = 10 * time.Millisecond
	contendedMost = 5 * time.Millisecond
)

// run claims until the worker drains.
func (c *claimer) run(ctx context.Context) {
	defer func() {
		c.attend(false)
		c.w.link.kick()
		if c.client.conn != nil {
			closeNow(c.client.conn)
		}
	}()
	c.purgeAt = time.Now().Add(jitter(paceShortest, 0, 1))
	c.recoverAt = time.Now().Add(c.recoverPause())
	var wait backoff
	for !c.w.isDraining() && ctx.Err() == nil {
		pause, err := c.step(ctx)
		if err != nil {
			if c.client.conn != nil {
				closeNow(c.client.conn)
				c.client.conn = nil
			}
			if c.w.mismatch(err) || ctx.Err() != nil {
				return
			}
			c.w.link.kick() // outcomes are its business now
			c.w.state.failed("claimer", err)
			c.sleep(ctx, wait.pause(5*time.Second), false)
			continue
		}
		c.w.state.answered("claimer")
		wait.reset()
		if pause > 0 {
			c.pollAt = time.Now().Add(pause)
			c.sleep(ctx, pause, true)
		}
	}
}

// step does one thing and says how long there is nothing to do.
func (c *claimer) step(ctx context.Context) (time.Duration, error) {
	c.attend(false)
	if c.client.conn == nil {
		return 0, c.connect(ctx)
	}
	if err := c.purge(ctx); err != nil {
		return 0, err
	}
	overdue := !time.Now().Before(c.recoverAt)
	if overdue {
		c.recoverAt = time.Now().Add(c.recoverPause())
	}
	ended, batch := c.outcomes()
	free, held := c.w.book.free()
	if slots, ahead := c.w.book.ask(free); slots+ahead == 0 && len(batch) == 0 {
		if overdue {
			return longestPoll, c.recover(ctx)
		}
		return longestPoll, nil
	}
	if early := time.Until(c.pollAt); early > 0 && !overdue && len(batch) == 0 {
		return early, nil // it was awake for a purge; a claim recovers, too
	}
	if len(batch) == 0 && c.gathers(free, len(held)) {
		return gatherPause, nil
	}
	c.pollAt = time.Time{}
	select { // what was told before this claim it will see
	case <-c.w.ready:
	default:
	}
	select {
	case <-c.w.called:
	default:
	}
	sent := now()
	limited, cancel := context.WithTimeout(ctx, min(max(c.w.cfg.Lease/2, 2*time.Second), 30*time.Second))
	defer cancel()
	answer, err := c.cycle(limited, ended, batch, free, held)
	if err != nil {
		return 0, err
	}
	c.attend(true)
	c.w.metrics.claims(answer.outcome)
	if answer.outcome != "busy" {
		c.recoverAt = time.Now().Add(c.recoverPause()) // the claim has recovered
	}
	c.begun = len(answer.tasks)
	switch {
	case answer.outcome == "claimed":
		c.spread /= 2
		c.start(answer.tasks, sent)
	case c.woken && (answer.outcome == "empty" || answer.outcome == "unsure"):
		stood := min(max(0, now()-sent-uncontended), contendedMost)
		c.spread = min(c.spread+spreadStep+stood, spreadMost)
	}
	c.woken = false
	c.quiet = answer.outcome == "empty" && answer.nextDue == nil
	return c.pause(answer), nil
}

// gathers says to wait a moment, once: more slots are about to come free than the few that are, or may be, since
// their tasks have just begun.
func (c *claimer) gathers(free, held int) bool {
	more := min(held, max(c.w.link.buffer.ending(), c.begun))
	c.gathered = !c.gathered && free < gatherTasks && free <= more
	return c.gathered
}

func (c *claimer) connect(ctx context.Context) error {
	client, err := c.w.open(ctx, nil)
	if err != nil {
		return err
	}
	c.client = client
	c.pollAt, c.quiet = time.Time{}, false // there may have been news, or this session is not known as idle
	limited, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := client.register(limited, c.w); err != nil {
		return err
	}
	c.w.sayStarted()
	return nil
}

func (c *claimer) start(tasks []*Task, sent time.Duration) {
	if now()-sent > c.w.cfg.Lease/2 && !c.w.isDraining() {
		return // too old: the next call hands them out again, with a whole lease
	}
	c.w.link.buffer.starting.Store(true)
	for _, task := range tasks {
		c.w.begin(task, sent)
	}
	c.w.link.buffer.starting.Store(false)
	c.w.boundWait()
	c.w.link.renewBy(sent + c.w.cfg.Lease/3)
}

// pause is how long to wait unless a signal comes first.
func (c *claimer) pause(answer claimAnswer) time.Duration {
	if answer.outcome != "unsure" {
		c.unsure = 0
	}
	switch answer.outcome {
	case "full", "limited": // others hold the limit; a notification says when they leave room
		pause := jitter(time.Second, 0.2, 1)
		if answer.nextDue != nil {
			pause = min(pause, max(*answer.nextDue, time.Millisecond))
		}
		return pause
	case "empty":
		poll := min(jitter(c.w.cfg.Poll, 0.75, 1.25), longestPoll)
		if answer.nextDue != nil {
			poll = min(poll, max(*answer.nextDue, time.Millisecond))
		}
		return poll
	case "unsure":
		c.unsure = min(max(c.unsure*2, 10*time.Millisecond), time.Second)
		return c.unsure
	case "busy":
		return jitter(20*time.Millisecond, 0.2, 1)
	}
	return 0
}

// sleep until the time is up, the worker drains, upkeep is due or, if alert, there may be something to claim.
func (c *claimer) sleep(ctx context.Context, most time.Duration, alert bool) {
	if until := min(time.Until(c.recoverAt), time.Until(c.purgeAt)); alert && until < most {
		most = max(until, time.Millisecond)
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	ready, called, freed := c.w.ready, c.w.called, c.w.book.freed
	if !alert {
		ready, called, freed = nil, nil, nil
	} else if c.attend(true); c.w.link.attended.Load() && c.w.link.buffer.count() > 0 {
		c.pollAt = time.Time{}
		return
	}
	select {
	case <-timer.C:
		return
	case <-ready:
		c.woken = true
		timer.Reset(jitter(c.spread, 0, 1))
		select {
		case <-timer.C:
		case <-freed:
			c.woken = false
		case <-called:
			c.woken = false
		case <-c.w.draining:
		case <-ctx.Done():
		}
	case <-called:
		c.woken = false
	case <-freed:
		c.woken = false
	case <-c.w.draining:
	case <-ctx.Done():
	}
	c.pollAt, c.quiet = time.Time{}, false
}

func (c *claimer) recoverPause() time.Duration {
	return jitter(min(max(c.w.cfg.Lease/2, 2*time.Second), recoverEvery), 0.5, 1)
}

// recover takes back overdue tasks, where no claim does so, with every slot busy.
func (c *claimer) recover(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	count, err := c.client.recover(limited)
	if count > 0 {
		c.w.log.Info("tasks_recovered", "count", count)
	}
	return err
}

// purge deletes expired tasks now and then, and sees by the same call whether there are stored files to delete.
func (c *claimer) purge(ctx context.Context) error {
	if time.Now().Before(c.purgeAt) {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	count, idle, err := c.client.purge(limited, purgeBatch, c.w.media.stores())
	if err != nil {
		return err
	}
	if count > 0 {
		c.w.log.Info("tasks_purged", "count", count)
	}
	if idle {
		poke(c.w.idleMedia)
	}
	if pause := c.purging.pause(count > 0 || idle); count < purgeBatch { // else more is left: go on with the next step
		c.purgeAt = time.Now().Add(pause)
	}
	return nil
}
