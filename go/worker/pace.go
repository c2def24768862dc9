package worker

import "time"

const (
	paceShortest = time.Minute
	paceLongest  = 10 * time.Minute
)

// pace is the pause between two looks for something that is seldom there: longer after each in vain, so that a fleet which
// has nothing to delete costs the database little.
type pace struct{ next time.Duration }

func (p *pace) pause(found bool) time.Duration {
	p.next = min(2*max(p.next, paceShortest), paceLongest)
	if found {
		p.next = paceShortest
	}
	return jitter(p.next, 0.5, 1)
}
