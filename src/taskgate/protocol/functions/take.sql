-- Chooses up to p_free tasks for claim, and locks their rows: by level (priority 9 first, raised by waiting), within a
-- level fairly between tenants (see share), within a tenant flow by flow in turn, within a flow what fell due, then
-- arrivals. No group gets more than its limit. The caller holds the claim lock; p_alive are the tokens that run.
-- verdict: `claimed`; `empty`: there is nothing; `limited`: nothing that may run, but flows of groups that are full;
-- `unsure`: the directory is so large that it was not seen whole.
-- left_over: some of it could have run, had there been more slots. wait: until a limit lets one through by itself.
-- started: the time of their start, not before any count that let them.
-- reserved: what those tasks get of token limits, to be written under the tokens that they get.
CREATE OR REPLACE FUNCTION take(
    p_free integer, p_types text[], p_now timestamptz, p_alive bigint[],
    INOUT ledger claim_ledger, OUT rows_at tid[], OUT verdict text, OUT left_over boolean, OUT wait interval,
    OUT reserved token_reservations[], OUT started timestamptz
)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    only_one bigint;
    flows_ integer;  -- 2: there are more
    limited boolean;
    got record;
BEGIN
    SELECT CASE WHEN count(*) = 1 THEN min(f.id) END, count(*), EXISTS (SELECT FROM limits) OR EXISTS (SELECT FROM cooldowns c WHERE c.until > p_now)
    INTO only_one, flows_, limited
    FROM (SELECT f.id FROM flows f WHERE f.task_type = ANY (p_types) LIMIT 2) AS f;
    IF flows_ = 0 AND NOT limited THEN
        started := p_now;
        verdict := 'empty';
        left_over := false;
        RETURN;
    END IF;
    IF only_one IS NULL OR limited THEN
        got := take_fairly(p_free, p_types, p_now, p_alive, limited, ledger);
        ledger := got.ledger;
        rows_at := got.rows_at;
        verdict := got.verdict;
        left_over := got.left_over;
        wait := got.wait;
        reserved := got.reserved;
        started := got.started;
        RETURN;
    END IF;
    got := pick(ARRAY[only_one], ARRAY[p_free], ARRAY[0], p_now, ledger);
    rows_at := got.rows_at;
    started := p_now;
    verdict := CASE WHEN rows_at IS NULL THEN 'empty' ELSE 'claimed' END;
    left_over := got.counts[1] = p_free;
    IF rows_at IS NULL THEN
        RETURN;
    ELSIF ledger.flows[1] = only_one THEN  -- as nearly always
        ledger.marks[1] := greatest(ledger.marks[1], got.seqs[1]);
        ledger.due_marks[1] := greatest(ledger.due_marks[1], got.dues[1]);
    ELSE
        ledger := touch_flows(ledger, ARRAY[only_one], got.seqs, got.dues);
    END IF;
END $$;

-- How long until the next delayed task of these types falls due, as far as the first 256 flows tell; NULL: there is none.
CREATE OR REPLACE FUNCTION next_due(p_types text[], p_now timestamptz) RETURNS interval
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT
SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    RETURN (
        SELECT min(least(due.run_at, p_now + interval '1 day')) - p_now  -- 'infinity' parks a task
        FROM (SELECT f.id FROM flows f WHERE f.task_type = ANY (p_types) LIMIT 256) AS f
        CROSS JOIN LATERAL (
            SELECT t.run_at FROM tasks t
            WHERE t.status = 'pending' AND t.run_at IS NOT NULL AND num_nulls(t.task_type, t.request) = 0
              AND t.flow = f.id AND t.run_at > p_now
            ORDER BY t.run_at LIMIT 1
        ) AS due
    );
END $$;

-- Whether more first arrivals of these types wait, as far as the first 64 flows tell. The caller holds the claim lock.
CREATE OR REPLACE FUNCTION any_ready(p_types text[], p_ledger claim_ledger) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM (SELECT f.id FROM flows f WHERE f.task_type = ANY (p_types) LIMIT 64) AS f
        CROSS JOIN LATERAL (
            SELECT FROM tasks t
            WHERE t.status = 'pending' AND t.run_at IS NULL AND num_nulls(t.task_type, t.request) = 0 AND t.flow = f.id
              AND t.seq >= coalesce(p_ledger.marks[array_position(p_ledger.flows, f.id)], -9223372036854775808)
            ORDER BY t.seq LIMIT 1
        ) AS t
    );
END $$;
