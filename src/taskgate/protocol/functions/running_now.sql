-- What runs at this moment, by the marks of the last ledger row: tokens that were live then (point look-ups)
-- and tokens given out since. Exact for every claim made under the lock, because tokens are given out under
-- it. A full sweep now and then finds what came about without the lock, and sets the marks anew.
-- The caller holds the claim lock, and has set how queries are planned, for the functions that it calls as well.
--
-- Each query of this table says its condition in the words of ONE index (see 0003_indexes.sql): which index
-- serves it must not depend on statistics, which are wrong whenever a queue fills or drains.
CREATE OR REPLACE FUNCTION running_now(
    p_worker text, p_held bigint[], p_now timestamptz,
    OUT ledger claim_ledger, OUT swept boolean, OUT alive bigint[], OUT overdue bigint[], OUT mine bigint[]
)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    -- A frozen worker stops itself by its lease; recovery waits this much longer than the lease.
    margin constant interval := '1 second';
    pause interval;
    begun timestamptz;
BEGIN
    ledger := last_ledger();
    pause := least(greatest(interval '1 second', ledger.sweep_cost * 20), interval '1 minute');
    swept := (p_now BETWEEN ledger.swept_at AND ledger.swept_at + pause) IS NOT TRUE;  -- clocks can step back
    IF swept THEN
        begun := clock_timestamp();
        SELECT coalesce(array_agg(t.claim_token) FILTER (WHERE (t.locked_until < p_now - margin) IS NOT TRUE), '{}'),
               array_agg(t.claim_token) FILTER (WHERE t.locked_until < p_now - margin),
               array_agg(t.claim_token) FILTER (WHERE t.worker_id = p_worker AND t.claim_token NOT IN (SELECT u FROM unnest(p_held) AS u))
        INTO alive, overdue, mine
        FROM tasks t WHERE t.status = 'running' AND num_nulls(t.request) = 0;
        SELECT coalesce(array_agg(coalesce(ready.seq, l.mark) ORDER BY l.ord), '{}'),
               coalesce(array_agg(coalesce(due.run_at, l.due_mark) ORDER BY l.ord), '{}')
        INTO ledger.marks, ledger.due_marks
        FROM unnest(ledger.flows, ledger.marks, ledger.due_marks) WITH ORDINALITY AS l (flow, mark, due_mark, ord)
        LEFT JOIN LATERAL (
            SELECT t.seq FROM tasks t
            WHERE t.status = 'pending' AND t.run_at IS NULL AND num_nulls(t.task_type, t.request) = 0 AND t.flow = l.flow
            ORDER BY t.seq LIMIT 1
        ) AS ready ON true
        LEFT JOIN LATERAL (
            SELECT t.run_at FROM tasks t
            WHERE t.status = 'pending' AND t.run_at IS NOT NULL AND num_nulls(t.task_type, t.request) = 0 AND t.flow = l.flow
            ORDER BY t.run_at LIMIT 1
        ) AS due ON true;
        ledger := tidy_flows(p_now, ledger);
        ledger.buckets := open_buckets(ledger.buckets, p_now);
        DELETE FROM cooldowns c WHERE c.until < p_now;
        ledger.swept_at := p_now;
        ledger.sweep_cost := clock_timestamp() - begun;
        PERFORM note_server_epoch(p_now);
    ELSE
        SELECT coalesce(array_agg(r.token) FILTER (WHERE (r.until < p_now - margin) IS NOT TRUE), '{}'),
               array_agg(r.token) FILTER (WHERE r.until < p_now - margin),
               array_agg(r.token) FILTER (WHERE r.worker = p_worker AND r.token NOT IN (SELECT u FROM unnest(p_held) AS u))
        INTO alive, overdue, mine
        FROM (
            SELECT t.claim_token AS token, t.locked_until AS until, t.worker_id AS worker FROM tasks t
            WHERE t.status = 'running' AND num_nulls(t.request) = 0 AND t.claim_token = ANY (ledger.live)
            UNION ALL
            SELECT t.claim_token, t.locked_until, t.worker_id FROM tasks t
            WHERE t.status = 'running' AND num_nulls(t.request) = 0 AND t.claim_token > ledger.max_token
        ) AS r;
    END IF;
END $$;
